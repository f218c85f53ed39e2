"""Tokenizers of really different kinds, trained here from a few sentences, and models that speak by them."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import GenerationConfig, PreTrainedTokenizerFast

from toys import TableLM

EMOJI = "\U0001f600 and \U0001f468\u200d\U0001f469\u200d\U0001f467 wave"
COMBINING = "cafe\u0301 and nin\u0303o, o\u0302 la\u0300"
TEXTS = (
    "the cat sat on the mat, and the dog sat by the door.",
    "The rain in the town stopped; then the cat ran to the door again.",
    "def total(items):\n    subtotal = 0\n    for item in items:\n\n        subtotal += item\n",
    "日本語の文と日本の猫。猫は日本語を話す。",
    f"a smile {EMOJI} \U0001f600\U0001f600, and {COMBINING}",
    "spaces   and\t\ttabs  \n\n  and    more   spaces  ",
)
SPECIAL = ["<unk>", "<s>", "</s>", "<user>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
KINDS = ("bytes", "byte-bpe", "unigram", "wordpiece", "chars")
PAIRS = (  # of a target and its draft
    ("bytes", "byte-bpe"),
    ("byte-bpe", "unigram"),
    ("byte-bpe", "wordpiece"),
    ("byte-bpe", "chars"),
    ("unigram", "byte-bpe"),
    ("unigram", "chars"),
    ("wordpiece", "byte-bpe"),
    ("chars", "unigram"),
)


@functools.cache
def make_tokenizer(kind: str, *, adds_bos: bool = False) -> Any:
    """Return a fast tokenizer of one of KINDS; it has a BOS, an EOS and a special "<user>"."""
    tokenizer = _trained(kind)
    tokenizer.add_special_tokens(SPECIAL)
    if adds_bos:
        bos = ("<s>", tokenizer.token_to_id("<s>"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[bos]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=["<user>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _trained(kind: str) -> Tokenizer:
    if kind in ("bytes", "byte-bpe"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        size = 300 if kind == "byte-bpe" else 0
        trainer: Any = trainers.BpeTrainer(
            vocab_size=size + 4, special_tokens=SPECIAL, show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )  # fmt: skip
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        trainer = trainers.UnigramTrainer(
            vocab_size=180, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        )
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(
            vocab_size=160, special_tokens=SPECIAL, show_progress=False
        )
    else:
        assert kind == "chars", kind
        chars = sorted({char for text in TEXTS for char in text})
        vocabulary = {piece: place for place, piece in enumerate([*SPECIAL, *BYTES, *chars])}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return tokenizer
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


class BigramLM(TableLM):
    """Says what mostly followed the last token in the texts that it read; its law is sharp."""

    def __init__(self, tokenizer: Any, texts: tuple[str, ...] = TEXTS, context: int = 512) -> None:
        torch.nn.Module.__init__(self)
        size = len(tokenizer)
        counts = torch.zeros(size, size)
        for text in texts:
            ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
            for one, other in itertools.pairwise(ids):
                counts[one, other] += 1.0
        noise = torch.rand(size, size, generator=torch.Generator().manual_seed(0))
        table = (counts + 0.001 * noise).log()
        self.table = torch.nn.Parameter(table, requires_grad=False)
        self.config = TableLM(torch.zeros(context, 1, 1)).config
        self.generation_config = GenerationConfig()

    def forward(
        self, input_ids: torch.Tensor, cache: Any, use_cache: bool, logits_to_keep: int
    ) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[input_ids][:, -logits_to_keep:])

    def get_output_embeddings(self) -> Any:
        return SimpleNamespace(weight=self.table)
