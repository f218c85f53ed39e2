"""The decoder that users hold: prompts in, outputs with statistics out."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cached import CachedModel
from .draft_folder import DraftInfo, cut_head, load_kept_tokens
from .drafter import Drafter, ModelDrafter
from .draws import Draws, GeneratorDraws
from .fingerprint import model_fingerprint, tokenizer_hash
from .load import load_causal_lm, load_tokenizer
from .params import SamplingParams
from .policy import FixedLookahead, LookaheadPolicy
from .prompts import encode_text, render_chat
from .round import decode_round
from .stats import DecodeStats
from .stopping import StopRule, eos_token_ids
from .vocabulary import check_same_vocabulary, vocabulary_size

Prompt = str | Sequence[int]
DEFAULT_GAMMA = 4  # where a draft is given and no lookahead


@dataclass(slots=True)
class RequestOutput:
    """What came of one prompt."""

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)  # the end token included, nothing after it
    text: str = ""  # without the end token and the stop string
    finish_reason: str | None = None  # "stop" or "length"
    stats: DecodeStats = field(default_factory=DecodeStats)


class SpeculativeDecoder:
    """Decodes with a target, and faster with a drafter, without changing what the target says.

    Not thread-safe: one request at a time.
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
        """
        width = target_width(target, tokenizer)
        self.target = CachedModel(target, width=width)
        self.tokenizer = tokenizer
        self.drafter = drafter
        if lookahead is None:
            lookahead = FixedLookahead(DEFAULT_GAMMA if drafter is not None else 0)
        self.lookahead = lookahead

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        *,
        draft: str | None = None,
        lookahead: LookaheadPolicy | int | str | Path | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> SpeculativeDecoder:
        """Load a target and, if given, its draft and lookahead.

        Args:
            target: hub id or folder of a causal LM.
            draft: hub id or folder of a causal LM with the same tokenizer, such as foredraft.train
                makes; None decodes plainly.
            lookahead: a fixed γ, a policy, or the folder of a saved one; None: γ = 4.

        Raises:
            ValueError: naming what does not fit.
        """
        model = load_causal_lm(target, device=device, dtype=dtype)
        tokenizer = load_tokenizer(target)
        drafter = None
        if draft is not None:
            drafter = load_drafter(
                draft, tokenizer, width=target_width(model, tokenizer), device=device, dtype=dtype
            )
        draft_model = None if drafter is None else drafter.cached.model
        return cls(model, tokenizer, drafter, load_lookahead(lookahead, model, draft_model))

    def with_lookahead(self, lookahead: LookaheadPolicy) -> SpeculativeDecoder:
        """Return a decoder with another lookahead that shares models and caches with this one."""
        other = object.__new__(type(self))
        other.target, other.tokenizer, other.drafter = self.target, self.tokenizer, self.drafter
        other.lookahead = lookahead
        return other

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """Decode each prompt and return one output for each, in order.

        Args:
            prompts: texts or lists of token ids, or one of them.
            params: None takes the model's own generation config. With a seed, prompt i uses seed + i.
        """
        params = params or self.default_params()
        outputs = []
        for index, prompt in enumerate(_as_list(prompts)):
            output = RequestOutput(self._encode(prompt))
            seed = None if params.seed is None else params.seed + index
            for _ in self._decode(output, params, GeneratorDraws(seed)):
                pass
            outputs.append(output)
        return outputs

    def chat(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        params: SamplingParams | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations, each a list of {"role": …, "content": …}, through the chat template."""
        return self.generate([render_chat(self.tokenizer, chat) for chat in conversations], params)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yield the output's text piece by piece, never half a character; joined it is the output's text."""
        params = params or self.default_params()
        output = RequestOutput(self._encode(prompt))
        yield from filter(None, self._decode(output, params, GeneratorDraws(params.seed)))

    def default_params(self) -> SamplingParams:
        """Return what the target's own generation config asks for."""
        config = self.target.model.generation_config
        sampled = bool(config.do_sample)
        return SamplingParams(
            temperature=(1.0 if config.temperature is None else config.temperature) * sampled,
            top_k=(config.top_k or 0) if sampled else 0,
            top_p=(config.top_p or 1.0) if sampled else 1.0,
            min_p=(config.min_p or 0.0) if sampled else 0.0,
            repetition_penalty=config.repetition_penalty or 1.0,
            max_tokens=config.max_new_tokens or SamplingParams().max_tokens,
        )

    def _decode(self, output: RequestOutput, params: SamplingParams, draws: Draws) -> Iterator[str]:
        """Yield pieces of text while `output` fills up."""
        tokens = list(output.prompt_token_ids)
        end = min(len(tokens) + params.max_tokens, self.target.context)
        rule = StopRule(params, eos_token_ids(self.target.model), self.tokenizer, end - len(tokens))
        self._prefill(tokens, end, output.stats)
        self.lookahead.begin_request(params)
        while rule.finish_reason is None:
            emitted, outcome = decode_round(
                tokens,
                self.target,
                self.drafter,
                self.lookahead,
                params,
                draws,
                gamma_limit=self._gamma_limit(len(tokens), end),
            )
            output.stats.add_round(outcome)
            for token in emitted:
                tokens.append(token)
                yield rule.push(token)
                if rule.finish_reason is not None:
                    break
        output.token_ids, output.text = rule.token_ids, rule.text
        output.finish_reason = rule.finish_reason

    def _prefill(self, tokens: list[int], end: int, stats: DecodeStats) -> None:
        """Cover all but the last prompt token: the first round feeds that one."""
        begun = time.perf_counter()
        self.target.start(tokens, end)
        if self.drafter is not None:
            self.drafter.reset(end)
        stats.prefill_seconds += time.perf_counter() - begun

    def _gamma_limit(self, length: int, end: int) -> int:
        """Return how many tokens may be drafted: the bonus fits below `end`, the draft below its context."""
        if self.drafter is None:
            return 0
        room = self.target.room(length)
        limit = min(end - length - 1, self.drafter.context - length)
        return max(0, limit if room is None else min(limit, room))

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("prompt: text needs a tokenizer, and the decoder has none")
            prompt = encode_text(self.tokenizer, prompt)
        tokens = [int(token) for token in prompt]
        if not tokens:
            raise ValueError("prompt must have at least one token, got none")
        if len(tokens) >= self.target.context:
            raise ValueError(
                f"prompt has {len(tokens)} tokens; the target's context is {self.target.context}, "
                f"so at most {self.target.context - 1} are allowed"
            )
        top = self.target.width or self.target.model.config.get_text_config().vocab_size
        if not all(0 <= token < top for token in tokens):
            raise ValueError(f"prompt must have token ids in [0, {top}), got {tokens}")
        return tokens


