"""Distil a draft: `accelerate launch -m foredraft.train --config FILE.yaml --learning_rate 1e-3`.

Every field of DistillConfig is a flag and a key of the config file; unknown ones are errors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import jsonargparse

from .config import DistillConfig
from .stopping import Stopped


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    config = parse_config(argv)
    try:
        run(config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:
        if _is_main_process():
            print(stop, file=sys.stderr)
        return stop.status
    return 0


def run(config: DistillConfig) -> None:
    """Train and say what came of it."""
    from ..spec import settle_cpu
    from .distillation import distill

    settle_cpu()
    result = distill(config)
    if not _is_main_process():
        return
    before, best = result.before["eval/T1/alpha_tf"], result.best["eval/T1/alpha_tf"]
    print(f"α on held-out text: {before:.3f} before, {best:.3f} at best, in {result.folder}")


def _is_main_process() -> bool:
    """Say whether this is the one process that speaks; the launcher sets the rank."""
    return os.environ.get("RANK", "0") == "0"


def parse_config(argv: Sequence[str] | None = None) -> DistillConfig:
    """Return what the command line, and the file it names, ask for; exit on a bad field."""
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(prog="python -m foredraft.train", description=__doc__)
    parser.add_argument("--config", action="config", help="YAML file of the fields below.")
    parser.add_class_arguments(DistillConfig)
    values = parser.parse_args(argv).as_dict()
    del values["config"]
    try:
        return DistillConfig(**values)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
