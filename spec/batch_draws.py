"""The draws of many rows at once: each row's own stream of chance, and few reads by the host.

`Together` is what the loop uses; `RowByRow` is its reference, and takes any `Draws`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from .draws import Draws, GeneratorDraws
from .verify import verify

Source = TypeVar("Source")
BLOCK = 64  # uniforms made at a time


class RowsDraws(Protocol[Source]):
    """How all rows of a batch draw and verify. A device-side path is one more of these."""

    def source(self, seed: int | None) -> Source:
        """Return the chance of one request."""

    def tokens(self, laws: torch.Tensor, sources: Sequence[Source]) -> list[int]:
        """Draw one token for each row. laws: [n, V]."""

    def verify(
        self,
        target_probs: Sequence[torch.Tensor],
        draft_probs: Sequence[torch.Tensor],
        drafted: Sequence[Sequence[int]],
        sources: Sequence[Source],
    ) -> list[tuple[int, int]]:
        """Return each row's accepted length and the token after it, as `verify` does.

        Args:
            target_probs: a row's [γ+1, V] each; γ may differ and may be 0.
            draft_probs: [γ, V] each.
        """


class StreamDraws(GeneratorDraws):
    """Draws as `GeneratorDraws` of the same seed does, and may look at uniforms before they are used up.

    How many a row uses depends on what it accepts, so a batched verifier must look first.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        self._ready: list[float] = []

    def peek(self, count: int) -> list[float]:
        """Return the next uniforms in [0, 1), which stay."""
        while len(self._ready) < count:
            block = torch.rand(BLOCK, generator=self.generator, dtype=torch.float64)
            self._ready += block.tolist()
        return self._ready[:count]

    def skip(self, count: int) -> None:
        """Use up that many."""
        self.peek(count)
        del self._ready[:count]

    def _uniform(self) -> torch.Tensor:
        (uniform,) = self.peek(1)
        self.skip(1)
        return torch.tensor(uniform, dtype=torch.float64)


class Together:
    """One read by the host for the tokens of all rows, and one for a verification."""

    def source(self, seed: int | None) -> StreamDraws:
        return StreamDraws(seed)

    def tokens(self, laws: torch.Tensor, sources: Sequence[StreamDraws]) -> list[int]:
        uniforms = torch.tensor([source.peek(1)[0] for source in sources], dtype=torch.float64)
        for source in sources:
            source.skip(1)
        return [int(token) for token in invert(laws, uniforms.to(laws.device)).tolist()]

    def verify(
        self,
        target_probs: Sequence[torch.Tensor],
        draft_probs: Sequence[torch.Tensor],
        drafted: Sequence[Sequence[int]],
        sources: Sequence[StreamDraws],
    ) -> list[tuple[int, int]]:
        device = target_probs[0].device
        gammas = [len(tokens) for tokens in drafted]
        looked = [source.peek(gamma + 1) for source, gamma in zip(sources, gammas, strict=True)]
        most = max(gammas)
        uniforms = _padded(looked, most + 1).to(device)  # [n, γ_max + 1]
        chances = torch.zeros(len(gammas), most, dtype=torch.float64, device=device)
        for row, (p, q, tokens) in enumerate(zip(target_probs, draft_probs, drafted, strict=True)):
            if tokens:
                at = torch.arange(len(tokens), device=device), torch.tensor(tokens, device=device)
                chances[row, : len(tokens)] = p[at].double() / q[at].double()
        # A uniform is never below 0, the chance of what was not drafted: such places are rejected.
        accepted = (uniforms[:, :most] < chances).cumprod(-1).sum(-1)  # [n]
        laws = torch.stack(
            [_last_law(*row) for row in zip(target_probs, draft_probs, accepted, strict=True)]
        )  # [n, V]
        limits = torch.tensor(gammas, device=device)
        tested = torch.minimum(accepted + 1, limits)  # [n], uniforms used for acceptance
        last = invert(laws, uniforms.gather(1, tested[:, None])[:, 0])  # [n]
        outcome = torch.stack([accepted, last], -1).tolist()  # the one read
        for source, gamma, (length, _) in zip(sources, gammas, outcome, strict=True):
            source.skip(min(length + 1, gamma) + 1)
        return [(length, token) for length, token in outcome]


class RowByRow:
    """Asks each row's `Draws` by itself, as single decoding does."""

    def source(self, seed: int | None) -> Draws:
        return GeneratorDraws(seed)

    def tokens(self, laws: torch.Tensor, sources: Sequence[Draws]) -> list[int]:
        return [source.token(law) for source, law in zip(sources, laws, strict=True)]

    def verify(
        self,
        target_probs: Sequence[torch.Tensor],
        draft_probs: Sequence[torch.Tensor],
        drafted: Sequence[Sequence[int]],
        sources: Sequence[Draws],
    ) -> list[tuple[int, int]]:
        rows = zip(target_probs, draft_probs, drafted, sources, strict=True)
        return [verify(p, q, tokens, source) for p, q, tokens, source in rows]


def invert(laws: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the token of each row at which its cumulative law passes the uniform: [n, V], [n] to [n].

    In float64; a token of probability 0 is never drawn. Where a law is not finite it returns V.
    """
    cumulative = laws.double().cumsum(-1)  # [n, V]
    drawn = uniforms[:, None] * cumulative[:, -1:]  # [n, 1]
    return torch.searchsorted(cumulative, drawn, right=True)[:, 0]


def _last_law(p: torch.Tensor, q: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
    """Return the law [V] of the token after `accepted`: the residual, or p where all were accepted."""
    law = p.index_select(0, accepted[None])[0]  # [V]
    if len(q) == 0:
        return law
    taken = q.index_select(0, accepted.clamp(max=len(q) - 1)[None])[0]
    rest = (law - taken).clamp(min=0.0)
    mass = rest.sum()
    return torch.where((accepted < len(q)) & (mass > 0.0), rest / mass, law)


def _padded(rows: Sequence[Sequence[float]], width: int) -> torch.Tensor:
    padded = [[*row, *[0.0] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.float64)  # [n, width]
