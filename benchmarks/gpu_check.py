"""Checks kernels and CUDA graphs on a card and measures what they are worth, in one run under 8 minutes.

    make view && PYTHONPATH=.view:tests python benchmarks/gpu_check.py --output runs/gpu_check.json

Needs torch, transformers, triton and a card with 24 GB; no weights, no network. `--tiny` runs the same
script on a CPU with tiny models: a rehearsal whose figures mean nothing. No card: says so, and is done.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from foredraft.spec import FixedLookahead, ModelDrafter, SamplingParams, SpeculativeDecoder
from foredraft.spec.device_loop import DeviceDecoder
from foredraft.spec.graphs import GraphRunner, StaticModel, graph_pool, token_bucket
from foredraft.spec.kernels import HAS_TRITON, verify_block, verify_block_reference
from gpu_pair import (
    EIGHT_BILLION,
    HALF_BILLION,
    TINY_DRAFT,
    TINY_TARGET,
    VOCABULARY,
    Shape,
    make_pair,
    weight_bytes,
)
from gpu_timing import Report, median_seconds, synchronize
from verify_cases import Case, random_case, special_cases


@dataclass(frozen=True)
class Plan:
    """Sizes of a run."""

    device: torch.device
    dtype: torch.dtype
    target: Shape
    draft: Shape
    vocabulary: int
    vocabularies: tuple[int, ...]  # of the kernel checks
    copy_bytes: int
    gammas: tuple[int, ...]
    acceptance: float
    prompt: int
    new_tokens: int
    capacity: int
    repeats: int  # of each arm, at most
    arms_seconds: float  # no new repeat is begun that would end later
    decodes: tuple[int, ...]  # lengths that graphs are checked at
    calls: int  # of each timed forward


CARD = Plan(
    device=torch.device("cuda"), dtype=torch.bfloat16, target=EIGHT_BILLION, draft=HALF_BILLION,
    vocabulary=VOCABULARY, vocabularies=(1_000, 32_000, VOCABULARY, 262_144),
    copy_bytes=4 * 2**30, gammas=(4, 8), acceptance=0.8, prompt=128, new_tokens=128, capacity=512,
    repeats=5, arms_seconds=60.0, decodes=(12, 40, 40, 200), calls=20,
)  # fmt: skip
TINY = Plan(
    device=torch.device("cpu"), dtype=torch.float32, target=TINY_TARGET, draft=TINY_DRAFT,
    vocabulary=200, vocabularies=(50,), copy_bytes=2**20, gammas=(2,), acceptance=0.8, prompt=6,
    new_tokens=12, capacity=32, repeats=1, arms_seconds=60.0, decodes=(6, 12), calls=2,
)  # fmt: skip


class Check:
    """The stages, and what later ones need of earlier ones."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self.plan, self.report = plan, report
        self.device = plan.device
        self.peak_bandwidth = 0.0  # bytes/s of a copy
        self.draft_seconds = 0.0  # a one-token draft forward in a graph
        self.verify_seconds: dict[int, float] = {}  # tokens -> target forward in a graph

    def run(self) -> None:
        """Run all stages; limits sum to less than 8 minutes."""
        run = self.report.run
        run("card", 15, self.card)
        run("kernels equal", 60, self.kernels_equal)
        run("kernel time", 30, self.kernel_time)
        run("graphs equal", 40, self.graphs_equal)
        run("pair", 40, self.pair)
        run("forwards", 50, self.forwards)
        for gamma in self.plan.gammas:
            run(f"speed, γ = {gamma}", 90, partial(self.speed, gamma))
        run("compiled forwards", 60, self.compiled)

    def card(self) -> dict[str, Any]:
        on_card = self.device.type == "cuda"
        name = torch.cuda.get_device_name() if on_card else platform.processor() or "CPU"
        source = torch.empty(self.plan.copy_bytes, dtype=torch.uint8, device=self.device).fill_(3)
        copy = torch.empty_like(source)
        seconds = median_seconds(lambda: copy.copy_(source), self.device, warm=3, repeats=10)
        self.peak_bandwidth = 2 * source.nbytes / seconds
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        self.report.row("machine", f"{name}; {versions}")
        self.report.row("copy bandwidth", f"{self.peak_bandwidth / 1e12:.2f} TB/s")
        return {"name": name, "versions": versions, "copy_bytes_per_second": self.peak_bandwidth}

    def kernels_equal(self) -> dict[str, Any]:
        """Compare what the device runs with the reference on the CPU, case by case."""
        cases = dict(special_cases())
        for vocabulary in self.plan.vocabularies:
            for dtype in (torch.float32, torch.bfloat16):
                for rows, gamma in ((1, 0), (1, 4), (2, 8), (5, 3)):
                    name = f"random V={vocabulary} {dtype} B={rows} γ={gamma}"
                    cases[name] = random_case(rows, gamma, vocabulary, seed=rows, dtype=dtype)
        differing = [name for name, case in cases.items() if not self._same(case)]
        self.report.row(
            f"kernels equal to the reference (triton: {HAS_TRITON})",
            f"{len(cases) - len(differing)} of {len(cases)} inputs",
        )
        return {"cases": len(cases), "differing": differing}

    def _same(self, case: Case) -> bool:
        found = verify_block(*case.arguments(str(self.device)))  # type: ignore[arg-type]
        expected = verify_block_reference(*case.arguments())  # type: ignore[arg-type]
        return all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))

    def kernel_time(self) -> dict[str, Any]:
        found = {}
        for vocabulary in self.plan.vocabularies[-2:]:
            for rows in (1, 8):
                case = random_case(
                    rows, 4, vocabulary, greedy_rows=False, dtype=self.plan.dtype, seed=1
                )
                arguments = case.arguments(str(self.device))
                times = {
                    "fused": self._both_ways(partial(verify_block, *arguments)),  # type: ignore[arg-type]
                    "torch": self._both_ways(partial(verify_block_reference, *arguments)),  # type: ignore[arg-type]
                }
                found[f"V={vocabulary} B={rows}"] = times
                cells = [f"{n} {1e6 * t[0]:.0f} / {1e6 * t[1]:.0f} µs" for n, t in times.items()]
                self.report.row(
                    f"accept/reject, γ = 4, V = {vocabulary}, B = {rows}: called / in a graph",
                    ", ".join(cells),
                )
        return found

    def _both_ways(self, function: Callable[[], object]) -> tuple[float, float]:
        """Seconds of a call as it is, and in a graph (the same off a card)."""

        def run() -> None:
            function()

        runner = GraphRunner(run, self.device, graph_pool(self.device))
        calls = self.plan.calls
        return (
            median_seconds(run, self.device, warm=3, repeats=calls),
            median_seconds(runner, self.device, warm=3, repeats=calls),
        )

    def graphs_equal(self) -> dict[str, Any]:
        """Small pair in float32: replayed graphs against the ordinary loop, token for token."""
        target, draft = make_pair(
            TINY_TARGET, TINY_DRAFT, 200, acceptance=0.7, device=self.device, dtype=torch.float32
        )
        found: dict[str, Any] = {}
        for gamma in (0, 1, 4):
            decoder = DeviceDecoder(target, draft if gamma else None, gamma=gamma, capacity=300)
            drafter = ModelDrafter(draft, width=200) if gamma else None
            ordinary = SpeculativeDecoder(target, None, drafter, FixedLookahead(gamma))
            for length in self.plan.decodes:
                prompt, params = list(range(5, 35)), _greedy(length)
                expected = ordinary.generate([prompt], params)[0].token_ids
                equal = decoder.generate(prompt, params).token_ids == expected
                found[f"γ={gamma} tokens={length} #{len(found)}"] = equal
        self.report.row("graphs equal to eager", f"{sum(found.values())} of {len(found)} decodes")
        return found

    def pair(self) -> dict[str, Any]:
        plan = self.plan
        self.target, self.draft = make_pair(
            plan.target, plan.draft, plan.vocabulary, acceptance=plan.acceptance,
            device=plan.device, dtype=plan.dtype,
        )  # fmt: skip
        sizes = {n: weight_bytes(m) for n, m in (("target", self.target), ("draft", self.draft))}
        self.report.row(
            "weights of target and draft",
            f"{sizes['target'] / 1e9:.2f} and {sizes['draft'] / 1e9:.2f} GB",
        )
        return sizes

    def forwards(self) -> dict[str, Any]:
        """Seconds of draft step and verify forward by tokens, called and in a graph."""
        found: dict[str, Any] = {}
        called, self.draft_seconds, cache = self._forward_seconds(self.draft, 1)
        found["draft 1"] = (called, self.draft_seconds)
        self._bandwidth_row("draft step", self.draft, cache, called, self.draft_seconds)
        counts = sorted({1, 2, 3, 5, 9, 17} | {token_bucket(g + 1) for g in self.plan.gammas})
        for tokens in counts:
            called, graph, cache = self._forward_seconds(self.target, tokens)
            self.verify_seconds[tokens] = graph
            found[f"target {tokens}"] = (called, graph)
            name = f"target forward, {tokens} tokens"
            self._bandwidth_row(name, self.target, cache, called, graph)
        return found

    def _forward_seconds(self, model: Any, tokens: int) -> tuple[float, float, int]:
        static = StaticModel(model, capacity=self.plan.capacity)
        fed = torch.full((1, tokens), 7, device=self.device)
        start = self.plan.capacity - tokens
        positions = torch.arange(start, start + tokens, device=self.device)[None]

        @torch.inference_mode()
        def run() -> None:
            static.forward(fed, positions, self.plan.capacity, keep=tokens)

        called, graph = self._both_ways(run)
        return called, graph, static.cache_bytes()

    def _bandwidth_row(
        self, name: str, model: Any, cache: int, called: float, graph: float
    ) -> None:
        moved = weight_bytes(model, read_each_step=True) + cache
        share = moved / graph / self.peak_bandwidth
        self.report.row(
            f"{name}: called / in a graph / share of copy bandwidth",
            f"{1e3 * called:.2f} ms / {1e3 * graph:.2f} ms / {100 * share:.0f}%",
        )

    def speed(self, gamma: int) -> dict[str, Any]:
        """Tokens per second of each arm, interleaved, prompts read included; and the shares they reach."""
        plan = self.plan
        prompt = torch.arange(11, 11 + plan.prompt, device=self.device)[None]
        tokens, params = prompt[0].tolist(), _greedy(plan.new_tokens)
        drafter = ModelDrafter(self.draft, width=plan.vocabulary)
        eager = SpeculativeDecoder(self.target, None, drafter, FixedLookahead(gamma))
        device = DeviceDecoder(self.target, self.draft, gamma=gamma, capacity=plan.capacity)
        plain = DeviceDecoder(self.target, gamma=0, capacity=plan.capacity)
        config = self.draft.generation_config
        config.num_assistant_tokens, config.assistant_confidence_threshold = gamma, 0.0
        config.num_assistant_tokens_schedule = "constant"
        settings = {"max_new_tokens": plan.new_tokens, "do_sample": False}
        mask = torch.ones_like(prompt)

        def generate(**more: Any) -> list[int]:
            whole = self.target.generate(prompt, attention_mask=mask, **settings, **more)[0]
            return whole[len(tokens) :].tolist()  # type: ignore[no-any-return]

        sampled = SamplingParams(temperature=1.0, max_tokens=plan.new_tokens, seed=0)
        arms: dict[str, Callable[[], list[int]]] = {
            "transformers generate": generate,
            "transformers assisted": lambda: generate(assistant_model=self.draft),
            "ours, eager": lambda: eager.generate([tokens], params)[0].token_ids,
            "ours, graphs": lambda: device.generate(tokens, params).token_ids,
            "ours, graphs, sampled at T = 1": lambda: device.generate(tokens, sampled).token_ids,
            "ours, graphs, γ = 0": lambda: plain.generate(tokens, params).token_ids,
        }
        rates, outputs = self._interleave(arms)
        expected = outputs["transformers generate"]
        equal = {name: output == expected for name, output in outputs.items()}
        base = statistics.median(rates["transformers assisted"])
        for name, values in rates.items():
            middle = statistics.median(values)
            self.report.row(
                f"γ = {gamma}: {name}",
                f"{middle:.1f} tokens/s ({min(values):.1f} to {max(values):.1f}), "
                f"{middle / base:.2f} × assisted, tokens "
                f"{'equal' if equal[name] else 'differ from'} generate's",
            )
        drafted = self._assisted_rounds(arms["transformers assisted"])
        self.report.row(
            f"γ = {gamma}: transformers assisted, tokens a target forward",
            f"{len(expected) / drafted:.2f}",
        )
        found = {"rates": rates, "equal": equal, "assisted_forwards": drafted}
        found |= self._share(device, tokens, params, gamma)
        found |= self._peak_memory(device, tokens, params, gamma)
        return found

    def _interleave(
        self, arms: dict[str, Callable[[], list[int]]]
    ) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
        rates: dict[str, list[float]] = {name: [] for name in arms}
        outputs: dict[str, list[int]] = {}
        started = time.perf_counter()
        for repeat in range(1 + self.plan.repeats):  # the first warms up, and captures
            elapsed = time.perf_counter() - started
            if repeat > 1 and elapsed * (repeat + 1) / repeat > self.plan.arms_seconds:
                break
            for name, arm in arms.items():
                synchronize(self.device)
                begun = time.perf_counter()
                outputs[name] = arm()
                synchronize(self.device)
                if repeat > 0:
                    rates[name].append(len(outputs[name]) / (time.perf_counter() - begun))
        return rates, outputs

    def _assisted_rounds(self, arm: Callable[[], list[int]]) -> int:
        """Count the target's forwards in a call, the first of which reads the prompt."""
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        handle = self.target.register_forward_hook(note)
        try:
            arm()
        finally:
            handle.remove()
        return count

    def _share(
        self, decoder: DeviceDecoder, tokens: list[int], params: SamplingParams, gamma: int
    ) -> dict[str, Any]:
        """Hold the rounds of a decode against the draft and verify forwards measured alone."""
        assert decoder.draft is not None
        draft = decoder.draft

        def read() -> None:
            decoder.target.prefill(tokens[:-1])
            draft.prefill(tokens[:-2])

        prefill = median_seconds(read, self.device, warm=1, repeats=3)
        output = decoder.generate(tokens, params)
        whole = statistics.median(
            self._wall(lambda: decoder.generate(tokens, params)) for _ in range(3)
        )
        round_seconds = (whole - prefill) / output.rounds
        verify = self.verify_seconds[token_bucket(gamma + 1)]
        share = (gamma * self.draft_seconds + verify) / round_seconds
        self.report.row(
            f"γ = {gamma}: a round / share of it that the forwards alone take",
            f"{1e3 * round_seconds:.2f} ms / {100 * share:.0f}%, {output.block_efficiency:.2f} "
            "tokens a round",
        )
        return {
            "prefill_seconds": prefill,
            "round_seconds": round_seconds,
            "share_of_forwards": share,
            "accepted_lengths": dict(output.accepted_lengths),
        }

    def _wall(self, function: Callable[[], object]) -> float:
        synchronize(self.device)
        begun = time.perf_counter()
        function()
        synchronize(self.device)
        return time.perf_counter() - begun

    def _peak_memory(
        self, decoder: DeviceDecoder, tokens: list[int], params: SamplingParams, gamma: int
    ) -> dict[str, Any]:
        if self.device.type != "cuda":
            return {}
        assert decoder.draft is not None
        caches = decoder.target.cache_bytes() + decoder.draft.cache_bytes()
        needed = weight_bytes(self.target) + weight_bytes(self.draft) + caches
        before = torch.cuda.memory_allocated() - needed  # what other stages still hold
        torch.cuda.reset_peak_memory_stats()
        decoder.generate(tokens, params)
        peak = torch.cuda.max_memory_allocated() - max(before, 0)
        reserved = torch.cuda.max_memory_reserved()  # the graphs' own memory is in this one only
        self.report.row(
            f"γ = {gamma}: peak memory of a decode / two weights and two caches",
            f"{peak / 1e9:.3f} / {needed / 1e9:.3f} GB; reserved by the process "
            f"{reserved / 1e9:.3f} GB",
        )
        return {
            "peak_bytes": peak,
            "needed_bytes": needed,
            "held_before": before,
            "reserved_bytes": reserved,
        }

    def compiled(self) -> dict[str, Any]:
        """The draft step and the verify forward after torch.compile, in a graph."""
        if self.device.type != "cuda":
            return {"skipped": "compiles for a card only"}
        found = {}
        for name, model, tokens in (
            ("draft step", self.draft, 1),
            ("target forward", self.target, token_bucket(self.plan.gammas[0] + 1)),
        ):
            static = StaticModel(model, capacity=self.plan.capacity)
            static.compile()
            fed = torch.full((1, tokens), 7, device=self.device)
            start = self.plan.capacity - tokens
            positions = torch.arange(start, start + tokens, device=self.device)[None]

            @torch.inference_mode()
            def run(
                static: StaticModel = static,
                fed: torch.Tensor = fed,
                positions: torch.Tensor = positions,
                tokens: int = tokens,
            ) -> None:
                static.forward(fed, positions, self.plan.capacity, keep=tokens)

            runner = GraphRunner(run, self.device, graph_pool(self.device))
            seconds = median_seconds(runner, self.device, warm=3, repeats=self.plan.calls)
            before = self.draft_seconds if name == "draft step" else self.verify_seconds[tokens]
            found[name] = (before, seconds)
            self.report.row(
                f"{name}, {tokens} tokens, in a graph: as it is / compiled",
                f"{1e3 * before:.2f} / {1e3 * seconds:.2f} ms",
            )
        return found


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Checks and measures foredraft on a card.")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_check.json"))
    parser.add_argument("--tiny", action="store_true", help="rehearse on the CPU with tiny models")
    arguments = parser.parse_args(words)
    if not arguments.tiny and not torch.cuda.is_available():
        print("no card: skipped")
        return
    report = Report(arguments.output)
    Check(TINY if arguments.tiny else CARD, report).run()
    print(report.markdown())
    print(f"{arguments.output} written; failed: {', '.join(report.failed) or 'none'}")


if __name__ == "__main__":
    main()
