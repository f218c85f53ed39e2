"""At which temperature a draft should draw: a search on held-out text, for each temperature of requests.

A draft that is less sure than its target, or surer, proposes too rarely what the target says; dividing
its logits by another number than the request's temperature mends a part of that at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..spec import DraftInfo, cut_head, load_causal_lm, load_kept_tokens
from .batches import Example, micro_batches
from .evaluation import columns_of
from .heads import LogitHead, divided, eval_mode, head_of
from .own_weights import check_own_weights
from .packing import collate_for, supervised_states
from .teacher import Teacher

FACTORS = tuple(step / 20 for step in range(10, 31))  # 0.5, 0.55, … 1.5: α is flat where it is best
IDENTITY = FACTORS.index(1.0)
MOST_TOKENS = 2048  # held-out tokens: a factor is one number, and the same tokens judge all of them
BATCH_ROWS, CHUNK_TOKENS = 8, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What was found for one temperature of requests."""

    temperature: float
    factor: float  # multiplies it when the draft draws
    alpha: float  # Σ min(p, q) with a factor of 1
    alpha_calibrated: float  # the same where each half of the rows is drawn as the other half chose


def calibrate_folder(
    teacher: Teacher,
    folder: str | Path,
    examples: Sequence[Example],
    temperatures: Sequence[float],
    *,
    dtype: str = "float32",
) -> list[Calibrated]:
    """Find the draft temperatures of a draft's folder and write them into its `foredraft.json`.

    Args:
        examples: held out of the draft's training.
        temperatures: of requests, above 0; what is greedy does not depend on it.

    Raises:
        ValueError: if the folder has no `foredraft.json`, is no model of its own, or there is nothing to
            judge by.
    """
    check_own_weights(folder)
    info = DraftInfo.load(folder)
    if info is None:
        raise ValueError(f"{folder}: it has no foredraft.json to keep draft temperatures in")
    if not examples:
        raise ValueError(f"{folder}: there are no held-out rows to find draft temperatures with")
    draft = load_causal_lm(str(folder), device=str(teacher.device), dtype=dtype)
    kept = load_kept_tokens(folder, info)
    if kept is not None:
        cut_head(draft, kept)
    found = calibrate(teacher, draft, kept, examples, temperatures)
    pairs = sorted((one.temperature, one.factor) for one in found)
    replace(info, draft_temperatures=tuple(pairs)).save(folder)
    return found


def calibrate(
    teacher: Teacher,
    draft: Any,
    kept: torch.Tensor | None,
    examples: Sequence[Example],
    temperatures: Sequence[float],
) -> list[Calibrated]:
    """Return the factor of each temperature: 1, unless another gives a higher α on held-out rows.

    It is chosen on all rows, and kept only if each half of them gains, both together, from what the other
    half chooses: so it is never worse on these rows, and no accident of them.

    Args:
        kept: [V_draft], the target token of each row of a cut head; None: a whole head.
    """
    rows = _first(examples)
    tokens = sum(example.supervised for example in rows)
    sums = alpha_sums(teacher, draft, kept, rows, temperatures)  # [rows, T, F]
    return [
        judged(temperature, sums[:, index], tokens)
        for index, temperature in enumerate(temperatures)
    ]


def calibration_metrics(found: Sequence[Calibrated]) -> dict[str, float]:
    """Return eval/T{t}/draft_temp_star, the factor, and eval/T{t}/alpha_calibrated of each temperature."""
    return {
        f"eval/T{one.temperature:g}/{name}": value
        for one in found
        for name, value in (
            ("draft_temp_star", one.factor),
            ("alpha_calibrated", one.alpha_calibrated),
        )
    }


def judged(temperature: float, sums: torch.Tensor, tokens: int) -> Calibrated:
    """Return what Σ min(p, q) says, added up over each row's tokens with each of FACTORS: [rows, F]."""
    halves = (sums[::2].sum(0), sums[1::2].sum(0))  # [F] each
    whole = sums.sum(0)  # [F]
    best, crossed = _best(whole), halves[0][_best(halves[1])] + halves[1][_best(halves[0])]
    if crossed <= whole[IDENTITY]:
        best, crossed = IDENTITY, whole[IDENTITY]
    return Calibrated(
        temperature=temperature,
        factor=FACTORS[best],
        alpha=float(whole[IDENTITY]) / tokens,
        alpha_calibrated=float(crossed) / tokens,
    )


def _best(sums: torch.Tensor) -> int:
    """Return which factor has the highest sum [F]; 1 where none is above it."""
    best = int(sums.argmax())
    return best if sums[best] > sums[IDENTITY] else IDENTITY


def _first(examples: Sequence[Example]) -> list[Example]:
    """Return the first examples, of about MOST_TOKENS supervised tokens and two at least."""
    rows: list[Example] = []
    for example in examples:
        if len(rows) >= 2 and sum(row.supervised for row in rows) >= MOST_TOKENS:
            break
        rows.append(example)
    return rows


@torch.no_grad()
def alpha_sums(
    teacher: Teacher,
    draft: Any,
    kept: torch.Tensor | None,
    examples: Sequence[Example],
    temperatures: Sequence[float],
) -> torch.Tensor:
    """Return Σ min(p, q) added up over each example's tokens: [examples, temperatures, FACTORS], float64.

    p is the target's law over its whole vocabulary at a temperature, q the draft's at it times a factor.
    """
    columns = columns_of(teacher, draft, kept)  # [V_draft]
    target_head, collate = teacher.head.rows(columns), collate_for(draft)
    draft_head = head_of(draft).first(len(columns))
    sums: dict[Example, torch.Tensor] = {}
    with eval_mode(draft):
        for part in micro_batches(examples, BATCH_ROWS):
            states = supervised_states(draft, collate(part))  # [N, d]
            sizes = [example.supervised for example in part]
            for example, own in zip(part, torch.split(states, sizes), strict=True):
                sums[example] = torch.stack(
                    [_row(teacher, target_head, draft_head, example, own, t) for t in temperatures]
                )  # [T, F]
    return torch.stack([sums[example] for example in examples])


def _row(
    teacher: Teacher,
    target_head: LogitHead,  # of the draft's columns
    draft_head: LogitHead,
    example: Example,
    states: torch.Tensor,  # [supervised, d]
    temperature: float,
) -> torch.Tensor:
    """Return Σ min(p, q) added up over an example's tokens, with each factor: [F]."""
    target_states = teacher.hidden([example])  # [supervised, d]
    log_sums, _ = teacher.summary([example], target_states, CHUNK_TOKENS, temperature)
    sums = torch.zeros(len(FACTORS), dtype=torch.float64)
    for start in range(0, len(states), CHUNK_TOKENS):
        chunk = slice(start, start + CHUNK_TOKENS)
        logits = divided(target_head.logits(target_states[chunk]), temperature)  # [n, V_draft]
        target_probs = (logits - log_sums[chunk, None]).exp()
        draft_logits = draft_head.logits(states[chunk])  # [n, V_draft]
        for place, factor in enumerate(FACTORS):
            draft_probs = divided(draft_logits, temperature * factor).softmax(-1)
            sums[place] += torch.minimum(target_probs, draft_probs).sum().double().cpu()
    return sums
