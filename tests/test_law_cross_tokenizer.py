"""Drafts across tokenizers keep the target's law: enumerated on tables, as in test_law.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from foredraft.spec import (
    CrossTokenizerDrafter,
    Drafter,
    FixedLookahead,
    Proposal,
    SamplingParams,
    SharedTokensDrafter,
    dense,
)
from test_law import (
    PARAMS,
    POLICIES,
    TOLERANCE,
    StatefulPolicy,
    adaptive,
    largest_difference,
    round_by_round_law,
    steady_clock,
    target_law,
    whole_path_law,
)
from toys import random_table

OWN = {"d": 0, "ab": 1, "c": 2, "a": 3, "b": 4, "cd": 5}  # all of the target's, two of its own
FEWER = {"c": 0, "ab": 1, "a": 2, "b": 3}  # "d" it cannot say


def tokenizer(pieces: dict[str, int], *merges: tuple[str, str]) -> Any:
    own = Tokenizer(models.BPE(pieces, list(merges)))
    own.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=own, clean_up_tokenization_spaces=False)


TARGETS = tokenizer({"a": 0, "b": 1, "c": 2, "d": 3})
DRAFTS = {
    "own": (tokenizer(OWN, ("a", "b"), ("c", "d")), random_table(seed=3, vocabulary=6)),
    "fewer": (tokenizer(FEWER, ("a", "b")), random_table(seed=4, vocabulary=4)),
}


def spelling(name: str) -> CrossTokenizerDrafter:
    theirs, table = DRAFTS[name]
    return CrossTokenizerDrafter(table, theirs, TARGETS)


def shared(name: str) -> SharedTokensDrafter:
    theirs, table = DRAFTS[name]
    return SharedTokensDrafter(table, theirs, TARGETS, width=4)


CHECKED = ("T=0", "T=1", "top_k=2", "repetition", "bad_words", "min_tokens", "all")


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("policy", ["γ=2", "coins"])
@pytest.mark.parametrize("make", [spelling, shared])
def test_one_round_after_another_emits_the_targets_law(make: Any, policy: str, name: str) -> None:
    drafter: Drafter = make("own" if policy == "γ=2" else "fewer")
    law = round_by_round_law(PARAMS[name], POLICIES[policy](), drafter)
    assert largest_difference(law, target_law(PARAMS[name])) < TOLERANCE


@pytest.mark.parametrize("make", [spelling, shared])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_what_is_left_of_earlier_rounds_keeps_the_law(make: Any, temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    law = whole_path_law(params, lambda: StatefulPolicy(2), make("own"))
    assert largest_difference(law, target_law(params)) < TOLERANCE


__all__ = ["steady_clock"]  # a fixture


@pytest.mark.usefixtures("steady_clock")
@pytest.mark.slow  # 4 s: all ways that three rounds can go
def test_the_controller_sees_the_logits_of_what_is_shared() -> None:
    params = PARAMS["top_k=2"]
    law = whole_path_law(params, adaptive, shared("own"))
    assert largest_difference(law, target_law(params)) < TOLERANCE


class SampledText(CrossTokenizerDrafter):
    """Picks what it proposes by a coin, and reports what it picked as certain."""

    def propose(self, tokens: Any, gamma: int, policy: Any, law: Any, draws: Any) -> Proposal:
        proposal = super().propose(tokens, gamma, policy, law, draws)
        if proposal.tokens and draws.accepts(0.5):
            other = (proposal.tokens[0] + 1) % 4
            return Proposal([other], _one_hot(other), proposal.steps)
        return proposal


class WholeLaw(SharedTokensDrafter):
    """The trap: reports a law over more tokens than it drew from."""

    def propose(self, *asked: Any) -> Proposal:
        proposal = super().propose(*asked)
        flat = 0.75 * dense(proposal.probs) + 0.25 / 4
        return Proposal(proposal.tokens, flat, proposal.steps)


def _one_hot(token: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor([token]), 4).double()


def test_a_law_that_is_not_normalised_over_the_shared_tokens_is_caught() -> None:
    theirs, table = DRAFTS["fewer"]
    trap = WholeLaw(table, theirs, TARGETS, width=4)
    params = SamplingParams()
    law = round_by_round_law(params, FixedLookahead(2), trap)
    assert largest_difference(law, target_law(params)) > 1e-3


def test_one_hot_laws_are_exact_however_the_proposal_was_chosen() -> None:
    """Given the proposal the emitted token follows p, so it does over all proposals; only α suffers."""
    theirs, table = DRAFTS["own"]
    mixed = SampledText(table, theirs, TARGETS)
    params = SamplingParams()
    law = round_by_round_law(params, FixedLookahead(2), mixed)
    assert largest_difference(law, target_law(params)) < TOLERANCE


def test_only_shared_tokens_are_drafted_each_with_all_of_the_law() -> None:
    seen: list[Proposal] = []

    class Noting(SharedTokensDrafter):
        def propose(self, *asked: Any) -> Proposal:
            seen.append(super().propose(*asked))
            return seen[-1]

    theirs, table = DRAFTS["fewer"]
    drafter = Noting(table, theirs, TARGETS, width=4)
    assert drafter.shared == 3
    round_by_round_law(SamplingParams(), FixedLookahead(2), drafter)
    laws = torch.cat([dense(proposal.probs) for proposal in seen])
    assert laws[:, 3].abs().max() == 0
    assert torch.allclose(laws.sum(-1), torch.ones(len(laws), dtype=laws.dtype))
    assert (laws[:, :3] > 0).all()
