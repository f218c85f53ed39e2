"""The decoder that users hold: prompts in, outputs with statistics out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .drafter import Drafter, check_lookahead
from .draws import GeneratorDraws
from .generation_config import default_params
from .load import load_causal_lm, load_tokenizer
from .load_parts import draft_model, find_drafter, load_lookahead, sources_of
from .output import RequestOutput, raise_or_warn, take_round
from .packed import pack_linears
from .params import SamplingParams
from .policy import FixedLookahead, LookaheadPolicy
from .processors import Processor
from .prompts import render_chat
from .request import Prompt, Request, as_list, begin_output, check_request
from .round import decode_round, most_to_draft
from .self_draft import target_for
from .stats import DecodeStats
from .streaming import AsyncTextStream, TextStream, Turn
from .vocabulary import target_width

DEFAULT_GAMMA = 4  # where a draft is given and no lookahead


class SpeculativeDecoder:
    """Decodes with a target, and faster with a drafter, without changing what the target says.

    Serves one request at a time: calls from several threads wait for each other, and a call while the
    same thread still reads a stream raises RuntimeError.
    """

    def __init__(
        self,
        target: Any,
        tokenizer: Any = None,
        drafter: Drafter | None = None,
        lookahead: LookaheadPolicy | None = None,
    ) -> None:
        """Hold loaded parts together; `from_pretrained` loads them.

        Args:
            target: a causal LM in eval mode.
            tokenizer: None decodes token ids only.
            drafter: None decodes plainly, whatever the lookahead says.
            lookahead: None drafts 4 tokens a round where there is a drafter.

        Raises:
            ValueError: if the lookahead decides by logits that the drafter has not.
        """
        width = target_width(target, tokenizer)
        self.target = target_for(target, drafter, width=width)
        self.tokenizer = tokenizer
        self.drafter = drafter
        if lookahead is None:
            lookahead = FixedLookahead(DEFAULT_GAMMA if drafter is not None else 0)
        check_lookahead(lookahead, drafter)
        self.lookahead = lookahead
        self._turn = Turn()
        if tokenizer is not None:
            # Truncation and padding are state of a fast tokenizer: set once here, they are never
            # changed again under a request of another thread ("Already borrowed").
            tokenizer("")

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        *,
        draft: Drafter | str | None = None,
        lookahead: LookaheadPolicy | int | str | Path | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> SpeculativeDecoder:
        """Load a target and, if given, its draft and lookahead.

        Args:
            target: hub id or folder of a causal LM.
            draft: hub id or folder of a causal LM with the same tokenizer, such as foredraft.train
                makes; the folder of a trained exit or of trained heads; "prompt-lookup"; "self:K", the
                target's own first K layers; "cross:" or "shared:" before a model with another tokenizer;
                "chain:" before a draft model, for prompt lookup first; or any Drafter; None decodes plainly.
            lookahead: a fixed γ, a policy, or the folder of a saved one; "adaptive" for prompt lookup
                without a folder; None: γ = 4.

        Raises:
            ValueError: naming what does not fit.
        """
        model = load_causal_lm(target, device=device, dtype=dtype)
        pack_linears(model)
        tokenizer = load_tokenizer(target)
        drafter = find_drafter(draft, tokenizer, model, device=device, dtype=dtype)
        policy = load_lookahead(lookahead, model, draft_model(drafter), sources=sources_of(drafter))
        return cls(model, tokenizer, drafter, policy)

    def with_lookahead(self, lookahead: LookaheadPolicy) -> SpeculativeDecoder:
        """Return a decoder with another lookahead that shares models and caches with this one.

        Raises:
            ValueError: if the lookahead decides by logits that the drafter has not.
        """
        check_lookahead(lookahead, self.drafter)
        other = object.__new__(type(self))
        other.target, other.tokenizer, other.drafter = self.target, self.tokenizer, self.drafter
        other.lookahead, other._turn = lookahead, self._turn
        return other

    def twin(self, lookahead: LookaheadPolicy) -> SpeculativeDecoder:
        """Return a decoder with another lookahead over the same models, with caches and a turn of its own.

        Streams of both may be read by turns, round by round.

        Raises:
            ValueError: if the lookahead decides by logits that the drafter has not.
        """
        drafter = None if self.drafter is None else self.drafter.twin()
        return type(self)(self.target.model, self.tokenizer, drafter, lookahead)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        logits_processors: Sequence[Processor] = (),
    ) -> list[RequestOutput]:
        """Decode each prompt and return one output for each, in order.

        All prompts and parameters are checked before any work. What goes wrong later in one of several
        prompts is a warning and that output's `error`, and the others go on; where nothing succeeds, the
        first error is raised.

        Args:
            prompts: texts or lists of token ids, or one of them.
            params: None takes the model's own generation config. With a seed, prompt i uses seed + i.
            logits_processors: transformers LogitsProcessors or other callables that take input_ids [1, L]
                and scores [1, V] and return scores; with state or without, see `ProcessorChain`.

        Raises:
            ValueError: naming what is asked for and cannot be done.
        """
        requests = [
            self._request(prompt, params, logits_processors, f"prompts[{index}]: ")
            for index, prompt in enumerate(as_list(prompts))
        ]
        results: list[RequestOutput] = []
        with self._turn.taken():
            for index, request in enumerate(requests):
                outputs = [self._decode_whole(request, index, k) for k in range(request.params.n)]
                outputs[0].others = outputs[1:]
                results.append(outputs[0])
        raise_or_warn(results)
        return results

    def chat(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        params: SamplingParams | None = None,
        *,
        logits_processors: Sequence[Processor] = (),
    ) -> list[RequestOutput]:
        """Answer conversations, each a list of {"role": …, "content": …}, through the chat template."""
        prompts = [render_chat(self.tokenizer, chat) for chat in conversations]
        return self.generate(prompts, params, logits_processors=logits_processors)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        logits_processors: Sequence[Processor] = (),
    ) -> TextStream:
        """Return the output's text piece by piece, never half a character; its `output` fills up meanwhile.

        Closing or dropping the stream stops decoding. Errors are raised where they happen.

        Raises:
            ValueError: naming what is asked for and cannot be done, `n` above 1 included.
        """
        return self._stream(prompt, params, logits_processors, reader=None)

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        logits_processors: Sequence[Processor] = (),
    ) -> AsyncTextStream:
        """Return `stream` for an event loop: `async for piece in decoder.astream(prompt)`.

        Each stream decodes in a thread of its own; several take turns, a whole output each. Cancelling
        the task that reads, or `aclose()`, stops decoding.
        """
        stream = self._stream(prompt, params, logits_processors, reader=threading.get_ident())
        return AsyncTextStream(stream)

    def default_params(self, prompt_length: int = 0) -> SamplingParams:
        """Return what the target's own generation config asks for; see `generation_config.default_params`."""
        return default_params(self.target.model.generation_config, prompt_length)

    def _stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        processors: Sequence[Processor],
        reader: int | None,
    ) -> TextStream:
        request = self._request(prompt, params, processors)
        if request.params.n != 1:
            raise ValueError(f"n must be 1 in a stream, got {request.params.n}")
        output = RequestOutput(list(request.tokens))
        draws = GeneratorDraws(request.params.seed)
        return TextStream(output, lambda out: self._decode(out, request, draws), self._turn, reader)

    def _request(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        processors: Sequence[Processor],
        name: str = "",
    ) -> Request:
        return check_request(self.target, self.tokenizer, prompt, params, processors, name)

    def _decode_whole(self, request: Request, index: int, sample: int) -> RequestOutput:
        """Return the output of a prompt, or one that holds the error."""
        output = RequestOutput(list(request.tokens))
        try:
            for _ in self._decode(output, request, GeneratorDraws(request.seed(index, sample))):
                pass
        except Exception as error:
            output.finish_reason, output.error = "error", error
        return output

    def _decode(
        self, output: RequestOutput, request: Request, draws: GeneratorDraws
    ) -> Iterator[str]:
        """Yield pieces of text while `output` fills up."""
        params, tokens = request.params, list(request.tokens)
        end = request.end(self.target.context)
        rule, law = begin_output(output, request, self.target, self.tokenizer)
        try:
            self._prefill(tokens, end, output.stats)
            self.lookahead.begin_request(params)
            while rule.finish_reason is None:
                emitted, outcome = decode_round(
                    tokens,
                    self.target,
                    self.drafter,
                    self.lookahead,
                    law,
                    draws,
                    gamma_limit=most_to_draft(self.target, self.drafter, len(tokens), end),
                )
                yield from take_round(output, rule, tokens, emitted, outcome, params.logprobs)
        finally:
            output.text, output.finish_reason = rule.text, rule.finish_reason

    def _prefill(self, tokens: list[int], end: int, stats: DecodeStats) -> None:
        """Cover all but the last prompt token: the first round feeds that one."""
        begun = time.perf_counter()
        self.target.start(tokens, end)
        if self.drafter is not None:
            self.drafter.reset(end)
        stats.prefill_seconds += time.perf_counter() - begun
