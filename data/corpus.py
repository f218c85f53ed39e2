"""Writes a corpus: every prompt answered by the target itself, resumable at any moment.

An answer draws from a seed of its own, which follows from all that it depends on, and is written whole
or not at all, so an interrupted corpus resumes into the rows it would have had. Models with other
than full attention are decoded by shards: batches of like length, seeded and written together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ..spec import (
    SamplingParams,
    decode_rows,
    eos_token_ids,
    full_attention,
    model_fingerprint,
    render_chat,
    target_width,
    text_hash,
    tokenizer_hash,
)
from ..spec.cached import context_length
from .answers import answer_batch
from .config import CorpusConfig
from .corpus_folder import (
    ROWS_FILE,
    CorpusManifest,
    CorpusRow,
    check_same_origin,
    counted,
    read_rows,
)
from .files import append_group, drop_cut_group
from .prompts import Prompt
from .recommended import recommended_sampling
from .states import StateWriter

Progress = Callable[[int, int, int], None]
"""Told (rows there, rows wanted, response tokens written by this call) after each shard."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A row to be written."""

    id: str
    prompt: Prompt
    prompt_ids: list[int]
    temperature: float


def write_corpus(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    folder: str | Path,
    config: CorpusConfig,
    *,
    keep_states: bool = False,
    progress: Progress | None = None,
) -> CorpusManifest:
    """Let the target answer each prompt once per temperature; return the folder's manifest.

    Rows that the folder already has are kept and not written again, so the same call finishes what
    an earlier one began, and more prompts add to a corpus. On any failure, a full disk included,
    the shards written so far stay whole.

    Args:
        model: the target, a causal LM in eval mode.
        keep_states: also keep the target's last hidden states (see states.py), for rows that are
            written by this call; a trainer then need not run the target.

    Raises:
        ValueError: if there is no prompt, one leaves no room in the context, the model is in
            training mode or cannot give its states, or the folder holds a corpus of another target,
            tokenizer or config.
    """
    if model.training:
        raise ValueError("model must be in eval mode, it is in training mode")
    if keep_states and not full_attention(model):
        raise ValueError("keep_states needs a target with full attention in all layers")
    folder = Path(folder)
    manifest = CorpusManifest(
        target=model.name_or_path,
        target_fingerprint=model_fingerprint(model),
        tokenizer_hash=tokenizer_hash(tokenizer),
        config=config,
        complete=False,
        versions={name: version(name) for name in ("torch", "transformers")},
        recommended=recommended_sampling(model),
    )
    tasks = _tasks(tokenizer, prompts, manifest, context_length(model))
    check_same_origin(folder, manifest)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ROWS_FILE
    drop_cut_group(path)
    there = {row.id for row in read_rows(path)}
    missing = [task for task in tasks if task.id not in there]
    counted(manifest, path, complete=not missing).save(folder)

    done, tokens = len(tasks) - len(missing), 0
    if progress is not None:
        progress(done, len(tasks), tokens)
    width = target_width(model, tokenizer)
    ends = set(eos_token_ids(model))
    with StateWriter(folder) as states:
        if full_attention(model):
            keep = states.add if keep_states else None
            shards = _one_by_one(model, missing, config, width, keep)
        else:
            shards = _by_shards(model, missing, config, width)
        for shard, responses in shards:
            rows = _rows(shard, responses, tokenizer, ends)
            append_group(path, _name(shard), [asdict(row) for row in rows])
            done, tokens = done + len(rows), tokens + sum(len(row.response_ids) for row in rows)
            if progress is not None:
                progress(done, len(tasks), tokens)
    manifest = counted(manifest, path, complete=True)
    manifest.save(folder)
    return manifest


