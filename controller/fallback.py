"""What decodes where a saved lookahead cannot be used: a policy that needs nothing known beforehand."""

from __future__ import annotations

import warnings
from pathlib import Path

from ..spec import LookaheadPolicy
from .adaptive import AdaptiveLookahead
from .bandit import GammaBandit
from .chain_lookahead import ChainLookahead
from .lookup_lookahead import LookupLookahead


def load_or_bandit(
    folder: str | Path | None,
    *,
    target: str | None = None,
    draft: str | None = None,
    sources: str = "model",
) -> LookaheadPolicy:
    """Return the saved controller; where its files are refused, say why in a warning and learn anew.

    This is what `lookahead="folder"` of a decoder calls. `AdaptiveLookahead.load` raises instead.

    Args:
        folder: None: there is none, which only prompt lookup does without.
        target, draft: fingerprints of the models in use; None: not checked.
        sources: what drafts: a "model", a "lookup" (whose policy takes the table and the settings), or a
            "chain" of both.

    Raises:
        ValueError: if there is no folder and it is needed.
    """
    if folder is None:
        if sources != "lookup":
            raise ValueError(
                'lookahead: "adaptive" without a folder is for prompt lookup only; for a draft model give '
                "the folder that `foredraft fit` writes"
            )
        return LookupLookahead()
    try:
        match sources:
            case "lookup":
                return LookupLookahead.load(folder, target=target)
            case "chain":
                return ChainLookahead.load(folder, target=target, draft=draft)
        return AdaptiveLookahead.load(folder, target=target, draft=draft)
    except ValueError as error:
        instead: LookaheadPolicy = LookupLookahead() if sources == "lookup" else GammaBandit()
        with_what = "a bandit over γ" if sources != "lookup" else f"{instead!r}"
        warnings.warn(
            f"lookahead: {error}; decoding goes on with {with_what}, which learns from what rounds "
            "take (run `foredraft fit` to make the folder anew)",
            stacklevel=2,
        )
        return instead
