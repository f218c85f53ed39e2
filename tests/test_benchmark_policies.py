"""The policies benchmark: in the real loop on tiny models, and its figures on made-up decodings."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from controller_sim import CHEAP, predictor, table
from foredraft.controller import AdaptiveConfig, AdaptiveLookahead
from foredraft.data import Prompt
from foredraft.spec import FixedLookahead, SamplingParams
from policies import PoliciesBenchmark, run_benchmark
from policies_cells import Measured, PromptCells
from policies_cost import decision_cost
from policies_figures import compared, ratio
from toys import make_decoder, tiny_llama

PROMPTS = [
    Prompt(id=f"p{i}", domain=domain, text=text)
    for i, (domain, text) in enumerate([("code", "def f"), ("chat", "hello")])
]
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, seed=0)


def config(folder: Path, **given: object) -> PoliciesBenchmark:
    settings = {
        "target": "t", "draft": "d", "lookahead": "l", "output": str(folder), "gammas": (1, 3),
        "max_tokens": 8, "repeats": 2, "peers": ("heuristic", "confidence", "bandit"),
    }  # fmt: skip
    return PoliciesBenchmark(**(settings | given))  # type: ignore[arg-type]


def adaptive() -> AdaptiveLookahead:
    """One whose guard lets it draft, whatever this machine says."""
    return AdaptiveLookahead(predictor(), table(CHEAP), config=AdaptiveConfig(slowdown_budget=1e6))


def test_every_policy_decodes_every_prompt_and_what_is_done_is_not_done_again(
    tmp_path: Path, one_thread: None
) -> None:
    decoder = make_decoder(tiny_llama(), FixedLookahead(0))
    screen = StringIO()
    settings = config(tmp_path)
    content = run_benchmark(settings, decoder, adaptive(), PROMPTS, Console(file=screen, width=200))
    names = ["plain", "γ = 1", "γ = 3", "heuristic", "confidence", "bandit", "adaptive"]
    arms = content["total"]["arms"]
    assert [arm["name"] for arm in arms] == names
    assert all((arm["equal"], arm["outputs"], arm["tokens"]) == (4, 4, 16) for arm in arms)
    assert arms[0]["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert arms[2]["drafted_per_round"] > arms[1]["drafted_per_round"] > 0.0
    assert set(content["domains"]) == {"code", "chat"}
    assert content["decision"]["decisions"] > 0
    assert "of a draft step" in screen.getvalue()
    assert json.loads((tmp_path / "policies.json").read_text())["decodings"] == 4

    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert len(lines) == 4 * len(names)
    (tmp_path / "cells.jsonl").write_text("\n".join(lines[:-2]) + "\n")  # killed while writing
    again = run_benchmark(settings, decoder, adaptive(), PROMPTS, Console(file=screen))
    after = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert after[: 3 * len(names)] == lines[: 3 * len(names)], "three decodings are as they were"
    assert again["decodings"] == 4


def test_a_time_limit_leaves_the_rest_for_the_next_call(tmp_path: Path, one_thread: None) -> None:
    decoder = make_decoder(tiny_llama(), FixedLookahead(0))
    screen = Console(file=StringIO())
    with pytest.raises(ValueError, match="max_seconds must leave time for a prompt, got 0"):
        run_benchmark(config(tmp_path, max_seconds=0.0), decoder, adaptive(), PROMPTS, screen)
    run_benchmark(config(tmp_path, repeats=1), decoder, adaptive(), PROMPTS, screen)
    before = (tmp_path / "cells.jsonl").read_text()
    limited = config(tmp_path, max_seconds=0.0)
    content = run_benchmark(limited, decoder, adaptive(), PROMPTS, screen)
    assert (content["decodings"], content["decodings_wanted"]) == (2, 4)
    assert (tmp_path / "cells.jsonl").read_text() == before


def test_cells_of_other_settings_are_not_used(tmp_path: Path, one_thread: None) -> None:
    decoder = make_decoder(tiny_llama(), FixedLookahead(0))
    screen = Console(file=StringIO())
    run_benchmark(config(tmp_path, repeats=1), decoder, adaptive(), PROMPTS[:1], screen)
    other = config(tmp_path, repeats=1, gammas=(2,))
    content = run_benchmark(other, decoder, adaptive(), PROMPTS[:1], screen)
    assert "γ = 2" in [arm["name"] for arm in content["total"]["arms"]]
    assert content["total"]["adaptive_over"]["heuristic"]["low"] is None, "of one prompt"


def cell(seconds: float, *, tokens: int = 10, equal: bool = True) -> Measured:
    return Measured(
        seconds=seconds,
        tokens=tokens,
        rounds=5,
        drafted=10,
        accepted=5,
        draft_steps=10,
        equal=equal,
    )


def made_up(domain: str, **seconds: float) -> PromptCells:
    """Three repeats, the last of which met a busy machine."""
    names = {"plain": "plain", "one": "γ = 1", "two": "γ = 2", "peer": "peer", "ours": "adaptive"}
    return PromptCells(
        domain,
        {
            names[arm]: [cell(value), cell(value), cell(9 * value, equal=False)]
            for arm, value in seconds.items()
        },
    )


def test_ratios_are_of_seconds_per_token_and_the_best_fixed_gamma_is_of_each_domain() -> None:
    prompts = [
        made_up("a", plain=2.0, one=1.0, two=1.6, peer=1.0, ours=0.8),
        made_up("b", plain=2.0, one=1.8, two=1.0, peer=1.5, ours=1.0),
    ]
    total, domains = compared(prompts, greedy=True)
    assert [domains[name].best_fixed for name in "ab"] == ["γ = 1", "γ = 2"]
    assert total.best_fixed == "γ = 2"
    assert total.adaptive_over["γ = 2"].value == pytest.approx(2.6 / 1.8)
    assert total.adaptive_over["peer"].value == pytest.approx(2.5 / 1.8)
    assert domains["b"].adaptive_over["γ = 2"].value == pytest.approx(1.0)
    assert total.adaptive_over["peer"].low == pytest.approx(1.25), "the one prompt alone"
    assert total.adaptive_over["peer"].high == pytest.approx(1.5), "the other alone"
    ours = total.arms[-1]
    assert ours.speedup.value == pytest.approx(4.0 / 1.8)
    assert (ours.equal, ours.outputs) == (4, 6)
    assert compared(prompts, greedy=False)[0].arms[0].equal is None


def test_an_interval_is_narrow_where_prompts_agree_though_they_differ_in_length() -> None:
    base = np.array([[1.0, 10.0], [20.0, 100.0], [5.0, 60.0]])
    found = ratio(base, base * [0.5, 1.0])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    longer = ratio(base, base * [1.0, 2.0])
    assert longer.value == pytest.approx(2.0), "twice the tokens in the same time"


def test_the_cost_of_a_decision_is_clocked_in_the_loop_and_teaches_the_policy_nothing() -> None:
    """Most of a tiny draft's step is the loop's own work; 2 % is claimed of a real one."""
    decoder = make_decoder(tiny_llama(), FixedLookahead(0))
    policy = adaptive()
    before = policy.snapshot()
    cost = decision_cost(decoder, policy, PROMPTS[0], PARAMS)
    assert policy.snapshot() == before
    assert cost is not None
    assert 1.0 < cost.decision_us < 3000.0
    assert cost.share == pytest.approx(cost.decision_us / cost.draft_step_us)
    never = AdaptiveLookahead(
        predictor(), table(replace(CHEAP, draft_step=9.0)), config=AdaptiveConfig(probe_share=0.0)
    )
    assert decision_cost(decoder, never, PROMPTS[0], PARAMS) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gammas": ()}, "gammas must be distinct, at least one"),
        ({"gammas": (0,)}, "gammas must be an integer >= 1, got 0"),
        ({"peers": ("guess",)}, "peers must be of heuristic, .*, got 'guess'"),
        ({"repeats": 0}, "repeats must be"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, given: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        config(tmp_path, **given)
