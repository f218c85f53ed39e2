"""Our loop inside transformers' `generate`: `model.generate(…, custom_generate=foredraft_generate(…))`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria

from .cached import CachedModel, rope_switch
from .chain import CHAIN, ChainDrafter
from .decoder import DEFAULT_GAMMA
from .drafter import Drafter, ModelDrafter, check_lookahead
from .draws import GeneratorDraws
from .drop_in_call import asked_params, dropped_arguments, refuse_unsupported, unpadded
from .drop_in_law import CallLaw, call_law
from .drop_in_result import ResultRow, result_of
from .exit_folder import find_self_drafter
from .head_folder import find_head_drafter
from .load import DTYPES, load_tokenizer
from .load_parts import draft_model, load_lookahead, load_named, sources_of
from .lookup import PROMPT_LOOKUP, PromptLookupDrafter
from .policy import FixedLookahead, LookaheadPolicy
from .round import decode_round, most_to_draft
from .self_draft import target_for
from .stats import DecodeStats
from .vocabulary import target_width


def foredraft_generate(
    draft: Any = None,
    lookahead: LookaheadPolicy | int | str | Path | None = None,
    *,
    tokenizer: Any = None,
) -> ForedraftGenerate:
    """Return a callable for the `custom_generate` argument of a transformers model's `generate`.

    The call is honoured: attention mask, sampling settings, logits processors, stopping criteria, EOS and
    pad tokens, `num_return_sequences`, `return_dict_in_generate` with scores and logits, streamer. What
    cannot be (beams, contrastive search, hidden states, a cache of the caller's, …) raises a ValueError
    that names it. Greedy output is `generate`'s token for token.

    Logits processors: within one row each is asked once for each position, in order, as `generate` asks,
    with state or without; drafted positions are asked of deep copies, so the objects passed in are never
    called. One that cannot be copied raises: see `ProcessorChain`.

    Rows are decoded one after the other: stopping criteria and scores are each row's own.

    Chance: each sampled row is seeded from torch's global generator, or from `generator=` of the call,
    so `torch.manual_seed` reproduces. The draws themselves are ours: same law, other tokens than
    `generate` with that seed.

    transformers hands `tokenizer=` to no callable, so `stop_strings` raises there; pass
    `stopping_criteria=[StopStringCriteria(tokenizer, [...])]` instead. `cache` of a dict output is None.

    Args:
        draft: a loaded causal LM, a hub id or folder, "prompt-lookup", "self:K", "cross:" or "shared:"
            before a model with another tokenizer, "chain:" before a draft model, a Drafter; None:
            plain decoding.
        lookahead: a fixed γ, a policy, or the folder of a saved one; None: γ = 4 where there is a draft.
        tokenizer: the target's, to check a draft folder against; None loads it from where the model
            came from.

    Raises:
        ValueError: if an argument is not what it can be.
    """
    return ForedraftGenerate(draft, lookahead, tokenizer)


@dataclass(slots=True)
class _Parts:
    """What is made once for a model."""

    model: Any
    target: CachedModel
    drafter: Drafter | None
    policy: LookaheadPolicy


class ForedraftGenerate:
    """The callable that `foredraft_generate` returns. Not thread-safe: one call at a time."""

    def __init__(self, draft: Any, lookahead: Any, tokenizer: Any) -> None:
        if isinstance(lookahead, int | float):
            lookahead = FixedLookahead(lookahead)  # type: ignore[arg-type]  # says what is allowed
        if lookahead is None:
            lookahead = FixedLookahead(DEFAULT_GAMMA)
        self._draft, self._lookahead, self._tokenizer = draft, lookahead, tokenizer
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
            drafter = self._load_drafter(model, self._draft)
            policy = load_lookahead(
                self._lookahead, model, draft_model(drafter), sources=sources_of(drafter)
            )
            assert policy is not None
            check_lookahead(policy, drafter)
            self._parts = _Parts(model, target_for(model, drafter, width=None), drafter, policy)
        return self._parts

    def _load_drafter(self, model: Any, draft: Any) -> Drafter | None:
        width = target_width(model, None)
        if isinstance(draft, torch.nn.Module):
            return ModelDrafter(draft, width=width)
        if draft == PROMPT_LOOKUP:
            return PromptLookupDrafter()
        if not isinstance(draft, str | Path):
            return draft  # type: ignore[no-any-return]
        if str(draft).startswith(CHAIN):
            return ChainDrafter(self._load_drafter(model, str(draft).removeprefix(CHAIN)))
        own = find_self_drafter(str(draft), model, width=width)
        if own is not None:
            return own
        heads = find_head_drafter(str(draft), model, self._tokenizer, width=width)
        if heads is not None:
            return heads
        tokenizer = self._tokenizer
        if tokenizer is None:
            if not model.name_or_path:
                raise ValueError("tokenizer: pass the target's, to check the draft against")
            tokenizer = load_tokenizer(model.name_or_path)
        names = {value: name for name, value in DTYPES.items()}
        return load_named(
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
    ) -> None:
        self._parts, self._processors, self._config = parts, processors, config
        self._streamer = streamer
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
        self._asked = asked_params(config)

    def refuse_ragged(self, rows: int) -> None:
        """Raise where rows of different length could not be returned."""
        if rows > 1 and self._config._pad_token_tensor is None and (self._criteria or self._ends):
            raise ValueError("pad_token_id must be set: rows that end early are filled with it")

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
        target, drafter, policy = self._parts.target, self._parts.drafter, self._parts.policy
        law = self._law(input_ids, index)
        end = len(prompt) + self._max_length - input_ids.shape[1]
        self._read(prompt, end, repeated=repeated)
        if drafter is not None:
            drafter.reset(end)
        policy.begin_request(self._asked)
        tokens, row, stats = list(prompt), ResultRow(), DecodeStats()
        ids = input_ids.new_zeros(1, self._max_length)
        ids[0, : input_ids.shape[1]] = input_ids[index]
        while True:
            limit = most_to_draft(target, drafter, len(tokens), end)
            emitted, outcome = decode_round(
                tokens, target, drafter, policy, law, draws, gamma_limit=limit
            )
            stats.add_round(outcome)
            for place, token in enumerate(emitted):
                tokens.append(token)
                row.tokens.append(token)
                length = input_ids.shape[1] + len(row.tokens)
                ids[0, length - 1] = token
                if self._keep_scores:
                    row.scores.append(law.last_scores[place : place + 1].float().clone())
                if self._keep_logits:
                    row.logits.append(outcome.target_logits[place : place + 1].float().clone())
                if self._ends_with(token, ids[:, :length], row):
                    stats.discarded += len(emitted) - place - 1
                    return row, stats

    def _law(self, input_ids: torch.Tensor, row: int) -> CallLaw:
        target = self._parts.target
        return call_law(
            self._processors,
            input_ids,
            row=row,
            width=target_width(target.model, None),
            device=target.device,
            greedy=not self._config.do_sample,
            whole_scores=self._keep_scores,
        )

    def _read(self, prompt: list[int], end: int, *, repeated: bool) -> None:
        """Cover all but the last token of a prompt, in the chunks that the call asks for."""
        target, chunk = self._parts.target, self._config.prefill_chunk_size or len(prompt)
        if repeated and rope_switch(target.model) is None:  # else it may be encoded for a long one
            target.roll_back(len(prompt) - 1)
            return
        target.reset(end)
        for start in range(0, len(prompt) - 1, chunk):
            target.advance(prompt[start : min(start + chunk, len(prompt) - 1)])

    def _ends_with(self, token: int, ids: torch.Tensor, row: ResultRow) -> bool:
        """Hand an emitted token on; return whether its row, ids [1, L], has ended."""
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        ended = token in self._ends or ids.shape[1] >= self._max_length
        if self._criteria:
            scores = tuple(row.scores) if self._keep_scores else None
            ended = bool(self._criteria(ids, scores).all()) or ended
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
