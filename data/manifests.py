"""What all recorded folders share: a manifest of a schema, read back or refused, and equal origins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

MANIFEST_FILE = "manifest.json"

Manifest = TypeVar("Manifest")


def load_manifest(
    folder: str | Path,
    make: Callable[[dict[str, Any]], Manifest],
    *,
    schema: int | tuple[int, ...],
    what: str,
) -> Manifest:
    """Return what the folder's manifest says.

    Args:
        make: makes it of the file's content; any misfit is a KeyError, TypeError or ValueError.
        schema: the version that is read, or all that are.
        what: the folder holds, such as "a corpus" or "traces".

    Raises:
        ValueError: if there is none, or it is broken or of another schema.
    """
    path = Path(folder) / MANIFEST_FILE
    if not path.is_file():
        none = what.removeprefix("a ")
        raise ValueError(f"folder: {folder} holds no {none}: it has no {MANIFEST_FILE}")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        readable = schema if isinstance(schema, tuple) else (schema,)
        if content.get("schema") not in readable:
            wanted = " or ".join(map(str, readable))
            raise ValueError(f"schema is {content.get('schema')!r}, expected {wanted}")
        return make(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not {what} of this version: {error}") from error


def refuse_other_origin(
    folder: Path, pairs: Iterable[tuple[str, object, object]], *, what: str
) -> None:
    """Refuse a folder that was made otherwise than what is to be added to it will be.

    Args:
        pairs: name of what must be equal, what the folder says, what is wanted.

    Raises:
        ValueError: naming the first that differs, and both values.
    """
    for name, old, new in pairs:
        if old != new:
            raise ValueError(
                f"folder: {folder} holds {what} with {name} = {old!r}, not {new!r}; "
                "choose another folder, or the same settings to go on with this one"
            )
