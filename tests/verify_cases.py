"""Inputs of the fused verifier, from plain to extreme, for tests here and on a card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, eq=False)
class Case:
    """The arguments of `verify_block`."""

    target_logits: torch.Tensor  # [B, γ+1, V]
    draft_logits: torch.Tensor | None  # [B, γ, V]
    drafted: torch.Tensor  # [B, γ]
    drafted_count: torch.Tensor  # [B]
    temperature: torch.Tensor  # [B]
    uniforms: torch.Tensor  # [B, γ+1]
    draft_temperature: torch.Tensor | None = None  # [B]

    def arguments(self, device: str = "cpu") -> list[torch.Tensor | None]:
        """Return them in order, on a device."""
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return [None if value is None else value.to(device) for value in values]


def random_case(
    rows: int,
    gamma: int,
    vocabulary: int,
    *,
    seed: int = 0,
    greedy_rows: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Return related random laws, drafted tokens drawn from q, ragged counts, some rows greedy."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(rows, gamma + 1, vocabulary, generator=generator)
    draft = target[:, :gamma] + torch.randn(rows, gamma, vocabulary, generator=generator)
    temperature = 0.3 + 1.2 * torch.rand(rows, generator=generator)
    if greedy_rows:
        temperature[1::3] = 0.0
    count = torch.randint(0, gamma + 1, (rows,), generator=generator)
    count[0] = gamma
    uniforms = torch.rand(rows, gamma + 1, generator=generator, dtype=torch.float64)
    case = Case(
        target.to(dtype), draft.to(dtype), draft[..., :1].argmax(-1), count, temperature, uniforms
    )
    return redrawn(case, generator)


def redrawn(case: Case, generator: torch.Generator) -> Case:
    """Return the case with drafted tokens drawn from its q; what is not counted is out of range."""
    assert case.draft_logits is not None
    heat = case.temperature if case.draft_temperature is None else case.draft_temperature
    scaled = case.draft_logits.float() / torch.where(heat > 0, heat, 1.0)[:, None, None]
    noise = -torch.rand(scaled.shape, generator=generator).clamp(min=1e-9).log()
    drawn = (scaled.softmax(-1) / noise).argmax(-1)  # [B, γ]
    drawn = torch.where(heat[:, None] > 0, drawn, case.draft_logits.argmax(-1))
    beyond = torch.arange(drawn.shape[1]) >= case.drafted_count[:, None]
    return replace(case, drafted=drawn.masked_fill(beyond, -1))


def special_cases(vocabulary: int = 100) -> Iterator[tuple[str, Case]]:
    """Yield named inputs at the edges of the contract."""
    generator = torch.Generator().manual_seed(1)
    base = random_case(3, 2, vocabulary, seed=2)
    assert base.draft_logits is not None
    target, draft = base.target_logits, base.draft_logits
    columns = torch.arange(vocabulary)

    yield "uniforms next to 1", replace(base, uniforms=torch.full_like(base.uniforms, 1 - 2**-53))
    yield "uniforms of 0", replace(base, uniforms=torch.zeros_like(base.uniforms))
    peaked = target + 1e4 * (columns == 7)
    strided = torch.stack([base.uniforms, base.uniforms], -1)[..., 0]
    yield "strided uniforms", replace(base, uniforms=strided)
    yield "one-hot target", replace(base, target_logits=peaked)
    yield (
        "one-hot both",
        redrawn(replace(base, target_logits=peaked, draft_logits=peaked[:, :2]), generator),
    )
    same = redrawn(replace(base, draft_logits=target[:, :2].clone()), generator)
    yield "identical", same
    yield "identical, rejected by rounding", replace(same, uniforms=_first_is_one(same))
    even, odd = columns % 2 == 0, columns % 2 == 1
    yield (
        "disjoint",
        redrawn(
            replace(
                base,
                target_logits=target.masked_fill(even, -torch.inf),
                draft_logits=draft.masked_fill(odd, -torch.inf),
            ),
            generator,
        ),
    )
    masked = columns >= 40  # whole tiles of nothing at the end
    yield (
        "masked tokens",
        redrawn(
            replace(
                base,
                target_logits=target.masked_fill(masked, -torch.inf),
                draft_logits=draft.masked_fill(columns < 20, -torch.inf),
            ),
            generator,
        ),
    )
    yield (
        "one token left",
        replace(base, target_logits=target.masked_fill(columns != vocabulary - 1, -torch.inf)),
    )
    yield (
        "logits of 1e4",
        redrawn(
            replace(base, target_logits=1e4 * target.sign(), draft_logits=1e4 * draft.sign()),
            generator,
        ),
    )
    yield (
        "ties",
        redrawn(replace(base, target_logits=target.round(), draft_logits=draft.round()), generator),
    )
    yield (
        "flat",
        redrawn(replace(base, target_logits=0 * target, draft_logits=0 * draft - 1e4), generator),
    )
    yield "certain draft", replace(base, draft_logits=None)
    yield (
        "draft temperature",
        redrawn(replace(base, draft_temperature=torch.tensor([0.5, 1.7, 0.0])), generator),
    )
    yield "cold", redrawn(replace(base, temperature=torch.full((3,), 1e-3)), generator)
    yield (
        "padded vocabulary",
        replace(
            base,
            target_logits=torch.cat([target, target + 50], -1)[..., :vocabulary],
            draft_logits=torch.cat([draft, draft + 50], -1)[..., :vocabulary],
        ),
    )


def _first_is_one(case: Case) -> torch.Tensor:
    """A first test that fails although p = q: what rounding could do, and no uniform below 1 does."""
    uniforms = case.uniforms.clone()
    uniforms[case.drafted_count > 0, 0] = 1.0
    return uniforms


class QueuedDraws:
    """Answers with given uniforms, in order."""

    def __init__(self, uniforms: list[float]) -> None:
        self.uniforms = list(uniforms)

    def token(self, probs: torch.Tensor) -> int:
        cumulative = probs.double().cumsum(-1)
        drawn = self.uniforms.pop(0) * cumulative[-1]
        return int(torch.searchsorted(cumulative, drawn, right=True))

    def accepts(self, probability: float) -> bool:
        return self.uniforms.pop(0) < probability
