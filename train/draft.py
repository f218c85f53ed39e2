"""Where a draft comes from: the target's first layers or another model; its head may be cut."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ..spec import (
    DraftInfo,
    check_same_vocabulary,
    cut_head,
    eos_token_ids,
    load_causal_lm,
    load_kept_tokens,
    load_tokenizer,
)
from .alignment import Alignment
from .batches import Example, rows_of_step
from .config import DistillConfig
from .heads import LogitHead, head_of
from .lora import add_adapter, merged_state_dict
from .own_weights import check_own_weights
from .teacher import Teacher

RANKED_TOKENS = 4096  # positions of the corpus at which the target's law is added up to rank tokens


@dataclass(slots=True, eq=False)
class Draft:
    """A draft in training."""

    model: Any
    kept: (
        torch.Tensor | None
    )  # [V_draft], target token of each row of a cut head; None: row i is token i
    whole_head: LogitHead | None  # the head before it was cut, for saving; None where it is whole
    alignment: Alignment | None = None  # what was multiplied into the head at the start
    adapted: bool = False  # its body is trained through adapters

    def columns(self, width: int) -> torch.Tensor:
        """Return the tokens [V_draft], below `width`, that the draft can propose."""
        if self.kept is not None:
            return self.kept
        return torch.arange(min(width, head_of(self.model).weight.shape[0]))

    @torch.no_grad()
    def align(self, alignment: Alignment) -> None:
        """Let the head read A·h in place of the last state h: A is multiplied into its rows, all of them."""
        self.alignment = alignment
        head = self.model.get_output_embeddings().weight
        whole = head if self.whole_head is None else self.whole_head.weight
        mapped = (whole.double() @ alignment.matrix.to(whole.device)).to(whole)  # [V, d]
        if self.whole_head is not None and self.kept is not None:
            self.whole_head = self.whole_head._replace(weight=mapped)
            mapped = mapped[self.kept.to(mapped.device)]
        head.copy_(mapped)

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights of a plain model: adapters merged, a cut head's rows back in their places."""
        plain = merged_state_dict(self.model) if self.adapted else self.model.state_dict()
        state: dict[str, torch.Tensor] = plain
        if self.kept is None or self.whole_head is None:
            return state
        name = _head_name(self.model)
        for part, whole in (("weight", self.whole_head.weight), ("bias", self.whole_head.bias)):
            if whole is not None:
                rows = state[f"{name}.{part}"].to(whole)
                state[f"{name}.{part}"] = whole.index_copy(0, self.kept, rows)
        return state


def first_layers(target: Any, layers: int) -> Any:
    """Return a float32 model of the target's first layers, embeddings, final norm and head, untied.

    With all layers it reproduces the target's logits.

    Raises:
        ValueError: if the target has fewer layers, or not the weights that its config describes.
    """
    total = target.config.num_hidden_layers
    if not 1 <= layers <= total:
        raise ValueError(f"layers must be in [1, {total}], the target's, got {layers}")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    config.tie_word_embeddings = False
    for (
        name,
        value,
    ) in target.config.to_dict().items():  # one entry a layer: layer_types, no_rope_layers
        if "layer" in name and isinstance(value, list) and len(value) == total:
            setattr(config, name, value[:layers])
    with (
        torch.random.fork_rng()
    ):  # the initial weights are overwritten: leave the caller's stream alone
        draft = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=target.config._attn_implementation
        )
    state = dict(target.state_dict())
    state.setdefault(f"{_head_name(draft)}.weight", target.get_output_embeddings().weight)  # tied
    wanted = draft.state_dict()
    missing = next((name for name in wanted if name not in state), None)
    if missing is not None:
        raise ValueError(
            f"layers: {type(target).__name__} has no weight {missing!r}, "
            f"which a draft of {layers} layers needs"
        )
    draft.load_state_dict({name: state[name] for name in wanted})
    draft.generation_config = copy.deepcopy(target.generation_config)
    return draft


def starting_model(config: DistillConfig, teacher: Teacher, tokenizer: Any) -> Any:
    """Return the untrained draft that the config asks for, its head whole and untied.

    Raises:
        ValueError: if the draft is no model of its own or has another tokenizer than the target, or `layers`
            does not fit the target.
    """
    if config.draft is None:
        return first_layers(teacher.model, config.layers)
    check_own_weights(config.draft)
    check_same_vocabulary(tokenizer, load_tokenizer(config.draft))
    model = load_causal_lm(config.draft)
    head = model.get_output_embeddings()
    if head.weight is model.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return model


