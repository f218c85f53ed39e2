"""The latency table: how it is measured, and that it is not used where it does not hold."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.controller import LatencyConfig, LatencyTable, MachineFingerprint, measure_latency
from foredraft.controller.measuring import _measure
from foredraft.spec import ModelDrafter, RoundOutcome, SpeculativeDecoder
from toys import tiny_llama

TABLE = LatencyTable(
    draft_step_seconds=0.007,
    verify_seconds=(0.089, 0.142, 0.204, 0.160),
    overhead_seconds=0.001,
    context_length=128,
    machine=MachineFingerprint.here("cpu"),
    target="t1",
    draft="d1",
)
NOTHING = torch.empty(0, 2)


class ScriptedRounds:
    """Rounds with known seconds; every `busy`-th takes five times as long."""

    def __init__(self, *, busy: int = 0, calm_after: int = 10**9) -> None:
        self.count = 0
        self.gammas: list[int] = []
        self._busy, self._calm_after = busy, calm_after

    def __call__(self, gamma: int) -> RoundOutcome:
        self.count += 1
        self.gammas.append(gamma)
        slow = 5.0 if self._busy and self.count % self._busy == 0 else 1.0
        slow = 1.0 if self.count > self._calm_after else slow
        draft, verify = gamma * 0.01 * slow, TABLE.verify_seconds[gamma] * slow
        return RoundOutcome(
            drafted=gamma,
            accepted=0,
            draft_seconds=draft,
            verify_seconds=verify,
            round_seconds=draft + verify + 0.003,
            draft_steps=gamma,
            target_logits=NOTHING,
            target_probs=NOTHING,
            draft_probs=NOTHING,
        )


def test_every_gamma_is_run_in_turn_and_the_parts_come_out() -> None:
    rounds = ScriptedRounds()
    cells, spread = _measure(rounds, 3, LatencyConfig(repeats=5))
    assert rounds.gammas == [0, 1, 2, 3] * 6, "one warm-up turn and five measured ones, interleaved"
    assert spread == pytest.approx(1.0)
    assert cells["draft"] == pytest.approx([0.01] * 15)
    assert cells["verify 3"] == pytest.approx([0.204] * 5)
    assert cells["overhead"] == pytest.approx([0.003] * 20)


def test_a_contended_machine_is_measured_again_up_to_the_limit() -> None:
    rounds = ScriptedRounds(busy=2)  # γ = 1 and 3 always busy, draft steps half of the time
    config = LatencyConfig(repeats=4, max_passes=3, max_spread=1.3)
    _measure(rounds, 3, config)
    quiet = len(rounds.gammas)
    noisy = ScriptedRounds(busy=3)
    _, spread = _measure(noisy, 3, replace(config, quantile=0.25))
    assert len(noisy.gammas) >= quiet
    assert Counter(noisy.gammas)[0] <= 1 + 4 * 3
    assert spread >= 1.0


def test_the_measurement_stops_when_the_machine_calms_down() -> None:
    config = LatencyConfig(repeats=3, max_passes=50, max_spread=1.3)
    busy = [ScriptedRounds(busy=3, calm_after=after) for after in (0, 30)]
    for rounds in busy:
        _, spread = _measure(rounds, 3, config)
        assert spread <= 1.3
    assert len(busy[0].gammas) == 4 + 12


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    draft = ModelDrafter(tiny_llama(seed=1, layers=1), width=260)
    return SpeculativeDecoder(tiny_llama(layers=3), None, draft)


def test_real_rounds_are_measured_at_the_context_asked_for(decoder: SpeculativeDecoder) -> None:
    config = LatencyConfig(context_length=40, repeats=2, max_passes=1)
    table = measure_latency(decoder, 3, prompt=[5, 6, 7], target="t", draft="d", config=config)
    assert table.gamma_max == 3
    assert table.context_length == 40
    assert (table.target, table.draft) == ("t", "d")
    assert 0.0 < table.draft_step_seconds < table.verify_seconds[0] * 3
    assert table.overhead_seconds > 0.0
    assert decoder.target.cover == 39, "every round must be taken back"
    assert table.machine == MachineFingerprint.here("cpu")


def test_what_cannot_be_measured_is_refused(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(ValueError, match="decoder must have a draft model"):
        measure_latency(SpeculativeDecoder(tiny_llama()), 3)
    with pytest.raises(ValueError, match=r"must be at most 511, .* got 600 \+ 3"):
        measure_latency(decoder, 3, config=LatencyConfig(context_length=600))
    with pytest.raises(ValueError, match="gamma_max must be an integer >= 1, got 0"):
        measure_latency(decoder, 0)
    with pytest.raises(ValueError, match="prompt must have at least one"):
        measure_latency(decoder, 3, prompt=[])
    with pytest.raises(ValueError, match=r"quantile must be a number in \[0, 1\], got 2"):
        LatencyConfig(quantile=2)


def test_a_saved_table_is_read_back(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "latency.json")
    assert LatencyTable.load(tmp_path / "latency.json", target="t1", draft="d1") == TABLE
    assert TABLE.cost_ratio == pytest.approx(0.007 / 0.089)
    assert TABLE.costs(2).verify == (0.089, 0.142, 0.204)
    with pytest.raises(ValueError, match="gamma_max must be an integer >= 1 and <= 3, got 4"):
        TABLE.costs(4)


@pytest.mark.parametrize(
    ("elsewhere", "words"),
    [
        ({"threads": 512}, "measured with threads"),
        ({"torch_version": "1.0"}, "measured with torch_version = '1.0'"),
        ({"device": "cpu of another machine"}, "measured with device"),
    ],
)
def test_a_table_of_another_machine_is_refused(
    tmp_path: Path, elsewhere: dict[str, Any], words: str
) -> None:
    path = tmp_path / "latency.json"
    replace(TABLE, machine=replace(TABLE.machine, **elsewhere)).save(path)
    with pytest.raises(ValueError, match=words) as error:
        LatencyTable.load(path)
    assert str(path) in str(error.value)
    assert "measure again" in str(error.value)


def test_a_table_of_other_models_is_refused(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "latency.json")
    with pytest.raises(ValueError, match="draft = 'd1', but here it is 'd2'"):
        LatencyTable.load(tmp_path / "latency.json", draft="d2")


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 9},
        {"verify_seconds": [0.1]},
        {"verify_seconds": [0.1, -0.1]},
        {"draft_step_seconds": None},
        {"overhead_seconds": -1.0},
        {"machine": "here"},
        {"surprise": 1},
        {"context_length": 0},
        {"device": "warp"},
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "latency.json"
    TABLE.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="not a usable latency table"):
        LatencyTable.load(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "latency.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a usable latency table"):
        LatencyTable.load(path)
    with pytest.raises(ValueError, match="not a usable latency table"):
        LatencyTable.load(tmp_path / "absent.json")