def _tasks(
    tokenizer: Any, prompts: Sequence[Prompt], manifest: CorpusManifest, context: int
) -> list[_Task]:
    """Return the rows wanted, each once: prompts that render to the same tokens are one."""
    if not prompts:
        raise ValueError("prompts must not be empty")
    config = manifest.config
    tasks: dict[str, _Task] = {}
    for prompt in prompts:
        ids = render_chat(tokenizer, prompt.messages)
        room = context - config.max_new_tokens
        if not 1 <= len(ids) <= room:
            raise ValueError(
                f"prompt {prompt.id!r} has {len(ids)} tokens; the context of {context} with "
                f"max_new_tokens = {config.max_new_tokens} allows 1 to {room}"
            )
        for temperature in config.temperatures:
            basis = [ids, temperature, config.seed, config.max_new_tokens]
            # Named only where they take part: rows written before there were any keep their ids.
            narrowed = [config.top_p, config.top_k] if temperature > 0 else [1.0, 0]
            cuts = [] if narrowed == [1.0, 0] else narrowed
            task_id = text_hash(json.dumps([*basis, *cuts, manifest.target_fingerprint]))
            tasks.setdefault(task_id, _Task(task_id, prompt, ids, temperature))
    return list(tasks.values())


def _shards(tasks: Sequence[_Task], batch_size: int) -> list[list[_Task]]:
    """Cut tasks into shards of like length and one temperature, the shortest first.

    Taking whole shards away leaves the cuts between the others where they were.
    """

    def length(task: _Task) -> int:
        return len(task.prompt_ids)

    ordered = sorted(tasks, key=lambda task: (task.temperature, length(task), task.id))
    shards = []
    for _, group in groupby(ordered, key=lambda task: task.temperature):
        same = list(group)
        shards += [same[i : i + batch_size] for i in range(0, len(same), batch_size)]
    return sorted(shards, key=lambda shard: (length(shard[-1]), shard[0].temperature))


def _name(shard: Sequence[_Task]) -> str:
    return text_hash(" ".join(task.id for task in shard))


def _one_by_one(
    model: Any,
    tasks: Sequence[_Task],
    config: CorpusConfig,
    width: int,
    keep: Callable[[str, torch.Tensor], None] | None,
) -> Iterator[tuple[list[_Task], list[list[int]]]]:
    """Yield each answer when it ends; another prompt takes its place in the batch at once.

    Args:
        keep: given a row's id and the states of its response, before it is yielded.
    """
    params = {
        temperature: SamplingParams(
            temperature=temperature,
            top_p=config.top_p if temperature > 0 else 1.0,
            top_k=config.top_k if temperature > 0 else 0,
            max_tokens=config.max_new_tokens,
        )
        for temperature in config.temperatures
    }
    for row in decode_rows(
        model,
        [task.prompt_ids for task in tasks],
        [params[task.temperature] for task in tasks],
        seeds=[_seed(task.id) for task in tasks],  # the row's id holds the config's seed
        rows=config.batch_size,
        eos_token_ids=eos_token_ids(model),
        width=width,
        keep_states=keep is not None,
    ):
        task = tasks[row.index]
        if keep is not None and row.states is not None:
            keep(task.id, row.states)
        yield [task], [row.token_ids]


def _by_shards(
    model: Any, tasks: Sequence[_Task], config: CorpusConfig, width: int
) -> Iterator[tuple[list[_Task], list[list[int]]]]:
    """Yield the answers of whole shards, for models whose rows cannot be at different lengths."""
    for shard in _shards(tasks, config.batch_size):
        yield (
            shard,
            answer_batch(
                model,
                [task.prompt_ids for task in shard],
                temperature=shard[0].temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                max_new_tokens=config.max_new_tokens,
                width=width,
                seed=_seed(_name(shard)),
            ),
        )


def _seed(name: str) -> int:
    return int(name, 16) // 2  # below 2^63


def _rows(
    shard: Sequence[_Task], responses: Sequence[list[int]], tokenizer: Any, ends: set[int]
) -> list[CorpusRow]:
    return [
        CorpusRow(
            id=task.id,
            prompt_id=task.prompt.id,
            domain=task.prompt.domain,
            split=task.prompt.split,
            prompt_ids=task.prompt_ids,
            response_ids=response,
            text=tokenizer.decode(
                response, skip_special_tokens=True, clean_up_tokenization_spaces=False
            ),
            finish_reason="stop" if response[-1] in ends else "length",
            temperature=task.temperature,
        )
        for task, response in zip(shard, responses, strict=True)
    ]
