"""Our loop inside transformers' `generate`: `model.generate(…, custom_generate=foredraft_generate(…))`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria

from .call_law import CallDrafter, CallLaw, ProcessedTarget, RawOutcomes, may_draft
from .decoder import DEFAULT_GAMMA, load_drafter, load_lookahead, target_width
from .drafter import Drafter, ModelDrafter
from .draws import GeneratorDraws
from .drop_in_call import draft_params, dropped_arguments, refuse_unsupported, unpadded
from .drop_in_result import ResultRow, result_of
from .load import DTYPES, load_tokenizer
from .params import SamplingParams
from .policy import FixedLookahead, LookaheadPolicy
from .round import decode_round
from .stats import DecodeStats


def foredraft_generate(
    draft: Any = None,
    lookahead: LookaheadPolicy | int | str | Path | None = None,
    *,
    tokenizer: Any = None,
    pure_processors: tuple[type, ...] = (),
) -> ForedraftGenerate:
    """Return a callable for the `custom_generate` argument of a transformers model's `generate`.

    The call is honoured: attention mask, sampling settings, logits processors, stopping criteria, EOS and
    pad tokens, `num_return_sequences`, `return_dict_in_generate` with scores and logits, streamer. What
    cannot be (beams, contrastive search, hidden states, a cache of the caller's, …) raises a ValueError
    that names it. Greedy output is `generate`'s token for token.

    Chance: each sampled row is seeded from torch's global generator, or from `generator=` of the call,
    so `torch.manual_seed` reproduces. The draws themselves are ours: same law, other tokens than
    `generate` with that seed.

    transformers hands `tokenizer=` to no callable, so `stop_strings` raises there; pass
    `stopping_criteria=[StopStringCriteria(tokenizer, [...])]` instead. `cache` of a dict output is None.

    Args:
        draft: a loaded causal LM, a hub id or folder, a Drafter; None decodes plainly.
        lookahead: a fixed γ, a policy, or the folder of a saved one; None: γ = 4 where there is a draft.
        tokenizer: the target's, to check a draft folder against; None loads it from where the model
            came from.
        pure_processors: your own classes of logits processors that look at nothing but their arguments.
            Others are asked once for each token, in order, and nothing is drafted.

    Raises:
        ValueError: if an argument is not what it can be.
    """
    return ForedraftGenerate(draft, lookahead, tokenizer, pure_processors)


@dataclass(slots=True)
class _Parts:
    """What is made once for a model."""

    model: Any
    target: ProcessedTarget
    drafter: Drafter | None
    policy: LookaheadPolicy


class ForedraftGenerate:
    """The callable that `foredraft_generate` returns. Not thread-safe: one call at a time."""

    def __init__(
        self, draft: Any, lookahead: Any, tokenizer: Any, pure_processors: tuple[type, ...]
    ) -> None:
        if isinstance(lookahead, int | float):
            lookahead = FixedLookahead(lookahead)  # type: ignore[arg-type]  # says what is allowed
        if lookahead is None:
            lookahead = FixedLookahead(DEFAULT_GAMMA)
        self._draft, self._lookahead, self._tokenizer = draft, lookahead, tokenizer
        self._pure = tuple(pure_processors)
        self._parts: _Parts | None = None
        self.stats: list[DecodeStats] = []  # of the last call, one for each returned row

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any = None,
        generator: torch.Generator | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode as `generate` has prepared it; transformers calls this.

        Args:
            input_ids: [B, L], expanded for `num_return_sequences`.

        Returns:
            [B, L + longest output], or GenerateDecoderOnlyOutput, as the config says.
        """
        dropped = dropped_arguments(model)
        streamer = streamer or dropped.get("streamer")
        _refuse_dropped(dropped, streamer, rows=len(input_ids))
        refuse_unsupported(model, generation_config, logits_processor, model_kwargs)
        prompts = unpadded(input_ids, model_kwargs)
        call = _Call(
            self._parts_for(model),
            logits_processor,
            stopping_criteria,
            generation_config,
            streamer,
            self._pure,
        )
        call.refuse_ragged(len(prompts))
        self.stats = []
        rows: list[ResultRow] = []
        for index, prompt in enumerate(prompts):
            draws = GeneratorDraws(_seed(generator) if generation_config.do_sample else 0)
            repeated = index > 0 and prompt == prompts[index - 1]
            row, stats = call.decode(input_ids, index, prompt, draws, repeated=repeated)
            rows.append(row)
            self.stats.append(stats)
        if streamer is not None:
            streamer.end()
        return result_of(input_ids, rows, generation_config)

    def _parts_for(self, model: Any) -> _Parts:
        """Return the loaded parts; made at the first call, and again for another model."""
        if self._parts is None or self._parts.model is not model:
            drafter = self._load_drafter(model)
            draft_model = drafter.cached.model if isinstance(drafter, ModelDrafter) else None
            policy = load_lookahead(self._lookahead, model, draft_model)
            assert policy is not None
            target = ProcessedTarget(model)
            self._parts = _Parts(model, target, drafter, policy)
        return self._parts

    def _load_drafter(self, model: Any) -> Drafter | None:
        draft, width = self._draft, target_width(model, None)
        if isinstance(draft, torch.nn.Module):
            return ModelDrafter(draft, width=width)
        if not isinstance(draft, str | Path):
            return draft  # type: ignore[no-any-return]
        tokenizer = self._tokenizer
        if tokenizer is None:
            if not model.name_or_path:
                raise ValueError("tokenizer: pass the target's, to check the draft against")
            tokenizer = load_tokenizer(model.name_or_path)
        names = {value: name for name, value in DTYPES.items()}
        return load_drafter(
            str(draft),
            tokenizer,
            width=width,
            device=str(model.device),
            dtype=names.get(model.dtype, "float32"),
        )


class _Call:
    """One call of `generate`: decodes its rows one after the other."""

    def __init__(
        self,
        parts: _Parts,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: Any,
        pure: tuple[type, ...],
    ) -> None:
        self._parts, self._processors, self._config = parts, processors, config
        self._streamer = streamer
        self._pure = may_draft(processors, pure)
        # These two are compared as integers: the others cost a call of tensors a token.
        lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
        ends = [c.eos_token_id.tolist() for c in criteria if type(c) is EosTokenCriteria]
        self._max_length: int = min(lengths)
        self._ends = {token for tokens in ends for token in tokens}
        self._criteria = StoppingCriteriaList(
            c for c in criteria if type(c) not in (MaxLengthCriteria, EosTokenCriteria)
        )
        asked = config.return_dict_in_generate
        self._keep_scores = bool(asked and config.output_scores)
        self._keep_logits = bool(asked and config.output_logits)
        self._draft_params = draft_params(config)

    def refuse_ragged(self, rows: int) -> None:
        """Raise where rows of different length could not be returned, or a processor mixes them up."""
        if rows == 1:
            return
        if self._config._pad_token_tensor is None and (self._criteria or self._ends):
            raise ValueError("pad_token_id must be set: rows that end early are filled with it")
        if not self._pure:
            names = ", ".join(type(processor).__name__ for processor in self._processors)
            raise ValueError(
                f"logits_processor: of {names}, those of your own must be named in "
                "foredraft_generate(pure_processors=…) where there is more than one row"
            )

    def decode(
        self,
        input_ids: torch.Tensor,
        index: int,
        prompt: list[int],
        draws: GeneratorDraws,
        *,
        repeated: bool,
    ) -> tuple[ResultRow, DecodeStats]:
        """Decode one row.

        Args:
            input_ids: [B, L].
            prompt: the row's tokens without padding.
            repeated: the row before had the same prompt.
        """
        target, drafter = self._parts.target, self._parts.drafter
        law = self._law(input_ids[index : index + 1], index, len(input_ids))
        budget = self._max_length - input_ids.shape[1]
        end = len(prompt) + budget
        if repeated:
            target.again(law, len(prompt))
        else:
            chunk = self._config.prefill_chunk_size or len(prompt)
            target.begin(law, prompt, end, chunk=chunk)
        if drafter is not None:
            drafter.reset(end)
        policy = RawOutcomes(self._parts.policy, target)
        policy.begin_request(self._draft_params)
        as_called = None if drafter is None else CallDrafter(drafter, self._draft_params)
        params = SamplingParams(temperature=1.0 if self._config.do_sample else 0.0)
        tokens, row, stats = list(prompt), ResultRow(), DecodeStats()
        while True:
            emitted, outcome = decode_round(
                tokens,
                target,
                as_called,
                policy,
                params,
                draws,
                gamma_limit=self._gamma_limit(len(tokens), end),
            )
            stats.add_round(outcome)
            for position, token in enumerate(emitted):
                tokens.append(token)
                law.commit([token])
                if self._take(token, position, law, row):
                    return row, stats

    def _law(self, prompt: torch.Tensor, row: int, rows: int) -> CallLaw:
        return CallLaw(
            self._processors,
            prompt,
            row=row,
            rows=rows,
            capacity=self._max_length,
            greedy=not self._config.do_sample,
        )

    def _gamma_limit(self, length: int, end: int) -> int:
        drafter = self._parts.drafter
        if drafter is None or not self._pure:
            return 0
        return max(0, min(end - length - 1, drafter.context - length))

    def _take(self, token: int, position: int, law: CallLaw, row: ResultRow) -> bool:
        """Add an emitted token to its row; return whether the row has ended."""
        target = self._parts.target
        row.tokens.append(token)
        if self._keep_scores:
            row.scores.append(target.scores[position : position + 1].clone())
        if self._keep_logits:
            row.logits.append(target.raw[position : position + 1].float().clone())
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        ended = token in self._ends or law.ids.shape[1] >= self._max_length
        if self._criteria:
            scores = tuple(row.scores) if self._keep_scores else None
            ended = bool(self._criteria(law.ids, scores).all()) or ended
        return ended


def _seed(generator: torch.Generator | None) -> int:
    """Return a seed for one row, taken from the call's generator or torch's global one."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def _refuse_dropped(dropped: dict[str, Any], streamer: Any, *, rows: int) -> None:
    if dropped.get("assistant_model") is not None:
        raise ValueError("assistant_model: give the draft to foredraft_generate(draft=…)")
    if dropped.get("synced_gpus"):
        raise ValueError("synced_gpus = True is not supported: ranks would take different rounds")
    if streamer is not None and rows > 1:
        raise ValueError(f"streamer: rows are decoded one after the other, so one row, got {rows}")
