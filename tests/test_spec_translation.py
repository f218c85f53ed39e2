"""A sequence kept up in another tokenizer's tokens: as a whole encoding would be, at the cost of its end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from foredraft.spec.codec import Codec
from foredraft.spec.shared_tokens import shared_tokens
from foredraft.spec.translation import MOST_OVERLAP, Translation
from toy_tokenizers import PAIRS, TEXTS, make_tokenizer


def codecs(target: str, draft: str, **settings: Any) -> tuple[Codec, Codec]:
    return Codec(make_tokenizer(target), "target"), Codec(
        make_tokenizer(draft, **settings), "draft"
    )


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_it_holds_the_whole_encoding_after_additions_and_rollbacks(target: str, draft: str) -> None:
    ours, theirs = codecs(target, draft)
    choice = random.Random(7)
    for text in TEXTS:
        translation, whole = Translation(ours, theirs), ours.encode(text * 2)[0]
        length = 0
        while length < len(whole):
            translation.extend(whole[length : length + choice.randint(1, 4)])
            length = len(translation.tokens)
            assert translation.tokens == whole[:length]
            if choice.random() < 0.3:
                back = max(0, length - choice.randint(1, 5))
                translation.roll_back(back)
                length = len(translation.tokens)
                assert back - 4 < length <= back  # what came together goes together
        assert translation.pending == []
        assert translation.ids == theirs.encode(ours.decode(whole))[0]


def test_half_a_character_waits_and_bytes_that_are_none_do_not_for_ever() -> None:
    ours, theirs = codecs("bytes", "chars")
    translation = Translation(ours, theirs)
    whole = ours.encode("a猫b")[0]
    assert len(whole) == 5
    waiting = []
    for token in whole:
        translation.extend([token])
        waiting.append((len(translation.pending), theirs.decode(translation.ids)))
    assert waiting == [(0, "a"), (1, "a"), (2, "a"), (0, "a猫"), (0, "a猫b")]
    translation.roll_back(3)
    assert translation.pending == whole[1:3]
    assert theirs.decode(translation.ids) == "a"
    translation.extend([whole[1]] * 6)  # a character that never goes on
    assert len(translation.pending) < 4


def test_special_tokens_are_of_the_same_role_or_name_and_texts_end_at_them() -> None:
    ours, theirs = codecs("byte-bpe", "unigram", adds_bos=True)
    own = make_tokenizer("unigram")
    tokenizer = make_tokenizer("byte-bpe")
    prompt = tokenizer.encode("<s><user>the cat</s><user> sat<unk>")
    assert theirs.opening == [own.bos_token_id]
    translation = Translation(ours, theirs)
    translation.extend(prompt)
    user, end = own.convert_tokens_to_ids("<user>"), own.eos_token_id
    expected = [user, *own.encode("the cat"), end, user, *own.encode(" sat"), own.unk_token_id]
    assert translation.ids == expected  # the BOS is the draft's own opening
    translation.roll_back(0)
    assert translation.ids == []
    for token in prompt:
        translation.extend([token])
    assert translation.ids == expected
    cut = prompt.index(tokenizer.eos_token_id)
    translation.roll_back(cut)
    assert translation.ids == [user, *own.encode("the cat")]


class Counting(Codec):
    """Counts the characters and tokens that it looks at."""

    looked = 0

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        self.looked += len(text)
        return super().encode(text)

    def decode(self, tokens: list[int]) -> str:
        self.looked += len(tokens)
        return super().decode(tokens)


@pytest.mark.parametrize("draft", ["chars", "unigram", "wordpiece"])
def test_a_round_looks_at_as_much_after_32k_tokens_as_after_1k(draft: str) -> None:
    ours = Counting(make_tokenizer("byte-bpe"), "target")
    theirs = Counting(make_tokenizer(draft), "draft")
    tokens = ours.encode(f"{TEXTS[0]} {TEXTS[1]} " * 1300)[0]
    assert len(tokens) > 33_000
    costs = []
    for context in (1_000, 32_000):
        translation = Translation(ours, theirs)
        translation.extend(tokens[:context])
        ours.looked = theirs.looked = 0
        for length in range(context, context + 90, 3):
            translation.extend(tokens[length : length + 5])
            translation.roll_back(length + 3)
        costs.append((ours.looked + theirs.looked) / 30)
    assert costs[1] < 1.5 * costs[0] < 1.5 * MOST_OVERLAP


def test_shared_tokens_stand_for_the_same_bytes() -> None:
    bytes_, chars = (
        Codec(make_tokenizer("bytes"), "target"),
        Codec(make_tokenizer("chars"), "draft"),
    )
    shared = shared_tokens(bytes_, chars)
    assert chars.eos == shared[bytes_.eos or 0]
    ours, theirs = bytes_.pieces(), chars.pieces()
    text = {token: own for token, own in shared.items() if token not in bytes_.special}
    assert all(ours[token] == theirs[own] for token, own in text.items())
    assert len(text) == 256
    letter = make_tokenizer("chars").convert_tokens_to_ids("t")
    assert letter in shared.values()  # the letter's piece, not its byte's
    unigram = Codec(make_tokenizer("unigram"), "draft")
    both = shared_tokens(Codec(make_tokenizer("byte-bpe"), "target"), unigram)
    pieces = make_tokenizer("byte-bpe").convert_ids_to_tokens(list(both))
    assert {"Ġthe", "s"} <= set(pieces)
