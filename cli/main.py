"""The command `foredraft`: one subcommand for each thing that is done from a shell."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import jsonargparse

from ..train.config import DistillConfig
from ..train.exit_config import ExitConfig
from ..train.head_config import HeadConfig
from ..train.stopping import Stopped
from .bench_config import AdviseCommand, BenchCommand
from .config import (
    CalibrateCommand,
    CompareCommand,
    CorpusCommand,
    DemoCommand,
    ExportCommand,
    FitCommand,
    GenerateCommand,
    PlanCommand,
    PreviewCommand,
    ReportCommand,
    VerifyCommand,
)

# name -> (settings, module and function that does it; imported only when asked for)
COMMANDS: dict[str, tuple[type, str, str]] = {
    "demo": (DemoCommand, "demo", "run_demo"),
    "corpus": (CorpusCommand, "commands", "run_corpus"),
    "plan": (PlanCommand, "planning", "run_plan"),
    "preview": (PreviewCommand, "preview", "run_preview"),
    "train": (DistillConfig, "commands", "run_train"),
    "train-exit": (ExitConfig, "training_exit", "run_train_exit"),
    "train-head": (HeadConfig, "training_head", "run_train_head"),
    "fit": (FitCommand, "commands", "run_fit"),
    "report": (ReportCommand, "fit_report", "run_report"),
    "compare": (CompareCommand, "commands", "run_compare"),
    "generate": (GenerateCommand, "commands", "run_generate"),
    "verify": (VerifyCommand, "verifying", "run_verify"),
    "calibrate": (CalibrateCommand, "calibrating", "run_calibrate"),
    "export": (ExportCommand, "commands", "run_export"),
    "bench": (BenchCommand, "bench", "run_bench"),
    "advise": (AdviseCommand, "bench_advising", "run_advise"),
}
POSITIONAL = {
    "preview": "data",
    "report": "lookahead",
    "verify": "draft",
    "calibrate": "draft",
    "export": "draft",
}  # command -> the field that is given without a flag
FIRST = {
    "data": "Corpus folder, or conversations.",
    "draft": "Folder of the draft.",
    "lookahead": "Folder.",
}
TWO_FILES = "Two bench.json to compare instead of measuring."


def make_parser() -> jsonargparse.ArgumentParser:
    """Return the parser: each subcommand has its settings as flags, `--config` and `--print_config`."""
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(
        prog="foredraft", description="Speculative decoding: distilled drafts, adaptive lookahead."
    )
    commands = parser.add_subcommands(dest="command")
    for name, (settings, _, _) in COMMANDS.items():
        summary = (settings.__doc__ or "").splitlines()[0]
        one = jsonargparse.ArgumentParser(description=summary)
        one.add_argument("--config", action="config", help="YAML file of the fields below.")
        first = POSITIONAL.get(name)
        if first is not None:
            one.add_argument(first, help=FIRST[first])
        skipped = set() if first is None else {first}
        if name == "bench":  # two files after one flag, as a shell completes them
            one.add_argument("--compare", nargs=2, metavar=("A", "B"), default=(), help=TWO_FILES)
            skipped = {"compare"}
        one.add_class_arguments(settings, skip=skipped)
        commands.add_subcommand(name, one, help=summary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 1 where a check failed, 2 where the input was wrong."""
    parser = make_parser()
    values = parser.parse_args(argv).as_dict()
    name = values["command"]
    settings, module, function = COMMANDS[name]
    fields = values[name]
    del fields["config"]
    try:
        config = settings(**fields)
        run = getattr(importlib.import_module(f".{module}", __package__), function)
        status: int | None = run(config)
    except ValueError as error:
        print(f"foredraft {name}: error: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(f"\nforedraft {name}: {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print(f"\nforedraft {name}: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
