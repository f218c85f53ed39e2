"""The decode benchmark on tiny models and a fake clock: that its figures are what they say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import decode
import foredraft.spec.packed as packed_module
from decode import run_benchmark
from decode_arms import Arm, SpreadHead, as_assistant
from decode_config import DecodeBenchmark
from decode_figures import ArmFigures, Ratio, Run, print_table, ratio_of
from decode_lineup import left_out, make_arms
from decode_measuring import compare, measure
from decode_probes import ForwardTimer, HostReads, LiveTensors, Marks, cache_bytes, weight_bytes
from foredraft.data.prompts import split_of
from foredraft.spec import (
    DraftInfo,
    PackedLinear,
    cut_head,
    layer_kernels,
    load_causal_lm,
    load_tokenizer,
    model_fingerprint,
    pack_linears,
    save_kept_tokens,
    tokenizer_hash,
)
from toys import byte_tokenizer, noisy_copy, tiny_llama

ALWAYS = 1e9  # for GAIN of packing: whatever the measurement says


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


def scripted(
    name: str, clock: FakeClock, *, prefill: float, rounds: Sequence[int], seconds: float,
    token: int = 7, calls: list[str] | None = None, bases: tuple[str, ...] = (),
) -> Arm:  # fmt: skip
    """An arm that takes `prefill` and then `seconds` a round, each of which emits so many tokens."""

    def decode_(prompt: Sequence[int], marks: Marks | None) -> list[int]:
        if calls is not None:
            calls.append(name)
        clock.time += prefill
        for emitted in rounds:
            clock.time += seconds
            if marks is not None:
                marks.round(emitted)
        return [token] * sum(rounds)

    return Arm(name, "", (), decode_, bases)


def test_b92_speed_excludes_the_prompt_and_every_arm_is_warmed_up_once() -> None:
    clock, calls = FakeClock(), []  # type: FakeClock, list[str]
    arms = [
        scripted("generate", clock, prefill=1.0, rounds=[1] * 9, seconds=0.010, calls=calls),
        scripted("ours", clock, prefill=3.0, rounds=[3] * 3, seconds=0.020, calls=calls),
    ]
    runs = measure(arms, [[1], [2]], repeats=3, clock=clock)
    assert sorted(calls[:2]) == ["generate", "ours"]
    assert len(calls) == 2 + 2 * 3 * 2
    base, ours = compare(arms, runs, greedy=True, exact=True)
    assert base.tokens_per_second == pytest.approx(8 / 0.080)
    assert ours.tokens_per_second == pytest.approx(6 / 0.040)
    assert base.first_round_ms == pytest.approx(1010.0)
    assert base.call_tokens_per_second == pytest.approx(9 / 1.09)
    (ratio,) = ours.ratios
    assert ratio.ratio == pytest.approx(1.5)
    assert (ratio.worst, ratio.best) == pytest.approx((1.5, 1.5))
    assert ours.block_efficiency == 3.0
    assert base.ratios == []


def test_b92_no_ratio_is_given_where_greedy_outputs_differ() -> None:
    clock = FakeClock()
    arms = [
        scripted("generate", clock, prefill=0.0, rounds=[1, 1], seconds=1.0),
        scripted("ours", clock, prefill=0.0, rounds=[1, 1], seconds=0.5, token=8),
    ]
    runs = measure(arms, [[1]], repeats=2, clock=clock)
    exact = compare(arms, runs, greedy=True, exact=True)[1]
    assert (exact.equal_outputs, exact.outputs, exact.ratios) == (0, 1, [])
    assert compare(arms, runs, greedy=True, exact=False)[1].ratios[0].ratio == pytest.approx(2.0)


def test_an_arm_is_held_against_its_bases_that_ran_and_said_the_same() -> None:
    clock = FakeClock()
    arms = [
        scripted("generate", clock, prefill=0.0, rounds=[1, 1], seconds=1.0),
        scripted("right", clock, prefill=0.0, rounds=[1, 1], seconds=0.8),
        scripted("wrong", clock, prefill=0.0, rounds=[1, 1], seconds=0.4, token=8),
        scripted(
            "ours", clock, prefill=0.0, rounds=[1, 1], seconds=0.5,
            bases=("right", "wrong", "did not run"),
        ),
    ]  # fmt: skip
    runs = measure(arms, [[1], [2]], repeats=3, clock=clock)
    ours = compare(arms, runs, greedy=True, exact=True)[-1]
    assert [ratio.over for ratio in ours.ratios] == ["generate", "right"]
    assert [ratio.ratio for ratio in ours.ratios] == pytest.approx([2.0, 1.6])
    loose = compare(arms, runs, greedy=True, exact=False)[-1]
    assert [ratio.over for ratio in loose.ratios] == ["generate", "right", "wrong"]


def test_ratio_spreads_over_repeats_paired_within_each() -> None:
    # The machine slows two-fold from repeat to repeat; the pairs tell 2, 3 and 4.
    base = [[run_of(6.0, 10), run_of(12.0, 10), run_of(24.0, 10)]] * 2
    ours = [[run_of(3.0, 10), run_of(4.0, 10), run_of(6.0, 10)]] * 2
    ratio = ratio_of("generate", base, ours)
    assert ratio is not None
    assert (ratio.worst, ratio.ratio, ratio.best) == pytest.approx((2.0, 3.0, 4.0))


def test_the_tables_say_what_runs_on_which_layers() -> None:
    def figures(name: str, target: dict[str, int], draft: dict[str, int] | None, *over: str) -> Any:
        ratios = [
            Ratio(over=base, ratio=1.25, worst=1.0, best=1.5, low=1.1, high=1.4) for base in over
        ]
        return ArmFigures(
            name=name, about="told", target_layers=target, draft_layers=draft, ratios=ratios,
            tokens_per_second=9.0, call_tokens_per_second=9.0, first_round_ms=1.0, tokens=9, rounds=3,
            block_efficiency=3.0, equal_outputs=1, outputs=1,
        )  # fmt: skip

    console = Console(record=True, width=140)
    arms = [
        figures("generate", {"plain": 7}, None),
        figures("assisted", {"plain": 7}, {"plain": 3}),
        figures("drop-in", {"plain": 7}, {"float16": 3}),
        figures("ours", {"oneDNN blocks": 7}, {"float16": 2, "plain": 1}, "generate", "assisted"),
    ]
    print_table(arms, console)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    for row in (
        "generate plain 9.0", "assisted plain + plain 9.0", "drop-in plain + packed 9.0",
        "ours packed + packed 9.0",
        "ours packed + packed generate plain 1.25 1.00–1.50 1.10–1.40",
        "ours packed + packed assisted plain + plain 1.25 1.00–1.50 1.10–1.40",
        "generate: told; target's linear layers: 7 plain",
        "ours: told; target's linear layers: 7 oneDNN blocks; draft's linear layers: 2 float16, 1 plain",
    ):  # fmt: skip
        assert any(line.startswith(row) for line in lines), row


def test_order_of_the_arms_changes_and_repeats_interleave() -> None:
    clock, calls = FakeClock(), []  # type: FakeClock, list[str]
    arms = [
        scripted(name, clock, prefill=0.0, rounds=[1], seconds=1.0, calls=calls)
        for name in ("generate", "a", "b")
    ]
    measure(arms, [[1]], repeats=8, clock=clock)
    trials = [tuple(calls[i : i + 3]) for i in range(3, len(calls), 3)]
    assert all(sorted(trial) == ["a", "b", "generate"] for trial in trials)
    assert len(set(trials)) > 2


def run_of(seconds: float, tokens: int) -> Run:
    return Run(
        tokens=[0] * tokens, rounds=tokens, first_tokens=0, first_seconds=0.0, seconds=seconds
    )


def test_ratio_is_paired_and_its_interval_is_over_prompts() -> None:
    base = [[run_of(t, 10), run_of(2 * t, 10)] for t in (1.0, 4.0, 9.0)]
    ours = [[run_of(t / 2, 10), run_of(t, 10)] for t in (1.0, 4.0, 9.0)]
    ratio = ratio_of("generate", base, ours)
    assert ratio is not None
    # Prompts differ nine-fold and repeats two-fold; their pairs do not.
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    mixed = ratio_of("generate", base, [ours[0], base[1], base[2]])
    assert mixed is not None
    assert 1.0 <= mixed.low < mixed.ratio < mixed.high <= 2.0
    assert ratio_of("generate", [[run_of(1.0, 0)]], [[run_of(1.0, 0)]]) is None


@pytest.mark.parametrize("inference", [False, True])
def test_host_reads_counts_each_way_to_read_a_value(inference: bool) -> None:
    with torch.inference_mode(inference):
        values = torch.arange(4.0)
    reads: dict[str, Any] = {
        "item": lambda: values[1].item(),
        "bool": lambda: bool(values[1] > 0),
        "int": lambda: int(values[1]),
        "float": lambda: float(values[1]),
        "tolist": lambda: values.tolist(),
        "numpy": lambda: values.numpy(),
        "nonzero": lambda: values.nonzero(),
        "mask": lambda: values[values > 1],
    }
    for name, read in reads.items():
        with HostReads(torch.device("cpu")) as counter, torch.inference_mode(inference):
            read()
        assert counter.count == 1, name
    with HostReads(torch.device("cpu")) as counter, torch.inference_mode():
        _ = (values.softmax(-1) * 2).argmax(-1)
    assert counter.count == 0


def test_live_tensors_follow_the_peak() -> None:
    known = torch.zeros(1000)
    with LiveTensors([known]) as live, torch.inference_mode():
        view = known[10:]
        assert live.peak == 0
        one = torch.zeros(256)  # 1 KiB
        two = one + 1
        del one
        three = two + 1  # two of them live
        _ = three[5:]
        del two, three, view
        torch.zeros(128)
    assert live.peak == 2 * 1024


def test_forward_timer_adds_up_each_models_forwards() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    timer = ForwardTimer([first, second], torch.device("cpu"))
    with timer.running():
        first(torch.zeros(1, 2))
        assert timer.seconds()[0] > 0.0
        assert timer.seconds()[1] == 0.0
        timer.reset()
        second(torch.zeros(1, 2))
    measured = timer.seconds()
    assert measured[0] == 0.0 < measured[1]
    second(torch.zeros(1, 2))
    assert timer.seconds() == measured


def test_bounds_of_memory() -> None:
    model = tiny_llama()
    twin = as_assistant(model, None, 260)
    assert weight_bytes([model]) == 4 * sum(weight.numel() for weight in model.parameters())
    assert weight_bytes([model, twin]) == weight_bytes([model])  # shared
    assert (
        cache_bytes(model, 10) == 2 * 2 * 2 * 8 * 10 * 4
    )  # kinds, layers, heads, size, tokens, bytes


def test_assistant_shares_weights_and_spreads_a_cut_head() -> None:
    draft, ids = tiny_llama(layers=1), torch.tensor([[1, 2, 3]])
    kept = torch.arange(0, 260, 2)
    whole = draft(ids).logits
    cut_head(draft, kept)
    assistant = as_assistant(draft, kept, 260)
    assert isinstance(assistant.get_output_embeddings(), SpreadHead)
    logits = assistant(ids).logits
    torch.testing.assert_close(logits[..., kept], whole[..., kept])
    assert (logits[..., 1::2] == -torch.inf).all()
    assistant.generation_config.num_assistant_tokens = 3
    assert draft.generation_config.num_assistant_tokens != 3


def test_an_assistant_keeps_the_layers_that_the_draft_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_module, "GAIN", ALWAYS)
    draft, kept = tiny_llama(layers=1), torch.arange(0, 260, 2)
    cut_head(draft, kept)
    if pack_linears(draft) == 0:
        pytest.skip("this torch has no oneDNN")
    assert layer_kernels(as_assistant(draft, kept, 260)) == layer_kernels(draft)
    assert "plain" not in layer_kernels(draft)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A target, its draft with a cut head, and prompts."""
    folder = tmp_path_factory.mktemp("models")
    target, tokenizer = tiny_llama(context=256, eos_token_id=257), byte_tokenizer()
    draft = noisy_copy(target, scale=0.02)
    kept = torch.arange(0, 260)[torch.arange(260) % 13 != 0]
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    DraftInfo(
        target=str(folder / "target"),
        target_fingerprint=model_fingerprint(target),
        tokenizer_hash=tokenizer_hash(tokenizer),
        kept_tokens=len(kept),
    ).save(folder / "draft")
    save_kept_tokens(folder / "draft", kept)
    texts = (f"Count to {number}" for number in range(99))
    lines = [{"domain": "chat", "prompt": text} for text in texts if split_of(text) == "test"][
        :2
    ]  # the benchmark reads the split "test"
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder / "target"), str(folder / "draft"), str(path)


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack whatever this machine measures."""
    monkeypatch.setattr(packed_module, "GAIN", ALWAYS)
    if pack_linears(tiny_llama()) == 0:
        pytest.skip("this torch has no oneDNN")


@pytest.mark.usefixtures("packing")
def test_transformers_arms_run_on_plain_twins_that_share_our_weights(
    folders: tuple[str, str, str],
) -> None:
    name, draft, _ = folders
    target, tokenizer = load_causal_lm(name), load_tokenizer(name)
    pack_linears(target)
    config = DecodeBenchmark(target=name, draft=draft, gammas=(2,), heads=("cut", "whole"))
    arms = {arm.name: arm for arm in make_arms(config, target, tokenizer)}
    packed = {
        "generate": "n", "generate, packed": "y", "lookup": "n", "ours γ=0": "y", "ours γ=2": "yy",
        "assisted γ=2": "nn", "assisted heuristic": "nn", "assisted confidence": "nn",
        "assisted γ=2, whole head": "nn", "assisted heuristic, whole head": "nn",
        "assisted confidence, whole head": "nn", "assisted γ=2, packed": "yy", "drop-in γ=2": "ny",
    }  # fmt: skip
    assert arms.keys() == packed.keys()
    for each, arm in arms.items():
        marks = ["n" if layer_kernels(m).keys() == {"plain"} else "y" for m in arm.models]
        assert "".join(marks) == packed[each], each
        if "n" in marks:
            plain = arm.models[marks.index("n")]
            assert not any(isinstance(module, PackedLinear) for module in plain.modules())
    for each in ("assisted γ=2", "assisted γ=2, packed", "drop-in γ=2"):
        assert weight_bytes([*arms["ours γ=2"].models, *arms[each].models]) == weight_bytes(
            arms["ours γ=2"].models
        )
    whole = arms["assisted γ=2, whole head"].models[1]
    head = whole.get_output_embeddings().weight  # type: ignore[operator]
    assert len(head) == 260
    assert weight_bytes([*arms["ours γ=2"].models, whole]) == (
        weight_bytes(arms["ours γ=2"].models) + head.numel() * head.element_size()
    )
    assert left_out(config, list(arms.values())) == ["adaptive: no lookahead is given"]


def test_no_arm_is_called_packed_where_nothing_was(
    folders: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_module, "GAIN", 0.0)
    target, draft, prompts = folders
    config = DecodeBenchmark(
        target=target, draft=draft, prompts=prompts, domains=("chat",), max_tokens=4, gammas=(2,),
        repeats=1, arms=("generate-packed", "assisted-packed", "ours"), output=str(tmp_path),
        threads=1,
    )  # fmt: skip
    console = Console(record=True, width=140)
    content = run_benchmark(config, console)
    assert [arm["name"] for arm in content["arms"]] == ["generate", "ours γ=2"]
    assert [line.split(":")[0] for line in content["left_out"]] == [
        "generate-packed",
        "assisted-packed",
    ]
    assert "left out: assisted-packed" in console.export_text()
    ours = content["arms"][1]
    assert ours["target_layers"].keys() == ours["draft_layers"].keys() == {"plain"}


@pytest.mark.usefixtures("packing")
def test_benchmark_runs_end_to_end(folders: tuple[str, str, str], tmp_path: Path) -> None:
    target, draft, prompts = folders
    config = DecodeBenchmark(
        target=target, draft=draft, prompts=prompts, domains=("chat",), max_tokens=6, gammas=(2,),
        repeats=1, heads=("cut", "whole"), output=str(tmp_path), threads=1,
    )  # fmt: skip
    console = Console(record=True, width=140)
    content = run_benchmark(config, console)
    arms = {arm["name"]: arm for arm in content["arms"]}
    assert set(arms) == {
        "generate", "generate, packed", "assisted γ=2", "assisted heuristic", "assisted confidence",
        "assisted γ=2, whole head", "assisted heuristic, whole head", "assisted γ=2, packed",
        "assisted confidence, whole head", "lookup", "ours γ=0", "ours γ=2", "drop-in γ=2",
    }  # fmt: skip
    for arm in arms.values():
        assert 0.0 <= arm["outside_share"] < 1.0
        assert arm["outside_share"] + arm["target_share"] + arm["draft_share"] == pytest.approx(1.0)
        assert arm["host_reads_per_round"] > 0.0
        assert 0.5 < arm["peak_bytes"] / arm["bound_bytes"] < 3.0
        drafts = arm["name"] not in ("generate", "generate, packed", "lookup", "ours γ=0")
        assert (arm["draft_share"] > 0.0) == drafts
        assert (arm["draft_layers"] is not None) == drafts
        assert arm["equal_outputs"] == arm["outputs"] == 1
    assert arms["ours γ=2"]["block_efficiency"] > 1.0
    over = {name: [ratio["over"] for ratio in arm["ratios"]] for name, arm in arms.items()}
    assert over["generate"] == []
    assert over["ours γ=0"] == ["generate", "generate, packed"]
    assert over["ours γ=2"] == [
        "generate", "generate, packed", "assisted γ=2", "assisted γ=2, packed",
    ]  # fmt: skip
    assert over["assisted γ=2, packed"] == ["generate", "generate, packed", "assisted γ=2"]
    assert over["drop-in γ=2"] == ["generate", "assisted γ=2"]
    assert arms["assisted γ=2"]["target_layers"].keys() == {"plain"}
    assert arms["assisted γ=2, packed"]["draft_layers"] == arms["ours γ=2"]["draft_layers"]
    assert "head cut to" in arms["assisted γ=2"]["about"]
    assert json.loads((tmp_path / "decode.json").read_text())["settings"]["gammas"] == [2]
    assert "ours γ=2" in console.export_text()


def test_benchmark_samples_and_takes_only_the_arms_asked_for(
    folders: tuple[str, str, str], tmp_path: Path
) -> None:
    target, draft, prompts = folders
    config = DecodeBenchmark(
        target=target, draft=draft, prompts=prompts, domains=("chat",), max_tokens=8, gammas=(1, 3),
        repeats=2, arms=("ours", "assisted"), output=str(tmp_path), threads=1, temperature=0.8,
    )  # fmt: skip
    content = run_benchmark(config, Console(record=True, width=140))
    names = ["generate", "assisted γ=1", "assisted γ=3", "ours γ=1", "ours γ=3"]
    assert [arm["name"] for arm in content["arms"]] == names
    assert {arm["equal_outputs"] for arm in content["arms"]} == {None}  # not to be compared
    assert all(arm["ratios"] for arm in content["arms"][1:])
    for name, gamma in (("assisted γ=1", 1), ("ours γ=1", 1), ("assisted γ=3", 3), ("ours γ=3", 3)):
        run = content["runs"][name][0][0]
        assert run["tokens"] / run["rounds"] <= gamma + 1
    assert content["runs"]["ours γ=3"][0][0]["first_tokens"] > 2  # its γ is not that of the others
    for runs in content["runs"].values():
        assert runs[0][0]["tokens"] == runs[0][1]["tokens"]  # seeded alike


def test_b91_every_option_of_the_command_line_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(decode, "run_benchmark", lambda config, console: heard.append(config))
    given = {
        "target": "t", "draft": "d", "lookahead": "l", "output": "o", "arms": ("ours",),
        "heads": ("whole",), "prompts": "p", "domains": ("code",), "prompts_per_domain": 3,
        "max_tokens": 9, "gammas": (1, 2), "temperature": 0.5, "repeats": 2, "max_seconds": 1.5,
        "seed": 4, "device": "cuda", "dtype": "bfloat16", "threads": 2,
    }  # fmt: skip
    assert set(given) == {field.name for field in fields(DecodeBenchmark)}
    command = [f"--{k}={json.dumps(v) if isinstance(v, tuple) else v}" for k, v in given.items()]
    assert decode.main(command) == 0
    (config,) = heard
    for name, value in given.items():
        assert getattr(config, name) == value
        default = DecodeBenchmark.__dataclass_fields__[name].default
        assert value != default, f"{name}: the test gives the default"
    assert decode.main(["--target=t", "--draft=d", "--arms=[ours,what]"]) == 2
    error = capsys.readouterr().err
    assert "arms must be of generate, generate-packed, assisted, assisted-packed, " in error
    assert error.rstrip().endswith("drop-in, got 'what'")
    assert decode.main(["--target=t", "--draft=d", "--arms=[adaptive]"]) == 2
    assert "adaptive needs lookahead" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        decode.main(["--target=t", "--draft=d", "--gama=3"])
