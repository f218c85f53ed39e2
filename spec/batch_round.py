"""One round for many rows: all draft, one target forward verifies, each keeps what it accepted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .batch_cached import CachedRows
from .batch_drafter import RowsDrafter
from .batch_draws import RowsDraws
from .batch_row import Row, blamed_on, check_token, sound
from .chain import looking_of_row
from .policy import RoundOutcome


@dataclass(slots=True, eq=False)
class _Verified:
    row: Row
    logits: torch.Tensor  # [γ+1, V], raw
    target_probs: torch.Tensor  # [γ+1, V]
    draft_probs: torch.Tensor  # [γ, V]


@torch.inference_mode()
def decode_round_of_rows(
    rows: Sequence[Row], target: CachedRows, drafter: RowsDrafter | None, draws: RowsDraws[Any]
) -> None:
    """Add between 1 and γ + 1 tokens to each row; γ is each row's own.

    The host reads the device once for each draft depth and once for the verification, beyond what the
    policies read. Where no row drafts, nothing of speculation runs: one forward, one draw for each row.

    Time is attributed so that the rows' seconds add up to the wall's: a forward's to its rows in
    proportion to the tokens they fed (equal γ: equal parts), the rest of the round in equal parts.

    Args:
        rows: in ascending slots. All but the last token of each is in the target's cache. A row that
            raises gets its `error` and nothing more; the others go on.
    """
    begun = time.perf_counter()
    for row in rows:
        with blamed_on(row):
            context = 0 if drafter is None else drafter.context
            row.begin_round(context, looking_of_row(drafter, row))
    drafting = [row for row in sound(rows) if row.gamma > 0]
    if drafter is not None and drafting:
        drafter.propose(drafting, draws)

    alive = sound(rows)
    if not alive:
        return
    forward = time.perf_counter()
    logits = target.advance(
        [row.slot for row in alive],
        [row.uncovered(target.cover[row.slot]) for row in alive],
        [len(row.drafted) + 1 for row in alive],
    )  # [γ+1, V] each
    verify_seconds = time.perf_counter() - forward
    verified = _laws(alive, logits)
    results = _verify(verified, draws) if verified else []
    alive = [part.row for part in verified]

    for row, (accepted, _) in zip(alive, results, strict=True):
        length = len(row.tokens) + accepted  # the last token is pending: the next round feeds it
        target.roll_back(row.slot, length)
        if drafter is not None:
            drafter.roll_back(row.slot, length)
    seconds = time.perf_counter() - begun
    shared = seconds - verify_seconds - sum(row.draft_seconds for row in alive)
    fed = sum(len(row.drafted) + 1 for row in alive)
    for part, (accepted, last) in zip(verified, results, strict=True):
        row = part.row
        verify_share = verify_seconds * (len(row.drafted) + 1) / fed
        with blamed_on(row):
            check_token(last, part.target_probs.shape[-1])
            outcome = RoundOutcome(
                drafted=len(row.drafted),
                accepted=accepted,
                draft_steps=row.draft_steps,
                draft_seconds=row.draft_seconds,
                verify_seconds=verify_share,
                round_seconds=row.draft_seconds + verify_share + shared / len(alive),
                target_logits=part.logits,
                target_probs=part.target_probs,
                draft_probs=part.draft_probs,
            )
            row.end_round([*row.drafted[:accepted], last], outcome)


def _laws(rows: Sequence[Row], logits: Sequence[torch.Tensor]) -> list[_Verified]:
    """Return what each row is verified by; a row whose law raises is left out."""
    verified = []
    for row, raw in zip(rows, logits, strict=True):
        with blamed_on(row):
            p = row.law.probs(raw, row.drafted)  # [γ+1, V]
            verified.append(_Verified(row, raw, p, row.draft_probs(p)))
    return verified


def _verify(verified: Sequence[_Verified], draws: RowsDraws[Any]) -> list[tuple[int, int]]:
    """Return each row's accepted length and last token."""
    sources = [part.row.source for part in verified]
    if not any(part.row.drafted for part in verified):
        laws = torch.cat([part.target_probs for part in verified])  # [n, V]
        return [(0, token) for token in draws.tokens(laws, sources)]
    return draws.verify(
        [part.target_probs for part in verified],
        [part.draft_probs for part in verified],
        [part.row.drafted for part in verified],
        sources,
    )
