"""Decodings of the policies benchmark: one prompt in every arm by turns, kept line by line on disk."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foredraft.cli.comparing import read_by_turns
from foredraft.data import Prompt
from foredraft.data.files import append_group, drop_cut_group, read_groups
from foredraft.spec import SamplingParams, SpeculativeDecoder, render_chat, text_hash

CELLS = "cells.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One decoding of one prompt in one arm."""

    seconds: float  # of its rounds
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    draft_steps: int
    equal: bool  # the tokens are those of the plain arm


def measure(
    arms: Mapping[str, SpeculativeDecoder], prompt: Prompt, params: SamplingParams, *, seed: int
) -> dict[str, Measured]:
    """Decode a prompt in every arm, a piece of the shortest output at a time.

    Args:
        arms: twins, so that their caches are their own; the first is plain decoding.
        seed: of the order among outputs of equal length.
    """
    decoders = list(arms.values())
    text = render_chat(decoders[0].tokenizer, prompt.messages)
    streams = [decoder.stream(text, params) for decoder in decoders]
    read_by_turns(streams, random.Random(seed))
    plain = streams[0].output.token_ids
    found = {}
    for name, stream in zip(arms, streams, strict=True):
        stats, tokens = stream.output.stats, stream.output.token_ids
        found[name] = Measured(
            seconds=stats.round_seconds,
            tokens=len(tokens),
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            draft_steps=stats.draft_steps,
            equal=tokens == plain,
        )
    return found


@dataclass(frozen=True, slots=True)
class PromptCells:
    """All decodings of one prompt."""

    domain: str
    arms: dict[str, list[Measured]]  # by repeats, in each arm as many


class Cells:
    """The decodings that are done, each written when all arms have it: whole or not at all."""

    def __init__(self, folder: Path, origin: Mapping[str, Any]) -> None:
        """Read what an earlier run of the same `origin` finished; cells of others are kept and not used.

        Raises:
            ValueError: if the file is broken other than at its end.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / CELLS
        self._key = text_hash(json.dumps(origin, sort_keys=True))
        self.done: dict[tuple[int, int], dict[str, Measured]] = {}  # (repeat, prompt) -> by arm
        drop_cut_group(self._path)
        for _, row in read_groups(self._path):
            if row.pop("key") == self._key:
                place = (row.pop("repeat"), row.pop("prompt"))
                name = row.pop("arm")
                self.done.setdefault(place, {})[name] = Measured(**row)

    def add(self, repeat: int, prompt: int, cells: Mapping[str, Measured]) -> None:
        """Write the decodings of a prompt and wait until the disk has them."""
        where = {"key": self._key, "repeat": repeat, "prompt": prompt}
        rows = [{**where, "arm": name, **asdict(cell)} for name, cell in cells.items()]
        append_group(self._path, f"{self._key[:8]}-{repeat}-{prompt}", rows)
        self.done[repeat, prompt] = dict(cells)

    def by_prompt(self, domains: Sequence[str]) -> list[PromptCells]:
        """Return the prompts that have a decoding.

        Args:
            domains: of each prompt.
        """
        prompts: dict[int, PromptCells] = {}
        for (_, index), cells in sorted(self.done.items()):
            if index < len(domains):
                own = prompts.setdefault(index, PromptCells(domains[index], {}))
                for name, cell in cells.items():
                    own.arms.setdefault(name, []).append(cell)
        return [prompts[index] for index in sorted(prompts)]
