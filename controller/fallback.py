"""What decodes where a saved lookahead cannot be used: a bandit, which needs nothing known beforehand."""

from __future__ import annotations

import warnings
from pathlib import Path

from ..spec import LookaheadPolicy
from .adaptive import AdaptiveLookahead
from .bandit import GammaBandit


def load_or_bandit(
    folder: str | Path, *, target: str | None = None, draft: str | None = None
) -> LookaheadPolicy:
    """Return the saved AdaptiveLookahead; where its files are refused, say why in a warning and learn anew.

    This is what `lookahead="folder"` of a decoder calls. `AdaptiveLookahead.load` raises instead.

    Args:
        target, draft: fingerprints of the models in use; None: not checked.
    """
    try:
        return AdaptiveLookahead.load(folder, target=target, draft=draft)
    except ValueError as error:
        warnings.warn(
            f"lookahead: {error}; decoding goes on with a bandit over γ, which learns from what rounds "
            "take (run `foredraft fit` to make the folder anew)",
            stacklevel=2,
        )
        return GammaBandit()
