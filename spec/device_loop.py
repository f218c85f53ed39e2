"""The decode loop on the device: fixed γ, one sequence, one small read by the host a round.

A round is two graphs: γ draft steps with their draws, and the verify forward with the accept/reject
step and the commit. While the host reads what a round gave, the device drafts the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .draft_temperature import DraftTemperature, as_draft_temperature
from .graphs import GraphRunner, StaticModel, graph_pool, token_bucket, visible_bucket
from .kernels import draw_tokens, verify_block
from .params import SamplingParams, refuse_fields
from .sampling import token_probs
from .stopping import StopRule, eos_token_ids

UNSUPPORTED = (
    "n", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words",
    "min_tokens", "logprobs",
)  # fmt: skip


@dataclass(slots=True)
class DeviceOutput:
    """What came of one prompt."""

    token_ids: list[int]  # the end token included, nothing after it
    finish_reason: str | None = None  # "stop" or "length"
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # -> rounds

    @property
    def rounds(self) -> int:
        return self.accepted_lengths.total()

    @property
    def block_efficiency(self) -> float | None:
        """τ: tokens emitted per target forward, those after an end token counted."""
        accepted = sum(length * rounds for length, rounds in self.accepted_lengths.items())
        return 1.0 + accepted / self.rounds if self.rounds else None


class DeviceDecoder:
    """Decodes one sequence at a time with all of its state in static buffers on the device."""

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        *,
        gamma: int,
        capacity: int,
        width: int | None = None,
        kept: torch.Tensor | None = None,
        draft_temperature: float | DraftTemperature = 1.0,
    ) -> None:
        """Allocate.

        Args:
            target, draft: causal LMs in eval mode on one device; no draft: gamma must be 0.
            gamma: tokens drafted in a round, at most 16; 0 decodes plainly.
            capacity: longest sequence, prompt and output together.
            width: V, entries of the vocabulary; None: rows of the target's head.
            kept: [V_draft], the target token each row of a cut draft head stands for.
            draft_temperature: multiplies the request's temperature when the draft draws; may depend on it.

        Raises:
            ValueError: if γ is not in range, the models are on different devices, or one of them
                cannot be decoded with static shapes.
        """
        if not 0 <= gamma <= 16 or (gamma > 0) != (draft is not None):
            raise ValueError(f"gamma must be 1 to 16 with a draft and 0 without, got {gamma!r}")
        self.gamma, self.capacity = gamma, capacity
        self._tokens = token_bucket(gamma + 1)  # of a verify forward, padding included
        # A drafted block above the end, rounded up for attention kernels that want whole tiles.
        slots = -(-(capacity + gamma + self._tokens) // 64) * 64
        self.target = StaticModel(target, capacity=slots)
        self.draft = None if draft is None else StaticModel(draft, capacity=slots)
        self.width = self.target.width if width is None else width
        self._kept, self._draft_heat = kept, as_draft_temperature(draft_temperature)
        self.device = device = self.target.device
        if self.draft is not None and self.draft.device != device:
            raise ValueError(
                f"draft must be on the target's device, {device}, got {self.draft.device}"
            )
        self._pool = graph_pool(device)
        self._runners: dict[tuple[str, int, SamplingParams], GraphRunner] = {}

        self._length = torch.zeros(1, dtype=torch.int64, device=device)  # committed tokens
        self._end = torch.zeros_like(self._length)  # committed tokens when the output is full
        self._tail = torch.zeros(1, 2, dtype=torch.int64, device=device)  # the last two committed
        self._drafted = torch.zeros(1, gamma, dtype=torch.int64, device=device)
        self._draft_logits = torch.full(
            (1, gamma, self.width), -torch.inf, dtype=torch.float32, device=device
        )
        self._temperature = torch.zeros(1, device=device)
        self._draft_temperature = torch.zeros(1, device=device)
        self._uniforms = torch.zeros(1, 2 * gamma + 1, dtype=torch.float64, device=device)
        self._generator = torch.Generator(device)
        # Accepted length, then the emitted tokens.
        self._report = torch.zeros(1, gamma + 2, dtype=torch.int64, device=device)
        self._mail = _Mail(self._report)

    @torch.inference_mode()
    def generate(
        self, prompt: Sequence[int], params: SamplingParams, tokenizer: Any = None
    ) -> DeviceOutput:
        """Decode one prompt; the law of the output is that of `SpeculativeDecoder`.

        Args:
            tokenizer: needed for stop strings only.

        Raises:
            ValueError: if the prompt and `max_tokens` do not fit, or a penalty is asked for.
        """
        self._begin(prompt, params)
        rule = StopRule(params, eos_token_ids(self.target.model), tokenizer, params.max_tokens)
        output = DeviceOutput(rule.token_ids)
        bound = len(prompt)  # the length is at most this; the device alone knows it exactly
        self._draft_block(bound, params)
        while True:
            self._run("verify", bound + self._tokens, params)
            self._mail.send()
            self._draft_block(bound + self.gamma + 1, params)
            accepted, *tokens = self._mail.read()
            output.accepted_lengths[accepted] += 1
            bound += accepted + 1
            for token in tokens[: accepted + 1]:
                rule.push(token)
                if rule.finish_reason is not None:
                    output.finish_reason = rule.finish_reason
                    return output

    def _begin(self, prompt: Sequence[int], params: SamplingParams) -> None:
        context = min(m.context for m in (self.target, self.draft) if m is not None)
        room = min(self.capacity, context - self.gamma - self._tokens) - params.max_tokens
        if not 1 <= len(prompt) <= room:
            raise ValueError(
                f"prompt must have 1 to {room} tokens with max_tokens = {params.max_tokens}, "
                f"got {len(prompt)}"
            )
        refuse_fields(params, UNSUPPORTED, "when decoding on the device")
        self.target.prefill(prompt[:-1])
        if self.draft is not None:
            self.draft.prefill(prompt[:-2])
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)
        heat = 1.0 if _filtered(params) else params.temperature
        self._temperature.fill_(heat)
        factor = 1.0 if _filtered(params) else self._draft_heat.factor(params.temperature)
        self._draft_temperature.fill_(heat * factor)
        self._length.fill_(len(prompt))
        self._end.fill_(len(prompt) + params.max_tokens)
        self._tail.copy_(torch.tensor([[0, *prompt][-2:]]))

    def _draft_block(self, bound: int, params: SamplingParams) -> None:
        """Begin a round: its uniforms and its draft."""
        self._uniforms.uniform_(generator=self._generator)
        if self.draft is not None:
            self._run("draft", bound + self.gamma, params)

    def _run(self, what: str, slots: int, params: SamplingParams) -> None:
        visible = visible_bucket(slots, self.target.capacity)
        key = (what, visible, _settings(params))
        if key not in self._runners:
            step = self._draft_step if what == "draft" else self._verify_step
            self._runners[key] = GraphRunner(lambda: step(visible, key[2]), self.device, self._pool)
        self._runners[key]()

    def _draft_step(self, visible: int, params: SamplingParams) -> None:
        """Draft γ tokens. The first forward takes two, so that an accepted block is covered in full."""
        assert self.draft is not None
        fed = self._tail  # [1, 2]
        places = torch.arange(-2, 0, device=self.device)  # [2]
        positions = (self._length[:, None] + places).clamp(min=0)  # [1, 2]
        for step in range(self.gamma):
            logits = self.draft.forward(fed, positions, visible, keep=1)[:, 0]  # [1, V_draft]
            law = self._draft_logits[:, step]  # [1, V]
            if self._kept is None:
                shared = min(self.width, logits.shape[-1])
                law[:, :shared] = logits[:, :shared]
            else:
                law.index_copy_(1, self._kept, logits.to(law.dtype))
            if _filtered(params):
                factor = self._draft_heat.factor(params.temperature)
                law.copy_(token_probs(law, params, temperature_factor=factor).log())
            drawn = draw_tokens(law, self._draft_temperature, self._uniforms[:, step])  # [1]
            self._drafted[:, step] = drawn
            fed, positions = drawn[:, None], self._length[:, None] + step  # [1, 1]

    def _verify_step(self, visible: int, params: SamplingParams) -> None:
        """Verify the block, commit what was accepted and the token after it, and report."""
        gamma = self.gamma
        padding = self._tail.new_zeros(1, self._tokens - gamma - 1)
        fed = torch.cat([self._tail[:, 1:], self._drafted, padding], 1)  # [1, bucket]
        places = torch.arange(self._tokens, device=self.device)  # [bucket]
        logits = self.target.forward(
            fed, self._length[:, None] - 1 + places, visible, keep=self._tokens
        )[:, : gamma + 1, : self.width]  # [1, γ+1, V]
        if _filtered(params):
            logits = token_probs(logits[0], params).log()[None]
        room = self._end - self._length - 1  # what the output's limit leaves
        usable = room * (self._length > 1)  # a draft needs two tokens before it
        accepted, last = verify_block(
            logits,
            self._draft_logits,
            self._drafted,
            usable.clamp(0, gamma),
            self._temperature,
            self._uniforms[:, gamma:],
            self._draft_temperature,
        )  # [1], [1]
        self._report[:, 0] = accepted
        self._report[:, 1 : gamma + 1] = self._drafted
        self._report.scatter_(1, accepted[:, None] + 1, last[:, None])
        before = fed.gather(1, accepted[:, None])  # [1, 1], the token before the last
        self._tail.copy_(torch.cat([before, last[:, None]], 1))
        self._length += accepted + 1


class _Mail:
    """Brings one small tensor to the host without waiting for what was launched after it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._arrived: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)

    def send(self) -> None:
        self._host.copy_(self._tensor, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> list[int]:
        """Wait for what was sent and return its first row: the one read of a round."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host[0].tolist()


def generate_device(
    target: Any, draft: Any, prompt: Sequence[int], gamma: int, params: SamplingParams
) -> DeviceOutput:
    """Decode one prompt on the models' device; see `DeviceDecoder`, which keeps its graphs."""
    capacity = len(prompt) + params.max_tokens
    decoder = DeviceDecoder(target, draft, gamma=gamma, capacity=capacity)
    return decoder.generate(prompt, params)


def _filtered(params: SamplingParams) -> bool:
    """Whether the law is more than a softmax: then logits are replaced by its logarithm, before all else."""
    return not params.greedy and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)


def _settings(params: SamplingParams) -> SamplingParams:
    """Return what a graph depends on: temperature is a tensor where there is no filter."""
    if not _filtered(params):
        return SamplingParams()
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
    )
