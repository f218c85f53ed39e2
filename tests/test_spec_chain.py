"""The chain of prompt lookup and draft model: both draft, the model's cache is right, the law is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from controller_sim import predictor
from controller_sim import table as latency_table
from families import build, random_prompts, transformers_greedy
from foredraft.controller import (
    AdaptiveLookahead,
    ChainLookahead,
    GammaBandit,
    LookupLookahead,
    RoundCosts,
    load_or_bandit,
)
from foredraft.spec import (
    BatchDecoder,
    ChainDrafter,
    DecodeStats,
    FixedLookahead,
    ModelDrafter,
    PromptLookupDrafter,
    SamplingParams,
    SelfDrafter,
    SpeculativeDecoder,
    foredraft_generate,
)
from foredraft.spec.load_parts import draft_model, find_drafter
from test_law import (
    DRAFT,
    LOOKUP_PROMPT,
    POLICIES,
    TOLERANCE,
    StatefulPolicy,
    largest_difference,
    round_by_round_law,
    steady_clock,
    target_law,
    whole_path_law,
)
from toys import byte_tokenizer, greedy, noisy_copy, tiny_llama

__all__ = ["steady_clock"]  # the fixture
pytestmark = pytest.mark.usefixtures("one_thread")
COSTS = RoundCosts(draft_step=0.02, verify=(1.0, 1.02, 1.04))


def chain_of(model: Any, width: int, *, min_ngram: int = 1) -> ChainDrafter:
    return ChainDrafter(
        ModelDrafter(model, width=width), PromptLookupDrafter(max_ngram=4, min_ngram=min_ngram)
    )


def tables() -> ChainDrafter:
    return chain_of(DRAFT, 4)


@pytest.mark.parametrize("name", ["γ=2", "coins"])
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_p": 0.7}], ids=str)
def test_a_chain_emits_the_targets_law(settings: dict[str, Any], name: str) -> None:
    """Coins refuse some matches, so that the model drafts in rounds with one."""
    params = SamplingParams(**settings)
    law = round_by_round_law(params, POLICIES[name](), tables(), prompt=LOOKUP_PROMPT)
    assert largest_difference(law, target_law(params, LOOKUP_PROMPT)) < TOLERANCE


@pytest.mark.parametrize("learns", [True, False], ids=["adaptive", "stateful"])
@pytest.mark.usefixtures("steady_clock")
def test_a_chain_keeps_the_law_from_round_to_round(learns: bool) -> None:
    params = SamplingParams(top_k=2)
    used: set[str] = set()

    class Noting(ChainLookahead):
        def begin_round(self, *asked: Any) -> int:
            gamma = super().begin_round(*asked)
            used.update(+self.kinds)
            return gamma

    def policy() -> Any:
        costs = RoundCosts(draft_step=0.4, verify=COSTS.verify)  # so that neither is always better
        return Noting(predictor(), latency_table(costs)) if learns else StatefulPolicy(2)

    law = whole_path_law(params, policy, tables(), prompt=LOOKUP_PROMPT)
    assert largest_difference(law, target_law(params, LOOKUP_PROMPT)) < TOLERANCE
    assert not learns or {"lookup", "speculate"} <= used, used


def repeating_prompts() -> list[list[int]]:
    a, b, c = random_prompts(7, 5, 9)
    return [a * 2 + c, b * 3 + c + b]


def total(outputs: Any) -> DecodeStats:
    return sum((output.stats for output in outputs), DecodeStats())


def test_the_model_has_read_what_was_decoded_without_it() -> None:
    """It is the target itself, so whatever it drafts after rounds of the lookup is accepted."""
    model = build("llama")
    decoder = SpeculativeDecoder(model, None, chain_of(model, 112), FixedLookahead(3))
    prompts = repeating_prompts()
    expected = [transformers_greedy(model, prompt, 40) for prompt in prompts]
    batch = BatchDecoder(decoder, rows=2)
    assert batch.obstacle is None
    for outputs in (
        decoder.generate(prompts, greedy(max_tokens=40)),
        batch.generate(prompts, greedy(max_tokens=40)),
    ):
        assert [output.token_ids for output in outputs] == expected
        stats = total(outputs)
        by_model = stats.accepted - stats.looked_up_accepted
        assert by_model == stats.draft_steps > 5
        assert stats.looked_up > 3
        looked_up = stats.drafted - stats.draft_steps
        assert stats.looked_up_accepted < looked_up, "some matches were wrong"


def test_rows_draw_what_they_draw_alone() -> None:
    model = build("llama")
    drafter = chain_of(noisy_copy(model, scale=0.02), 112)
    decoder = SpeculativeDecoder(model, None, drafter, FixedLookahead(3))
    params = SamplingParams(temperature=0.8, max_tokens=24, seed=4)
    prompts = [*repeating_prompts(), *random_prompts(12)]
    alone = decoder.generate(prompts, params)
    batch = BatchDecoder(decoder, rows=2).generate(prompts, params)
    assert [output.token_ids for output in batch] == [output.token_ids for output in alone]
    assert total(batch).looked_up == total(alone).looked_up > 0
    assert total(batch).draft_steps == total(alone).draft_steps > 0
    twin = decoder.twin(FixedLookahead(3))
    assert isinstance(twin.drafter, ChainDrafter)
    assert twin.drafter.model.cached is not drafter.model.cached
    assert twin.generate(prompts, params)[0].token_ids == alone[0].token_ids


def test_beyond_the_models_context_the_lookup_goes_on() -> None:
    model = build("llama")
    short = tiny_llama(context=24, vocabulary=112)
    decoder = SpeculativeDecoder(model, None, chain_of(short, 112), FixedLookahead(3))
    prompt = repeating_prompts()[0]
    assert len(prompt) < 24
    for outputs in (
        decoder.generate([prompt], greedy(max_tokens=60)),
        BatchDecoder(decoder, rows=1).generate([prompt], greedy(max_tokens=60)),
    ):
        assert outputs[0].token_ids == transformers_greedy(model, prompt, 60)
        assert outputs[0].stats.looked_up > 2


def test_a_chain_of_the_targets_own_layers() -> None:
    model = build("llama")
    drafter = ChainDrafter(
        SelfDrafter(model, 1, width=112), PromptLookupDrafter(max_ngram=4, min_ngram=1)
    )
    decoder = SpeculativeDecoder(model, None, drafter, FixedLookahead(3))
    prompts = repeating_prompts()
    outputs = decoder.generate(prompts, greedy(max_tokens=30))
    assert [o.token_ids for o in outputs] == [transformers_greedy(model, p, 30) for p in prompts]
    assert total(outputs).looked_up > 0
    assert total(outputs).draft_steps > 0


def test_it_is_loaded_by_name_with_the_policy_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "foredraft.spec.load_parts.importlib.metadata.entry_points",
        lambda group: [EntryPointOfThisTree()],
    )
    model = build("llama")
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    target = str(tmp_path / "target")
    model.save_pretrained(target)
    byte_tokenizer().save_pretrained(target)
    lookahead = tmp_path / "lookahead"
    AdaptiveLookahead(predictor(), latency_table(COSTS)).save(lookahead)
    prompt = repeating_prompts()[0]
    expected = transformers_greedy(model, prompt, 20)
    for draft, given, kind in (
        ("prompt-lookup", "adaptive", LookupLookahead),
        ("self:1", 2, FixedLookahead),
        (f"chain:{target}", 2, FixedLookahead),
    ):
        decoder = SpeculativeDecoder.from_pretrained(target, draft=draft, lookahead=given)
        assert isinstance(decoder.lookahead, kind)
        assert decoder.generate([prompt], greedy(max_tokens=20))[0].token_ids == expected
    ours = foredraft_generate(f"chain:{target}", 3, tokenizer=byte_tokenizer())
    whole = model.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False, custom_generate=ours
    )
    assert whole[0, len(prompt) :].tolist() == expected
    with pytest.raises(ValueError, match="a chain has a draft model after its lookup"):
        find_drafter("chain:prompt-lookup", byte_tokenizer(), model)
    with pytest.raises(ValueError, match="is for prompt lookup only"):
        SpeculativeDecoder.from_pretrained(target, draft=f"chain:{target}", lookahead="adaptive")


class EntryPointOfThisTree:
    name = "adaptive"

    def load(self) -> Any:
        return load_or_bandit


def test_a_folder_gives_each_drafter_its_policy(tmp_path: Path) -> None:
    AdaptiveLookahead(predictor(), latency_table(COSTS), gamma_max=2).save(tmp_path)
    for sources, kind in (
        ("lookup", LookupLookahead), ("chain", ChainLookahead), ("model", AdaptiveLookahead),
    ):  # fmt: skip
        assert isinstance(load_or_bandit(tmp_path, sources=sources), kind)
    (tmp_path / "latency.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"goes on with LookupLookahead\(gamma_max=32\), which"):
        assert isinstance(load_or_bandit(tmp_path, sources="lookup"), LookupLookahead)
    with pytest.warns(UserWarning, match="goes on with a bandit"):
        assert isinstance(load_or_bandit(tmp_path, sources="chain"), GammaBandit)


def test_policies_that_read_every_token_are_refused_and_the_model_is_found() -> None:
    model = build("llama")
    drafter = chain_of(model, 112)
    assert draft_model(drafter) is model
    with pytest.raises(ValueError, match="decides by a draft model's logits, and ChainDrafter"):
        SpeculativeDecoder(
            model, None, drafter, AdaptiveLookahead(predictor(), latency_table(COSTS))
        )
