"""How a draft does in the real decode loop on held-out prompts: τ, α as drawn from, acceptance by depth.

α on held-out text says what one token is worth; only the loop says what a round of them is. Each process
decodes prompts of its own with a whole copy of the draft (`sharded.plain_model`): the answers are gathered
when all are there, and none waits for another before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from accelerate import Accelerator
from accelerate.utils import gather_object

from ..data import TraceRecorder, TraceRow
from ..spec import DecodeStats, FixedLookahead, ModelDrafter, SamplingParams, SpeculativeDecoder
from .batches import Example, prompt_groups
from .config import DistillConfig
from .draft import Draft
from .heads import eval_mode
from .teacher import Teacher

TAU = "eval/tau"  # of all prompts at all temperatures
Fate = Literal["accepted", "corrected", "free"]


@dataclass(frozen=True, slots=True, eq=False)
class LoopAnswer:
    """What the loop made of one prompt at one temperature."""

    index: int  # of the prompt, from 0
    temperature: float
    prompt: list[int]  # token ids
    tokens: list[int]  # of the answer
    fates: list[Fate]  # of each of them: "free" where no drafted token was tested
    alphas: list[tuple[int, float]]  # (depth, Σ min(p, q) as drawn from) of each tested token
    stats: DecodeStats


class LoopProbe:
    """Decodes the same held-out prompts whenever it is asked, with the draft as it is then."""

    def __init__(
        self,
        config: DistillConfig,
        accelerator: Accelerator,
        teacher: Teacher,
        tokenizer: Any,
        draft: Draft,
        examples: Sequence[Example],
    ) -> None:
        """Choose the prompts: those of the first held-out rows, each once."""
        self._config, self._accelerator, self._draft = config, accelerator, draft
        first = [examples[group[0]] for group in prompt_groups(examples)][: config.eval_prompts]
        prompts = [one.tokens[: one.first].tolist() for one in first]
        count, index = accelerator.num_processes, accelerator.process_index
        self._mine = list(enumerate(prompts))[index::count]
        self._prompts = len(prompts)
        drafter = ModelDrafter(draft.model, width=teacher.width, kept=draft.kept)
        self._decoder = SpeculativeDecoder(teacher.model, tokenizer, drafter)
        self.answers: list[LoopAnswer] = []  # of the last time, in order

    def measure(self) -> dict[str, float]:
        """Decode, keep the answers of all processes, and return their metrics; none where no prompts are."""
        if not self._prompts:
            return {}
        config = self._config
        with eval_mode(self._draft.model):
            mine = [
                decode_answer(
                    self._decoder,
                    index,
                    prompt,
                    gamma=config.eval_gamma,
                    params=SamplingParams(
                        temperature=heat,
                        max_tokens=config.eval_max_tokens,
                        seed=config.seed + index,
                    ),
                )
                for heat in config.eval_temperatures
                for index, prompt in self._mine
            ]
        answers: list[LoopAnswer] = gather_object(mine)
        self.answers = sorted(answers, key=lambda answer: (answer.temperature, answer.index))
        return loop_metrics(self.answers, config.eval_gamma)


def decode_answer(
    decoder: SpeculativeDecoder,
    index: int,
    prompt: Sequence[int],
    *,
    gamma: int,
    params: SamplingParams,
) -> LoopAnswer:
    """Return what the loop makes of a prompt, γ tokens drafted in every round, and how each token came.

    Args:
        prompt: token ids.
    """
    recorder = TraceRecorder(FixedLookahead(gamma))
    output = decoder.with_lookahead(recorder).generate([list(prompt)], params)[0]
    tested = [row for row in recorder.rows if row.tested]
    return LoopAnswer(
        index=index,
        temperature=params.temperature,
        prompt=list(output.prompt_token_ids),
        tokens=list(output.token_ids),
        fates=_fates(tested, len(output.prompt_token_ids), len(output.token_ids)),
        alphas=[(row.depth, row.acceptance_prob) for row in tested],
        stats=output.stats,
    )


def loop_metrics(answers: Sequence[LoopAnswer], gamma: int) -> dict[str, float]:
    """Return the metrics of answers.

    Returns:
        eval/tau (τ, tokens emitted per target forward, of all answers), and of each temperature t:
        eval/T{t}/tau@γ; eval/T{t}/alpha_loop, the mean of Σ min(p, q) over tested tokens;
        eval/T{t}/accept_pos/k, the same at depth k alone: the chance that the k-th drafted token is
        accepted given that those before it were. What nothing was tested for is left out.
    """
    metrics = {TAU: _tau(answers)}
    for heat in sorted({answer.temperature for answer in answers}):
        some = [answer for answer in answers if answer.temperature == heat]
        alphas = [pair for answer in some for pair in answer.alphas]
        prefix = f"eval/T{heat:g}"
        metrics[f"{prefix}/tau@{gamma}"] = _tau(some)
        if alphas:
            metrics[f"{prefix}/alpha_loop"] = _mean([alpha for _, alpha in alphas])
        for depth in range(1, gamma + 1):
            at_depth = [alpha for place, alpha in alphas if place == depth]
            if at_depth:
                metrics[f"{prefix}/accept_pos/{depth}"] = _mean(at_depth)
    return metrics


def _tau(answers: Sequence[LoopAnswer]) -> float:
    total = sum((answer.stats for answer in answers), DecodeStats())
    return total.block_efficiency or 1.0  # no round: no forward was saved


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _fates(tested: Sequence[TraceRow], prompt: int, length: int) -> list[Fate]:
    """Return how each of an answer's tokens came; rows past its end are those cut with its last round."""
    fates: list[Fate] = ["free"] * length
    for row in tested:
        place = row.context_length + row.depth - 1 - prompt
        if place < length:
            fates[place] = "accepted" if row.accepted else "corrected"
    return fates
