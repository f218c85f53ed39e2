"""Laws that leave nothing to chance, held as token ids: greedy decoding needs no rows over a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class OneHot:
    """N laws over V tokens, each of which gives all probability to one token.

    Reads like the tensor [N, V] that it stands for, as far as a verifier reads one.
    """

    tokens: Sequence[int]
    width: int  # V

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.tokens), self.width

    def __getitem__(self, place: tuple[int, int]) -> float:
        """Return the probability of token `place[1]` in row `place[0]`."""
        row, token = place
        return 1.0 if self.tokens[row] == token else 0.0

    def only(self, row: int) -> OneHot:
        """Return one row, [1, V]."""
        return OneHot([self.tokens[row]], self.width)


Laws = torch.Tensor | OneHot
"""N laws over V tokens: probabilities [N, V], or the tokens of one-hot ones."""


def dense_row(laws: Laws, row: int, like: torch.Tensor) -> torch.Tensor:
    """Return one of the laws as probabilities [V], of the dtype and on the device of `like`."""
    one = laws[row : row + 1] if isinstance(laws, torch.Tensor) else laws.only(row)
    return dense(one, like)[0]


def dense(laws: Laws, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return laws as probabilities [N, V].

    Args:
        like: of the dtype and on the device that are wanted; None: one-hot ones come in float32 on the CPU.
    """
    if isinstance(laws, torch.Tensor):
        return laws if like is None else laws.to(like)
    dtype, device = (torch.float32, None) if like is None else (like.dtype, like.device)
    rows = torch.zeros(laws.shape, dtype=dtype, device=device)
    index = torch.tensor(laws.tokens, dtype=torch.int64, device=device)
    return rows.scatter_(-1, index[:, None], 1.0)
