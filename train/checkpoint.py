"""Checkpoints, whole or absent: plain transformers folders with what training needs to go on.

A checkpoint is written into a hidden folder beside its place, flushed to the disk and renamed. The
newest `step-*` folder is therefore always a good one, whatever interrupted the run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from ..spec import DraftInfo, save_kept_tokens
from .alignment import Alignment
from .batches import Example
from .draft import Draft
from .held_out import save_held_out
from .lora import adapter_parts, load_adapter_parts

STATE_FOLDER = "trainer_state"
ENGINE = "engine"  # in it, in place of the optimizer's state: what DeepSpeed wrote
SAMPLES = "samples.html"
ALIGNMENT = "alignment.pt"
ADAPTERS = "adapters.pt"
PENDING = ".pending-"  # prefix of what is being written or removed


@dataclass(slots=True)
class TrainerState:
    """Where a run stands."""

    step: int = 0  # optimizer steps made
    tokens: int = 0  # supervised tokens seen, all processes together
    seconds: float = 0.0  # spent in training, earlier attempts included
    before: dict[str, float] = field(default_factory=dict)  # metrics on held-out rows at step 0
    best: dict[str, float] = field(default_factory=dict)  # the same at best_step
    best_step: int = 0
    done: bool = False


def checkpoint_folder(output: Path, step: int) -> Path:
    """Return where the checkpoint of a step is."""
    return output / f"step-{step:06d}"


def newest_checkpoint(output: Path) -> Path | None:
    """Return the folder to resume from, or None."""
    return max(output.glob("step-[0-9]*"), key=_step_of, default=None)


def save_checkpoint(
    output: Path,
    draft: Draft,
    tokenizer: Any,
    info: DraftInfo,
    state: TrainerState,
    optimizer_state: dict[str, Any] | Path,
    rng_states: list[list[torch.Tensor]],
    *,
    keep: int,
    held_out: Sequence[Example] = (),
    samples: str | None = None,
) -> None:
    """Write the checkpoint of `state.step`, update `latest` and `best`, remove old checkpoints.

    Args:
        optimizer_state: or the folder that an engine wrote it into, which is moved.
        rng_states: of each process, as `read_rng` gives them.
        keep: newest checkpoints to keep, besides the best.
        samples: a page of answers to look at.
        held_out: the rows that `info.metrics` were measured on; `foredraft verify` measures again.

    Raises:
        OSError: if it could not be written; earlier checkpoints are untouched.
    """
    place = checkpoint_folder(output, state.step)
    pending = output / f"{PENDING}{place.name}"
    shutil.rmtree(pending, ignore_errors=True)
    try:
        with no_progress_bars():
            draft.model.save_pretrained(pending, state_dict=draft.whole_state_dict())
        tokenizer.save_pretrained(pending)
        info.save(pending)
        if draft.kept is not None:
            save_kept_tokens(pending, draft.kept)
        save_held_out(pending, held_out)
        if samples is not None:
            (pending / SAMPLES).write_text(samples, encoding="utf-8")
        trainer = pending / STATE_FOLDER
        trainer.mkdir()
        (trainer / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n")
        if isinstance(optimizer_state, Path):
            os.rename(optimizer_state, trainer / ENGINE)
        else:
            torch.save(optimizer_state, trainer / "optimizer.pt")
        torch.save(rng_states, trainer / "rng.pt")
        if draft.adapted:
            torch.save(adapter_parts(draft.model), trainer / ADAPTERS)
        if draft.alignment is not None:
            torch.save(tuple(draft.alignment), trainer / ALIGNMENT)
        _flush_tree(pending)
        os.rename(pending, place)
        _flush(output)
    except BaseException:
        shutil.rmtree(pending, ignore_errors=True)
        raise
    tidy(output, state, keep=keep)


def tidy(output: Path, state: TrainerState, *, keep: int) -> None:
    """Point `latest` and `best` where the state says; remove leftovers and old checkpoints."""
    _link(output / "latest", checkpoint_folder(output, state.step))
    best = checkpoint_folder(output, state.best_step)
    _link(output / "best", best)
    for leftover in output.glob(f"{PENDING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folders = sorted(output.glob("step-[0-9]*"), key=_step_of)
    for folder in folders[:-keep]:
        if folder != best:
            doomed = output / f"{PENDING}{folder.name}"
            os.rename(folder, doomed)  # at once: half a checkpoint never bears the name of one
            shutil.rmtree(doomed)


def load_state(folder: Path) -> TrainerState:
    """Return where the run stood when the checkpoint was written.

    Raises:
        ValueError: if another version of foredraft wrote something that this one does not know.
    """
    path = folder / STATE_FOLDER / "state.json"
    try:
        return TrainerState(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a state of this version: {error}") from error


def load_tensors(folder: Path) -> tuple[dict[str, Any], list[list[torch.Tensor]]]:
    """Return the optimizer's state, on the CPU, and the random states of each process.

    Raises:
        FileNotFoundError: where an engine keeps the optimizer's state.
    """
    path = folder / STATE_FOLDER / "optimizer.pt"
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state, load_rng(folder)


def load_rng(folder: Path) -> list[list[torch.Tensor]]:
    """Return the random states of each process."""
    path = folder / STATE_FOLDER / "rng.pt"
    states: list[list[torch.Tensor]] = torch.load(path, map_location="cpu", weights_only=True)
    return states


def load_alignment(folder: Path) -> Alignment | None:
    """Return what the draft's head was aligned with when the run began, or None."""
    path = folder / STATE_FOLDER / ALIGNMENT
    return Alignment(*torch.load(path, weights_only=True)) if path.exists() else None


def restore_adapters(folder: Path, draft: Draft) -> None:
    """Take the adapters of a draft's checkpoint apart again, where it is trained through some."""
    if draft.adapted:
        path = folder / STATE_FOLDER / ADAPTERS
        load_adapter_parts(draft.model, torch.load(path, map_location="cpu", weights_only=True))


def read_rng(device: torch.device) -> list[torch.Tensor]:
    """Return the states of the generators that dropout draws from: CPU, and CUDA if used."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def write_rng(states: list[torch.Tensor], device: torch.device) -> None:
    """Put back what `read_rng` gave."""
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers' bars out of ours while the block runs."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _link(link: Path, folder: Path) -> None:
    """Make a relative link point at a folder beside it, at once."""
    fresh = link.with_name(f".{link.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder.name)
    os.replace(fresh, link)


def _flush_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
