"""The policy as a folder, as a process without scikit-learn, and in the real loop."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from controller_sim import (
    CHEAP,
    GREEDY,
    STAIRS,
    Machine,
    Text,
    predictor,
    simulate,
    table,
)
from foredraft.controller import (
    AdaptiveConfig,
    AdaptiveLookahead,
    LatencyConfig,
    measure_latency,
)
from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
    load_lookahead,
)
from toys import tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_saved_policy_decides_as_the_new_one(tmp_path: Path) -> None:
    """B51. Equal γ in every round of a simulated text."""
    config = AdaptiveConfig(probe_share=0.005)
    policy = AdaptiveLookahead(predictor(), table(STAIRS), gamma_max=6, config=config)
    policy.save(tmp_path / "lookahead")
    loaded = AdaptiveLookahead.load(tmp_path / "lookahead")
    through_spec = load_lookahead(tmp_path / "lookahead")
    assert isinstance(through_spec, AdaptiveLookahead)
    assert (loaded.gamma_max, loaded.config, loaded.latency) == (6, config, policy.latency)
    text = Text.make(length=600, mean=0.4, slope=1.7, seed=6)
    runs = [
        simulate(one, text, Machine(STAIRS), request_tokens=100)
        for one in (policy, loaded, through_spec)
    ]
    assert len(runs[0].gammas) > 200
    assert runs[0].gammas == runs[1].gammas == runs[2].gammas
    names = sorted(path.name for path in (tmp_path / "lookahead").iterdir())
    assert names == ["latency.json", "lookahead.json", "predictor.json"]
    assert json.loads((tmp_path / "lookahead/lookahead.json").read_text())["policy"] == "adaptive"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("lookahead.json", {"policy": "other"}, "expected policy 'adaptive'"),
        ("lookahead.json", {"schema": 7}, "of 7"),
        ("lookahead.json", {"gamma_max": 0}, "gamma_max must be"),
        ("lookahead.json", {"gamma_max": 30}, "gamma_max must be an integer >= 1 and <= 8, got 30"),
        ("lookahead.json", {"config": {"probe_share": 2.0}}, "probe_share must be"),
        ("lookahead.json", {"config": {"unknown": 1}}, "unknown"),
        ("predictor.json", {"schema": 7}, "schema is 7"),
        ("latency.json", {"schema": 7}, "schema is 7, this version reads 1 and 2"),
    ],
)
def test_a_changed_folder_is_refused(
    tmp_path: Path, file: str, change: dict[str, object], words: str
) -> None:
    AdaptiveLookahead(predictor(), table(CHEAP)).save(tmp_path)
    path = tmp_path / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=words):
        AdaptiveLookahead.load(tmp_path)


def test_a_missing_file_and_other_models_are_refused(tmp_path: Path) -> None:
    AdaptiveLookahead(predictor(), table(CHEAP)).save(tmp_path)
    with pytest.raises(ValueError, match="draft is '', but the draft in use is 'd9'"):
        AdaptiveLookahead.load(tmp_path, draft="d9")
    (tmp_path / "predictor.json").unlink()
    with pytest.raises(ValueError, match=r"predictor\.json"):
        AdaptiveLookahead.load(tmp_path)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="gamma_max must be an integer >= 1 and <= 8, got 9"):
        AdaptiveLookahead(predictor(), table(CHEAP), gamma_max=9)
    with pytest.raises(ValueError, match="slowdown_budget must be a number"):
        AdaptiveConfig(slowdown_budget=-1.0)
    with pytest.raises(ValueError, match="refresh_rounds must be an integer >= 2, got 0"):
        AdaptiveConfig(refresh_rounds=0)


RUN_WITHOUT_SKLEARN = """
import sys
import foredraft.controller
assert "torch" not in sys.modules, "settings must be readable without torch"
import torch
from foredraft.controller import AdaptiveLookahead
from foredraft.spec import RoundStart, SamplingParams
policy = AdaptiveLookahead.load(sys.argv[1])
policy.begin_request(SamplingParams(temperature=0.0))
assert policy.begin_round(RoundStart(context_length=10, gamma_limit=8)) > 0
assert policy.wants_step(1)
policy.wants_token(1, torch.randn(50))
print([name for name in sys.modules if name.split(".")[0] == "sklearn"])
"""


def test_running_a_policy_needs_no_scikit_learn(tmp_path: Path) -> None:
    AdaptiveLookahead(predictor(), table(CHEAP)).save(tmp_path)
    threads = torch.get_num_threads()
    script = RUN_WITHOUT_SKLEARN.replace(
        "import torch\n", f"import torch; torch.set_num_threads({threads})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_decision_costs_little() -> None:
    """Best of five medians, so that a busy machine does not fail it; V = 16,384, signals included."""
    policy = AdaptiveLookahead(predictor(), table(CHEAP))
    policy.begin_request(GREEDY)
    row = torch.randn(16_384, generator=torch.Generator().manual_seed(0))
    policy.begin_round(RoundStart(context_length=10, gamma_limit=8))
    medians = []
    for _ in range(5):
        seconds = []
        for _ in range(60):
            begun = time.perf_counter()
            policy.wants_token(1, row)
            policy.wants_step(2)
            seconds.append(time.perf_counter() - begun)
        medians.append(statistics.median(seconds))
    assert min(medians) < 300e-6


def test_in_the_real_loop_the_output_is_that_of_plain_decoding() -> None:
    target = tiny_llama(layers=3)
    draft = ModelDrafter(tiny_llama(layers=3), width=260)  # the same weights: always right
    decoder = SpeculativeDecoder(target, None, draft)
    config = LatencyConfig(context_length=40, repeats=2, max_passes=1)
    latency = measure_latency(decoder, 4, config=config)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    prompts = [[1, 2, 3], [7] * 20]
    plain = decoder.with_lookahead(FixedLookahead(0)).generate(prompts, params)
    # Made-up costs, so that drafting pays whatever this machine does.
    policies = [
        AdaptiveLookahead(predictor(), latency, config=AdaptiveConfig(slowdown_budget=1e6)),
        AdaptiveLookahead(predictor(), table(CHEAP), config=AdaptiveConfig(slowdown_budget=1e6)),
    ]
    for policy in policies:
        outputs = decoder.with_lookahead(policy).generate(prompts, params)
        assert [one.token_ids for one in outputs] == [one.token_ids for one in plain]
        sampled = SamplingParams(temperature=1.0, max_tokens=30, seed=1, ignore_eos=True)
        assert len(decoder.with_lookahead(policy).generate(prompts, sampled)) == 2
    assert sum(policies[1].kinds.values()) > 20