def target_width(target: Any, tokenizer: Any) -> int:
    """Return V: the head's rows, less the padding above the tokenizer's last id."""
    rows = int(target.get_output_embeddings().weight.shape[0])
    return rows if tokenizer is None else min(rows, vocabulary_size(tokenizer))


def load_drafter(
    name: str, tokenizer: Any, *, width: int, device: str = "cpu", dtype: str = "float32"
) -> ModelDrafter:
    """Load a draft model and check it against the target's tokenizer; cut its head where it was trained so.

    Raises:
        ValueError: if the draft means something else by a token id, or its folder is not whole.
    """
    info = DraftInfo.load(name)
    if info is None or info.tokenizer_hash != tokenizer_hash(tokenizer):
        check_same_vocabulary(tokenizer, load_tokenizer(name))
    model = load_causal_lm(name, device=device, dtype=dtype)
    kept = None if info is None else load_kept_tokens(name, info)
    if kept is not None:
        cut_head(model, kept)
    temperature = 1.0 if info is None else info.draft_temperature
    return ModelDrafter(model, width=width, kept=kept, temperature=temperature)


def load_lookahead(
    lookahead: LookaheadPolicy | int | str | Path | None, target: Any = None, draft: Any = None
) -> LookaheadPolicy | None:
    """Return the policy that is meant: a fixed γ, the policy in a folder, or the object itself.

    Args:
        target, draft: the models in use; a folder made with others is refused. None: not checked.

    Raises:
        ValueError: if the folder holds no lookahead, one for other models or another machine, or one
            that nothing installed can load.
    """
    if isinstance(lookahead, int):
        return FixedLookahead(lookahead)
    if not isinstance(lookahead, str | Path):
        return lookahead
    description = Path(lookahead) / "lookahead.json"
    if not description.is_file():
        raise ValueError(f"lookahead: {lookahead} has no lookahead.json")
    kind = json.loads(description.read_text()).get("policy")
    loaders = {
        point.name: point for point in importlib.metadata.entry_points(group="foredraft.lookahead")
    }
    if kind not in loaders:
        raise ValueError(f"{description}: policy must be one of {sorted(loaders)}, got {kind!r}")
    prints = {
        name: None if model is None else model_fingerprint(model)
        for name, model in (("target", target), ("draft", draft))
    }
    policy: LookaheadPolicy = loaders[kind].load()(lookahead, **prints)
    return policy


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Tell one prompt from several: a text, or a flat list of ids, is one."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
