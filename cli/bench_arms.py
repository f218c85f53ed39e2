"""The arms of a bench: plain decoding and each drafter with each policy, all over one loaded target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..spec import (
    BatchDecoder,
    Drafter,
    FixedLookahead,
    ModelDrafter,
    RequestOutput,
    SamplingParams,
    SpeculativeDecoder,
    model_fingerprint,
    target_width,
)
from ..spec.load_parts import draft_model, find_drafter
from .bench_data import PLAIN, Memory, Refusal
from .bench_losing import OTHER_TOKENIZER, TARGET_ITSELF
from .bench_memory import model_memory, too_large
from .bench_other import other_tokenizer_draft
from .bench_plan import Plan
from .bench_policies import Policies
from .bench_rounds import RoundLog, Watched

NONE = "none"  # drafter of the plain arm


@dataclass(slots=True)
class BenchArm:
    """One way of decoding. It keeps what its policy learns from one block to the next."""

    drafter: str
    policy: str  # as it is shown
    about: str
    memory: Memory
    identity: str  # of the draft's weights
    decoder: SpeculativeDecoder
    log: RoundLog
    _batches: dict[int, BatchDecoder] = field(default_factory=dict)

    def decode(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[RequestOutput]:
        """Decode prompts at once; one alone in the sequential loop."""
        if len(prompts) == 1:
            return self.decoder.generate(prompts, params)
        if len(prompts) not in self._batches:
            self._batches[len(prompts)] = BatchDecoder(self.decoder, rows=len(prompts))
        return self._batches[len(prompts)].generate(prompts, params)


class ArmMaker:
    """Loads each drafter once and makes the arms of each condition; says which could not be made."""

    def __init__(
        self,
        target: Any,
        tokenizer: Any,
        policies: Policies,
        *,
        folder: Path,
        device: str,
        dtype: str,
        memory_gb: float | None,
    ) -> None:
        """Hold what all arms share.

        Args:
            target: a causal LM in eval mode; all arms decode with it.
            folder: for a draft that is made for the run.
            memory_gb: most that a draft's weights may take; None: what is free.
        """
        self.refusals: list[Refusal] = []
        self._target, self._tokenizer, self._policies = target, tokenizer, policies
        self._folder, self._device, self._dtype = folder, device, dtype
        self._memory_gb = memory_gb
        self._width = target_width(target, tokenizer)
        self._drafters: dict[str, Drafter | str] = {}  # or why there is none

    def arms(self, plan: Plan) -> list[BenchArm]:
        """Return the arms of a condition, plain decoding first, with policies that know nothing yet."""
        arms = [self._arm(NONE, PLAIN, "the same loop with γ = 0", None, FixedLookahead(0))]
        for name in plan.drafters:
            drafter = self._drafter(name)
            if isinstance(drafter, str):
                self._refuse(plan, name, None, drafter)
                continue
            decoder = SpeculativeDecoder(self._target, self._tokenizer, drafter, FixedLookahead(1))
            for policy in plan.policies:
                shown = f"γ = {policy}" if isinstance(policy, int) else policy
                try:
                    made, about = self._policies.make(policy, name, decoder)
                    arms.append(self._arm(name, shown, about, drafter, made))
                except ValueError as error:
                    self._refuse(plan, name, shown, str(error))
        return arms

    def _arm(
        self, name: str, policy: str, about: str, drafter: Drafter | None, lookahead: Any
    ) -> BenchArm:
        log = RoundLog()
        decoder = SpeculativeDecoder(
            self._target, self._tokenizer, drafter, Watched(lookahead, log)
        )
        model = draft_model(drafter)
        return BenchArm(
            drafter=name,
            policy=policy,
            about=about,
            memory=model_memory([self._target, *([] if model is None else [model])]),
            identity="" if model is None else model_fingerprint(model),
            decoder=decoder,
            log=log,
        )

    def _drafter(self, name: str) -> Drafter | str:
        """Return a drafter, or why it cannot be had."""
        if name not in self._drafters:
            try:
                self._drafters[name] = self._load(name)
            except ValueError as error:
                self._drafters[name] = str(error)
        return self._drafters[name]

    def _load(self, name: str) -> Drafter:
        if name == TARGET_ITSELF:
            return ModelDrafter(self._target, width=self._width)
        found = name
        if OTHER_TOKENIZER in name:
            folder = other_tokenizer_draft(self._folder / OTHER_TOKENIZER)
            found = name.replace(OTHER_TOKENIZER, str(folder))
        reason = too_large(found.partition(":")[2] or found, self._memory_gb)
        if reason is not None:
            raise ValueError(reason)
        drafter = find_drafter(
            found, self._tokenizer, self._target, device=self._device, dtype=self._dtype
        )
        assert drafter is not None
        return drafter

    def _refuse(self, plan: Plan, drafter: str, policy: str | None, reason: str) -> None:
        self.refusals.append(
            Refusal(condition=plan.condition.name, drafter=drafter, policy=policy, reason=reason)
        )
