"""Prompt lookup paced by a policy that learns keeps the target's law: enumerated, as in test_law.py."""

from __future__ import annotations

from typing import Any

import pytest

from controller_sim import table as latency_table
from foredraft.controller import LookupLookahead, RoundCosts
from foredraft.spec import SamplingParams
from test_law import (
    LOOKUP_PROMPT,
    TOLERANCE,
    CountingLookup,
    HalfSureLookup,
    largest_difference,
    steady_clock,
    target_law,
    whole_path_law,
)

__all__ = ["steady_clock"]  # the fixture
CURVES = {"cheap": (1.0, 1.02, 1.04), "dear": (1.0, 1.2, 1.5)}


def adaptive(curve: str) -> LookupLookahead:
    costs = RoundCosts(draft_step=0.1, verify=CURVES[curve])
    return LookupLookahead(latency_table(costs), gamma_max=3)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {}, {"temperature": 0.7, "top_k": 3}], ids=str
)
@pytest.mark.usefixtures("steady_clock")
def test_a_learning_lookup_emits_the_targets_law(settings: dict[str, Any], curve: str) -> None:
    params, drafter = SamplingParams(**settings), CountingLookup()
    law = whole_path_law(params, lambda: adaptive(curve), drafter, prompt=LOOKUP_PROMPT)
    assert largest_difference(law, target_law(params, LOOKUP_PROMPT)) < TOLERANCE
    assert params.greedy or drafter.gammas
    assert params.greedy or curve == "dear" or {1, 2} <= drafter.gammas


@pytest.mark.usefixtures("steady_clock")
def test_a_lookup_that_reports_another_law_is_caught_here_too() -> None:
    params, trap = SamplingParams(), HalfSureLookup(max_ngram=2, min_ngram=1)
    law = whole_path_law(params, lambda: adaptive("cheap"), trap, prompt=LOOKUP_PROMPT)
    assert largest_difference(law, target_law(params, LOOKUP_PROMPT)) > 1e-3
