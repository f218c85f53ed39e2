"""The law of the output where a drafter shares its target's cache, enumerated round by round."""

from __future__ import annotations

import math
from typing import Any

import torch

from foredraft.spec import LookaheadPolicy, SamplingParams
from foredraft.spec.cached import CachedModel
from foredraft.spec.law import TokenLaw
from foredraft.spec.round import decode_round
from toys import ScriptedDraws, enumerate_law

PROMPT, END = (0, 2), 5


def assert_law_is_the_targets(
    model: Any, drafter: Any, params: SamplingParams, policy: LookaheadPolicy
) -> set[tuple[int, int]]:
    """Assert that outputs of END tokens follow the law of a target of three tokens alone, to 1e-9.

    Returns:
        Which (drafted, accepted) the rounds had.
    """
    found: dict[tuple[int, ...], float] = {}
    partial: dict[tuple[int, ...], float] = {PROMPT: 1.0}
    rounds = set[tuple[int, int]]()
    while partial:
        tokens, weight = partial.popitem()

        def run(draws: ScriptedDraws, tokens: tuple[int, ...] = tokens) -> tuple[int, ...]:
            drafter.target.start(tokens, END)
            drafter.reset(END)
            emitted, outcome = decode_round(
                tokens, drafter.target, drafter, policy, _law(params, tokens), draws,
                gamma_limit=END - len(tokens) - 1,
            )  # fmt: skip
            rounds.add((outcome.drafted, outcome.accepted))
            return (*tokens, *emitted)

        for longer, chance in enumerate_law(run).items():
            into = found if len(longer) == END else partial
            into[longer] = into.get(longer, 0.0) + weight * chance
    expected = _plain_law(model, params)
    assert max(abs(found.get(key, 0.0) - p) for key, p in expected.items()) < 1e-9
    assert math.isclose(sum(found.values()), 1.0)
    return rounds


def _law(params: SamplingParams, tokens: tuple[int, ...]) -> TokenLaw:
    law = TokenLaw(params, PROMPT, width=3, eos_token_ids=(), device=torch.device("cpu"))
    law.commit(tokens[len(PROMPT) :])
    return law


def _plain_law(model: Any, params: SamplingParams) -> dict[tuple[int, ...], float]:
    plain = CachedModel(model, width=3)
    expected: dict[tuple[int, ...], float] = {PROMPT: 1.0}
    for _ in range(END - len(PROMPT)):
        longer_law: dict[tuple[int, ...], float] = {}
        for tokens, weight in expected.items():
            plain.reset(END)
            probs = _law(params, tokens).laws(plain.advance(tokens), [])  # [1, V]
            assert isinstance(probs, torch.Tensor)
            for token, p in enumerate(probs[0].tolist()):
                longer_law[(*tokens, token)] = weight * p
        expected = longer_law
    return expected
