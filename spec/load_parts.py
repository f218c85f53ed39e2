"""Loads what a decoder is made of besides its target: the draft and the lookahead."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from .chain import CHAIN, ChainDrafter
from .cross_tokenizer import CROSS, CrossTokenizerDrafter
from .draft_folder import DraftInfo, cut_head, load_kept_tokens
from .drafter import Drafter, ModelDrafter
from .exit_folder import find_self_drafter
from .fingerprint import model_fingerprint, tokenizer_hash
from .head_folder import find_head_drafter
from .load import load_causal_lm, load_tokenizer
from .lookup import PROMPT_LOOKUP, PromptLookupDrafter
from .packed import pack_linears
from .policy import FixedLookahead, LookaheadPolicy
from .shared_tokens import SHARED, SharedTokensDrafter
from .vocabulary import check_same_vocabulary, target_width

ADAPTIVE = "adaptive"
"""Names the controller where a lookahead is given by name."""


def load_drafter(
    name: str, tokenizer: Any, *, width: int, device: str = "cpu", dtype: str = "float32"
) -> ModelDrafter:
    """Load a draft model and check it against the target's tokenizer; cut its head where it was trained so.

    On a CPU its linear layers may be packed, rounded to float16 where that is faster (`pack_linears`).

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
    pack_linears(model, draft=True)
    temperature = 1.0 if info is None else info.temperature
    return ModelDrafter(model, width=width, kept=kept, temperature=temperature)


def load_named(
    name: str, tokenizer: Any, *, width: int, device: str = "cpu", dtype: str = "float32"
) -> Drafter:
    """Load the draft that a name means; "cross:" or "shared:" stands before one with another tokenizer.

    Raises:
        ValueError: see `load_drafter`, `CrossTokenizerDrafter` and `SharedTokensDrafter`.
    """
    if not name.startswith((CROSS, SHARED)):
        return load_drafter(name, tokenizer, width=width, device=device, dtype=dtype)
    _, folder = name.split(":", 1)
    model = load_causal_lm(folder, device=device, dtype=dtype)
    pack_linears(model, draft=True)
    if name.startswith(CROSS):
        return CrossTokenizerDrafter(model, load_tokenizer(folder), tokenizer)
    return SharedTokensDrafter(model, load_tokenizer(folder), tokenizer, width=width)


def find_drafter(
    draft: Drafter | str | None,
    tokenizer: Any,
    target: Any,
    *,
    device: str = "cpu",
    dtype: str = "float32",
) -> Drafter | None:
    """Return the drafter that is meant: the object itself, or one by name.

    Names are "prompt-lookup", "self:K", and the hub id or folder of a model, or the folder of a trained exit or
    of trained heads; a model with another tokenizer has "cross:" or "shared:" before its own. "chain:" before
    the name of a draft model puts prompt lookup before it.

    Args:
        target: the model in use.

    Raises:
        ValueError: see `load_named`, `SelfDrafter`, `find_head_drafter` and `ChainDrafter`.
    """
    if not isinstance(draft, str):
        return draft
    if draft.startswith(CHAIN):
        name = draft.removeprefix(CHAIN)
        return ChainDrafter(find_drafter(name, tokenizer, target, device=device, dtype=dtype))
    if draft == PROMPT_LOOKUP:
        return PromptLookupDrafter()
    width = target_width(target, tokenizer)
    own = find_self_drafter(draft, target, width=width)
    if own is not None:
        return own
    heads = find_head_drafter(draft, target, tokenizer, width=width)
    if heads is not None:
        return heads
    return load_named(draft, tokenizer, width=width, device=device, dtype=dtype)


def draft_model(drafter: Drafter | None) -> Any:
    """Return the model that drafts, alone or in a chain, or None where none does."""
    if isinstance(drafter, ChainDrafter):
        drafter = drafter.model
    return drafter.cached.model if isinstance(drafter, ModelDrafter) else None


def sources_of(drafter: Drafter | None) -> str:
    """Return what drafts: a "lookup", a "chain" of it and a model, or a "model"."""
    if isinstance(drafter, ChainDrafter):
        return "chain"
    return "lookup" if isinstance(drafter, PromptLookupDrafter) else "model"


def load_lookahead(
    lookahead: LookaheadPolicy | int | str | Path | None,
    target: Any = None,
    draft: Any = None,
    *,
    sources: str = "model",
) -> LookaheadPolicy | None:
    """Return the policy that is meant: a fixed γ, the policy in a folder, or the object itself.

    Args:
        lookahead: "adaptive", where there is no such folder, is the policy of prompt lookup that needs none.
        target, draft: the models in use; a folder made with others is refused. None: not checked.
        sources: see `sources_of`; the folder's policy for them is taken.

    Raises:
        ValueError: if the folder holds no lookahead, or one that nothing installed can load. What is done
            about one for other models or another machine is up to what loads it.
    """
    if isinstance(lookahead, int):
        return FixedLookahead(lookahead)
    if not isinstance(lookahead, str | Path):
        return lookahead
    description = Path(lookahead) / "lookahead.json"
    folder: str | Path | None = lookahead
    if description.is_file():
        kind = _policy_of(description)
    elif lookahead == ADAPTIVE:
        kind, folder = ADAPTIVE, None
    else:
        raise ValueError(f"lookahead: {lookahead} has no lookahead.json")
    loaders = {
        point.name: point for point in importlib.metadata.entry_points(group="foredraft.lookahead")
    }
    if kind not in loaders:
        raise ValueError(f"{description}: policy must be one of {sorted(loaders)}, got {kind!r}")
    prints = {
        name: None if model is None else model_fingerprint(model)
        for name, model in (("target", target), ("draft", draft))
    }
    policy: LookaheadPolicy = loaders[kind].load()(folder, **prints, sources=sources)
    return policy


def _policy_of(description: Path) -> Any:
    """Return the kind of policy that a `lookahead.json` describes."""
    try:
        return json.loads(description.read_text())["policy"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{description}: not the description of a lookahead: {error}") from error
