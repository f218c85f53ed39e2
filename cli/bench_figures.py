"""From samples to cells: each arm's figures under each setting, and its speedup paired with plain decoding."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .bench_data import ALL, PLAIN, Cell, Memory, Sample, Setting, VerifyCost
from .bench_law import law_distance

RESAMPLES = 2000
Arms = Mapping[tuple[str, str, str], tuple[str, Memory]]
"""(condition, drafter, policy) -> words about the arm, and what its models hold."""


def make_cells(samples: Sequence[Sample], arms: Arms) -> list[Cell]:
    """Return a cell for each arm and setting, each domain by itself and, where there are several, all."""
    by_setting: dict[Setting, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_setting[sample.setting].append(sample)
        by_setting[replace(sample.setting, domain=ALL)].append(sample)
    several = {
        replace(setting, drafter="", policy="", domain="")
        for setting, own in by_setting.items()
        if setting.domain == ALL and len({sample.setting.domain for sample in own}) > 1
    }
    cells = []
    for setting, own in by_setting.items():
        if (
            setting.domain == ALL
            and replace(setting, drafter="", policy="", domain="") not in several
        ):
            continue
        plain = by_setting[replace(setting, drafter="none", policy=PLAIN)]
        cells.append(_cell(setting, own, plain, arms))
    return cells


def verify_costs(samples: Iterable[Sample]) -> list[VerifyCost]:
    """Return what a target forward took by its tokens and by the context, in doubling buckets.

    Of prompts decoded alone only: a batch's forward is shared by rows that fed different numbers.
    """
    seconds: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.setting.rows == 1:
            rounds = sample.rounds
            for drafted, context, taken in zip(
                rounds.drafted, rounds.context, rounds.verify_seconds, strict=True
            ):
                bucket = max(6, context.bit_length() - 1)  # below 128 is one
                seconds[sample.setting.condition, drafted + 1, bucket].append(taken)
    return [
        VerifyCost(
            condition=condition,
            tokens=tokens,
            context_low=0 if bucket == 6 else 2**bucket,
            context_high=2 ** (bucket + 1),
            count=len(taken),
            ms=1e3 * statistics.median(taken),
        )
        for (condition, tokens, bucket), taken in sorted(seconds.items())
    ]


def _cell(setting: Setting, own: Sequence[Sample], plain: Sequence[Sample], arms: Arms) -> Cell:
    about, memory = arms[setting.condition, setting.drafter, setting.policy]
    drafted = sum(sum(sample.rounds.drafted) for sample in own)
    accepted = sum(sum(sample.rounds.accepted) for sample in own)
    tested = sum(
        min(a + 1, d)
        for sample in own
        for a, d in zip(sample.rounds.accepted, sample.rounds.drafted, strict=True)
    )
    rounds = sum(len(sample.rounds.drafted) for sample in own)
    tokens = sum(sum(sample.output_lengths) for sample in own)
    gaps = _gaps(own)
    table = _table(own)  # [blocks, 3]
    speedup, low, high = _ratio(_table(plain), table, column=0)
    call_speedup, _, _ = _ratio(_table(plain), table, column=1)
    ranks = [rank for sample in own for rank in sample.ranks]
    distance, odds = law_distance(ranks) if ranks else (None, None)
    requests = sum(len(sample.output_lengths) for sample in own)
    return Cell(
        setting=setting,
        about=about,
        requests=requests,
        tokens=tokens,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        tested=tested,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_prob=accepted / tested if tested else None,
        block_efficiency=(accepted + rounds) / rounds,
        accepted_lengths=_counted(own, "accepted"),
        gammas=_counted(own, "drafted"),
        draft_ms=_draft_ms(own),
        verify_ms=1e3 * statistics.median(v for s in own for v in s.rounds.verify_seconds),
        ttft_ms=1e3 * statistics.median(_first(own)),
        itl_ms=None if not gaps else 1e3 * float(np.quantile(gaps, 0.5)),
        itl_p95_ms=None if not gaps else 1e3 * float(np.quantile(gaps, 0.95)),
        itl_p99_ms=None if not gaps else 1e3 * float(np.quantile(gaps, 0.99)),
        tpot_ms=1e3 * setting.rows * float(table[:, 0].sum() / table[:, 2].sum()),
        tokens_per_second=float(table[:, 2].sum() / table[:, 0].sum()),
        call_tokens_per_second=float(table[:, 2].sum() / table[:, 1].sum()),
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        call_speedup=call_speedup,
        equal=_total(sample.equal for sample in own),
        ties=_total(sample.ties for sample in own),
        outputs=requests,
        law_distance=distance,
        law_tokens=len(ranks),
        law_odds=odds,
        memory=memory,
        cache_bytes=max(sample.cache_bytes for sample in own),
        peak_bytes=max(sample.peak_bytes for sample in own),
    )


def _table(samples: Sequence[Sample]) -> Any:
    """Return [blocks, 3]: seconds of decoding and of the call, medians over the repeats, and tokens."""
    blocks: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        blocks[sample.setting.domain, sample.index].append(sample)
    return np.array(
        [
            (
                statistics.median(sample.decode_seconds for sample in repeats),
                statistics.median(sample.seconds for sample in repeats),
                statistics.mean(sum(sample.output_lengths) for sample in repeats),
            )
            for _, repeats in sorted(blocks.items())
        ]
    )


def _ratio(plain: Any, own: Any, *, column: int) -> tuple[float, float | None, float | None]:
    """Return the ratio of seconds per token, and its interval by resampling blocks, paired."""
    # Sampled outputs differ in length between the arms, so it is seconds per token that are compared.
    pairs = np.stack([plain[:, column], plain[:, 2], own[:, column], own[:, 2]], axis=1)

    def ratio(sums: Any) -> Any:  # [..., 4] to [...]
        return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])

    whole = float(ratio(pairs.sum(0)))
    if len(pairs) < 2:
        return whole, None, None
    chosen = np.random.default_rng(0).integers(0, len(pairs), (RESAMPLES, len(pairs)))
    low, high = np.quantile(ratio(pairs[chosen].sum(1)), [0.025, 0.975])
    return whole, float(low), float(high)


def _draft_ms(samples: Sequence[Sample]) -> float | None:
    """Return the median of a draft step; a request's first that drafts reads the prompt and is left out."""
    steady, every = [], []
    for sample in samples:
        rounds, unread = sample.rounds, sample.setting.rows
        for steps, seconds in zip(rounds.draft_steps, rounds.draft_seconds, strict=True):
            if not steps:
                continue
            every.append(seconds / steps)
            if unread > 0:
                unread -= 1
            else:
                steady.append(seconds / steps)
    chosen = steady or every
    return 1e3 * statistics.median(chosen) if chosen else None


def _first(samples: Sequence[Sample]) -> list[float]:
    """Return the seconds from the call to each request's first token."""
    return [
        ended
        for sample in samples
        for ended, gap in zip(sample.rounds.ended, sample.rounds.gap, strict=True)
        if gap is None
    ]


def _gaps(samples: Sequence[Sample]) -> list[float]:
    return [gap for sample in samples for gap in sample.rounds.gap if gap is not None]


def _counted(samples: Sequence[Sample], column: str) -> dict[int, int]:
    """Return value -> rounds; accepted lengths of rounds that drafted only."""
    counts: Counter[int] = Counter()
    for sample in samples:
        rounds = sample.rounds
        values = rounds.accepted if column == "accepted" else rounds.drafted
        for value, drafted in zip(values, rounds.drafted, strict=True):
            if drafted or column == "drafted":
                counts[value] += 1
    return dict(sorted(counts.items()))


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
