"""A tokenizer for looking at plain text: what it encodes and decodes, and what its special tokens stand for."""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import Any

from tokenizers import Tokenizer, processors

BYTE_FALLBACK = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


class Codec:
    """A copy of a fast tokenizer that knows plain text only.

    Nothing is added to a text, cut from it or padded, the name of a special token in it is text like any
    other, and no setting of the user's own tokenizer is touched.
    """

    def __init__(self, tokenizer: Any, whose: str) -> None:
        """Copy a tokenizer.

        Args:
            whose: "draft" or "target", for the error.

        Raises:
            ValueError: if it is not one of the `tokenizers` library.
        """
        if not tokenizer.is_fast:
            raise ValueError(
                f"{whose}: a drafter across tokenizers needs fast ones (of the tokenizers library), "
                f"and {type(tokenizer).__name__} is not"
            )
        self._own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._own.no_truncation()
        self._own.no_padding()
        self._own.encode_special_tokens = True
        self._own.post_processor = processors.ByteLevel(trim_offsets=False)  # leaves tokens alone
        self.bos: int | None = tokenizer.bos_token_id
        self.eos: int | None = tokenizer.eos_token_id
        self.special: dict[int, str] = {
            token: added.content
            for token, added in tokenizer.added_tokens_decoder.items()
            if added.special
        }
        opening = [int(token) for token in tokenizer("")["input_ids"]][:1]
        self.opening = opening if opening == [self.bos] else []  # what a prompt begins with

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Return tokens, and for each where it ends in the text; several may share one character."""
        encoding = self._own.encode(text, add_special_tokens=False)
        return encoding.ids, [end for _, end in encoding.offsets]

    def decode(self, tokens: list[int]) -> str:
        """Return a text; characters whose bytes are not all there are U+FFFD."""
        text: str = self._own.decode(tokens, skip_special_tokens=False)
        return text

    def after(self, before: list[int], tokens: list[int]) -> str | None:
        """Return what `tokens` add to the text of those before them; None where they change it."""
        start, whole = self.decode(before), self.decode([*before, *tokens])
        return whole[len(start) :] if whole.startswith(start) else None

    def after_boundary(self, before: str, text: str) -> list[int]:
        """Return the tokens of `text` where it follows `before`; by itself where a token spans the boundary."""
        ids, ends = self.encode(before + text)
        count = bisect_right(ends, len(before))
        if (ends[count - 1] if count else 0) == len(before):
            return ids[count:]
        return self.encode(text)[0]

    def pieces(self) -> dict[int, bytes]:
        """Return what each token stands for in the middle of a text, special ones left out."""
        vocabulary = self._own.get_vocab(with_added_tokens=False)
        kinds = _kinds(json.loads(self._own.to_str())["decoder"])
        return {
            token: _piece_bytes(piece, kinds)
            for piece, token in vocabulary.items()
            if token not in self.special
        }

    def fallback_tokens(self) -> list[int]:
        """Return the tokens that stand for a byte of a character without a piece."""
        tokens = (self._own.token_to_id(piece) for piece in BYTE_FALLBACK)
        return [token for token in tokens if token is not None]


def _kinds(decoder: Any) -> set[str]:
    """Return the names of the steps of a decoder."""
    if decoder is None:
        return set()
    kinds = {decoder["type"]}
    for part in decoder.get("decoders", ()):
        kinds |= _kinds(part)
    return kinds


def _piece_bytes(piece: str, kinds: set[str]) -> bytes:
    if "ByteLevel" in kinds and all(char in _BYTES for char in piece):
        return bytes(_BYTES[char] for char in piece)
    if "ByteFallback" in kinds and piece in BYTE_FALLBACK:
        return BYTE_FALLBACK[piece]
    if "WordPiece" in kinds:
        return piece[2:].encode() if piece.startswith("##") else f" {piece}".encode()
    if "BPEDecoder" in kinds:
        return piece.replace("</w>", " ").encode()
    return piece.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level piece stands for.

    Source: `bytes_to_unicode` of GPT-2's encoder.py.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }


_BYTES = _byte_alphabet()
