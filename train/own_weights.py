"""Whether a draft is a model of its own: one that can be trained on, verified, exported and calibrated."""

from __future__ import annotations

from pathlib import Path

from ..spec import DraftInfo
from ..spec.cross_tokenizer import CROSS
from ..spec.lookup import PROMPT_LOOKUP
from ..spec.self_draft import exit_layer
from ..spec.shared_tokens import SHARED


def check_own_weights(draft: str | Path) -> None:
    """Raise where a draft is not a model that other engines could load in the target's place.

    Raises:
        ValueError: naming the draft, what it is, and what measures it.
    """
    name = str(draft)
    layer = exit_layer(name)
    heads = None
    if layer is None and not name.startswith((CROSS, SHARED)):
        info = DraftInfo.load(name)
        if info is not None:
            layer, heads = info.exit_layer, info.heads
    if layer is not None:
        is_ = f"an exit after {layer} of the target's layers, which drafts with the target's own weights"
    elif heads is not None:
        is_ = f"heads ({heads}) on the target's states, which draft with the target's own head"
    elif name.startswith((CROSS, SHARED)):
        is_ = "a draft of another tokenizer, whose α is not defined token by token"
    elif name == PROMPT_LOOKUP:
        is_ = "no model"
    elif (Path(name) / "adapter_config.json").is_file():
        raise ValueError(
            f"draft must be the folder of a model of its own, got {name}: adapters of another model; merge "
            "them into it (peft: merge_and_unload), all of them, and give the folder of that"
        )
    else:
        return
    raise ValueError(
        f"draft must be the folder of a model of its own, got {name}: {is_}; "
        f"`foredraft compare --draft {name}` measures it in the decode loop"
    )