def choose_kept_tokens(
    config: DistillConfig, teacher: Teacher, tokenizer: Any, model: Any, examples: Sequence[Example]
) -> torch.Tensor | None:
    """Return the tokens [V_draft] that the head is cut to, ascending; None to leave it whole.

    Args:
        model: the draft, its head whole.
        examples: the training rows.
    """
    width = min(teacher.width, head_of(model).weight.shape[0])
    if config.head_tokens is None or config.head_tokens >= width:
        return None
    scores = rank_tokens(teacher, examples, seed=config.seed, chunk_tokens=config.chunk_tokens)
    return best_tokens(scores[:width], config.head_tokens, end_tokens(teacher.model, tokenizer))


def load_draft(folder: Path, config: DistillConfig) -> Draft:
    """Return the draft of a checkpoint, as it was in training."""
    info = DraftInfo.load(folder)
    if info is None:
        raise ValueError(f"{folder}: not a checkpoint of foredraft.train, it has no foredraft.json")
    return prepare_draft(load_causal_lm(str(folder)), load_kept_tokens(folder, info), config)


def prepare_draft(model: Any, kept: torch.Tensor | None, config: DistillConfig) -> Draft:
    """Cut the head to the tokens `kept`; say which weights are trained, and what is kept for the backward."""
    whole_head = None
    if kept is not None:
        head = head_of(model)
        bias = None if head.bias is None else head.bias.detach()
        whole_head = LogitHead(head.weight.detach(), bias, head.softcap)
        cut_head(model, kept)
    if config.gradient_checkpointing:
        # Reentrant checkpoints need an input with a gradient: the embedding's is not trained (B65).
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train().requires_grad_(True)
    if config.lora_rank:
        add_adapter(model, config)
    model.get_input_embeddings().requires_grad_(config.train_embeddings)
    model.get_output_embeddings().requires_grad_(config.train_head)
    return Draft(model, kept, whole_head, adapted=config.lora_rank > 0)


def rank_tokens(
    teacher: Teacher, examples: Sequence[Example], *, seed: int, chunk_tokens: int
) -> torch.Tensor:
    """Return how often each token is expected in responses: [V], in tokens.

    Counts of the corpus, and the target's own law added up over some of its positions: a draw says
    little of rare tokens, the law it was drawn from ranks them all.
    """
    scores = torch.zeros(teacher.width, dtype=torch.float64)
    for example in examples:
        scores += torch.bincount(example.predicted, minlength=teacher.width)[: teacher.width]
    left = RANKED_TOKENS
    each = tuple((row,) for row in range(len(examples)))
    for row in rows_of_step(seed, 0, each, len(each)):
        if left <= 0:
            break
        left -= examples[row].supervised
        for chunk in torch.split(teacher.hidden([examples[row]]), chunk_tokens):
            scores += teacher.logits(chunk).softmax(-1).sum(0).double().cpu()
    return scores


def best_tokens(scores: torch.Tensor, size: int, always: Iterable[int]) -> torch.Tensor:
    """Return the ids of the `size` best scores, `always` among them, ascending; low ids win ties.

    Args:
        scores: [V].
        always: ids to keep whatever they score; those outside [0, V) are left out.

    Raises:
        ValueError: if `always` alone is more than `size`.
    """
    must = sorted({token for token in always if 0 <= token < len(scores)})
    if len(must) > size:
        raise ValueError(
            f"head_tokens must be at least {len(must)}, the special tokens, got {size}"
        )
    scores = scores.clone()
    scores[must] = torch.inf
    return scores.argsort(descending=True, stable=True)[:size].sort().values  # [size]


def end_tokens(target: Any, tokenizer: Any) -> list[int]:
    """Return the special tokens, and those that end the target's output."""
    return [*tokenizer.all_special_ids, *eos_token_ids(target)]


def _head_name(model: Any) -> str:
    head = model.get_output_embeddings()
    return str(next(name for name, module in model.named_modules() if module is head))
