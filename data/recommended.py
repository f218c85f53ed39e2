"""What a target's makers recommend to sample it with, for the record of a corpus."""

from __future__ import annotations

from typing import Any

FIELDS = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def recommended_sampling(model: Any) -> dict[str, bool | int | float]:
    """Return what the model's generation config says of sampling; what it leaves open is left out.

    An engine that is given no parameters decodes with these, and so a draft is best taught on them.
    """
    config = model.generation_config
    found = {name: getattr(config, name) for name in FIELDS}
    return {name: value for name, value in found.items() if value is not None}
