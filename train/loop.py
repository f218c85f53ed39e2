"""The training loop: models, optimizer, where a run stands, and what it measures.

Gradients do not depend on how a batch is split into micro-batches and processes: a loss is a sum
over supervised tokens, divided by how many the whole batch of the step has.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from ..spec import DraftInfo
from .alignment import state_map
from .batches import Corpus, Example, even_parts, prompt_groups, rows_of_step, share
from .checkpoint import checkpoint_folder, read_rng, save_checkpoint, tidy
from .config import DistillConfig
from .deepspeed_engine import save_engine
from .evaluation import domains_of, evaluate
from .in_loop import TAU, LoopProbe
from .on_policy import OnPolicyText
from .optimizer import make_optimizer
from .packing import collate_for
from .result import DistillResult
from .samples import log_samples, samples_page
from .schedule import learning_rate
from .sharded import gather_weights, plain_model, spread_weights, whole, whole_optimizer_state
from .starting import check_draft, restore_training, start_draft
from .stopping import Stopped, StopRequest
from .supervision import answers_for, loss_module
from .teacher import Teacher
from .teacher_cache import TeacherCache
from .tracking import ALPHA, MetricLog, ProgressLine, peak_memory_gb

PICKS_BEST = {"alpha": ALPHA, "tau": TAU}  # by `best_by` of the config


class Run:
    """A run on this process: models, optimizer, where it stands, and what it measured."""

    def __init__(
        self,
        config: DistillConfig,
        accelerator: Accelerator,
        teacher: Teacher,
        tokenizer: Any,
        corpus: Corpus,
        sources: dict[str, Any],
        checkpoint: Path | None,
        cache: TeacherCache | None = None,
    ) -> None:
        """Start at the checkpoint, or from the beginning where there is none."""
        self.config, self.accelerator, self.corpus = config, accelerator, corpus
        self.teacher, self.tokenizer, self.sources = teacher, tokenizer, sources
        self.output = Path(config.output)
        examples = corpus.train.examples
        self.state, self.draft = start_draft(config, teacher, tokenizer, examples, checkpoint)
        self.draft.model.to(accelerator.device)
        trained = self.draft.model
        self.draft.model = plain_model(trained, accelerator)
        check_draft(self.draft.model, examples, accelerator.device)
        self.collate = collate_for(self.draft.model)
        self.groups = prompt_groups(examples)
        held_out = corpus.dev.examples
        self.probe = LoopProbe(config, accelerator, teacher, tokenizer, self.draft, held_out)
        self.columns = self.draft.columns(teacher.width)  # [V_draft]
        self.on_policy = None
        if config.on_policy_share > 0:
            resumed = checkpoint is not None
            self.on_policy = OnPolicyText(
                config, accelerator, teacher, self.draft, examples, resumed=resumed
            )
        self.answers = answers_for(config, teacher, self.columns, cache)
        alignment = self.draft.alignment if config.state_weight > 0 else None
        loss = loss_module(config, trained, teacher, self.columns, cache, alignment)
        self.loss, self.optimizer = accelerator.prepare(loss, make_optimizer(loss, config))
        if checkpoint is not None:
            restore_training(accelerator, self.optimizer, checkpoint)
            if accelerator.is_main_process:
                tidy(self.output, self.state, keep=config.keep)
        self.samples: tuple[int, str] = (-1, "")  # a page of the last evaluation's answers
        self.log = MetricLog(
            accelerator, self.output, step=None if checkpoint is None else self.state.step
        )

    def train(self, progress: ProgressLine, request: StopRequest) -> None:
        """Make the steps that are left; measure, log and save on the way.

        Raises:
            Stopped: if it was requested, at the end of a step, after the step's checkpoint.
        """
        config, state = self.config, self.state
        earlier, begun = state.seconds, time.perf_counter()
        if not state.before:
            self.measure(progress)
            if config.draft is None and config.head_start == "aligned":
                self.align()
                self.measure(progress)
            state.seconds, number = self._agreed(earlier + time.perf_counter() - begun, request)
            self.save()
            self._stop(number)
        while not state.done:
            metrics = self.step()
            state.step += 1
            self.log.add(state.step, metrics)
            state.seconds, number = self._agreed(earlier + time.perf_counter() - begun, request)
            out_of_time = config.max_seconds is not None and state.seconds >= config.max_seconds
            state.done = state.step >= config.steps or out_of_time
            progress.step(state.step, metrics["train/loss"], metrics["perf/tokens_per_s"])
            new_best = False
            if state.done or state.step % config.eval_every == 0:
                new_best = self.measure(progress)
            if state.done or new_best or number or state.step % config.save_every == 0:
                self.save()
            self._stop(number)

    def align(self) -> None:
        """Start the head from the closed-form map of the draft's states to the target's."""
        alignment = None
        if self.accelerator.is_main_process:  # its map for all: elsewhere it may round otherwise
            examples = self.corpus.train.examples
            alignment = state_map(self.draft.model, self.teacher, examples, self.collate)
        alignment = broadcast_object_list([alignment])[0]
        self.draft.align(alignment)
        loss = self.accelerator.unwrap_model(self.loss)
        spread_weights(self.draft.model, loss.draft)
        if self.config.state_weight > 0:
            loss.alignment = alignment

    def step(self) -> dict[str, float]:
        """Make an optimizer step and return its metrics."""
        config, accelerator, state = self.config, self.accelerator, self.state
        begun = time.perf_counter()
        examples = self.corpus.train.examples
        rows = rows_of_step(config.seed, state.step, self.groups, config.batch_rows)
        batch = [examples[row] for row in rows]
        if self.on_policy is not None:
            self.gather_draft()  # it may write
            batch = self.on_policy.mix(state.step, batch)
        tokens = sum(example.supervised for example in batch)
        rate = learning_rate(config, state.step, state.seconds)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums, teacher_seconds = self._accumulate_gradients(batch, tokens)
        norm = accelerator.clip_grad_norm_(self.loss.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        divergence, distance = (accelerator.reduce(sums, reduction="sum") / tokens).tolist()
        mean_loss = divergence + config.state_weight * distance
        if not math.isfinite(mean_loss):
            raise FloatingPointError(f"the loss is {mean_loss} at step {state.step + 1}")
        state.tokens += tokens
        seconds = time.perf_counter() - begun
        distances = {"train/states": distance} if config.state_weight > 0 else {}
        return {
            "train/loss": mean_loss,
            f"train/{config.loss}": divergence,
            **distances,
            "train/lr": rate,
            "train/grad_norm": float(whole(norm)),
            "train/tokens": float(state.tokens),
            "perf/tokens_per_s": tokens / seconds,
            "perf/teacher_ms": 1e3 * teacher_seconds,
            "perf/draft_ms": 1e3 * (seconds - teacher_seconds),
            "perf/peak_mem_gb": peak_memory_gb(accelerator.device),
        }

    def _accumulate_gradients(
        self, examples: Sequence[Example], tokens: int
    ) -> tuple[torch.Tensor, float]:
        """Add up gradients of the loss per token; return this process's sums [2] and teacher seconds.

        Args:
            examples: of all processes.
            tokens: supervised in them.
        """
        accelerator = self.accelerator
        parts = even_parts(
            examples, accelerator.process_index, accelerator.num_processes, self.config.micro_rows
        )
        total = torch.zeros(2, device=accelerator.device)
        teacher_seconds = 0.0
        for index, (part, weight) in enumerate(parts):
            begun = time.perf_counter()
            answers = self.answers(part)
            teacher_seconds += time.perf_counter() - begun
            batch = self.collate(part)
            last = index == len(parts) - 1
            accelerator.sync_gradients = last  # in whose backward DeepSpeed makes its step
            with nullcontext() if last else accelerator.no_sync(self.loss):
                sums = weight * self.loss(batch, *answers)  # [2]
                loss = sums[0] + self.config.state_weight * sums[1]
                # DDP takes the mean over processes; the sum is wanted.
                accelerator.backward(loss * accelerator.num_processes / tokens)
            total += sums.detach()
        return total, teacher_seconds

    def gather_draft(self) -> None:
        """Bring `draft` up to date with the weights in training; all processes call it."""
        gather_weights(self.accelerator.unwrap_model(self.loss).draft, self.draft.model)

    def measure(self, progress: ProgressLine) -> bool:
        """Evaluate on held-out rows, log it, and return whether the draft is the best so far."""
        accelerator, state = self.accelerator, self.state
        self.gather_draft()
        metrics = evaluate(
            self.teacher,
            self.draft.model,
            self.columns,
            share(self.corpus.dev.examples, accelerator.process_index, accelerator.num_processes),
            collate=self.collate,
            batch_rows=self.config.micro_rows or self.config.batch_rows,
            chunk_tokens=self.config.chunk_tokens,
            gather=lambda table: torch.cat(gather_object([table])),
            domains=domains_of(self.corpus.dev.examples),
        )
        metrics |= self.probe.measure()
        self.log.add(state.step, metrics)
        if self.probe.answers:
            self.samples = (state.step, samples_page(self.probe.answers, self.tokenizer))
            log_samples(accelerator, state.step, self.probe.answers, self.tokenizer)
        progress.evaluation(state.step, metrics)
        state.before = state.before or metrics
        pick = PICKS_BEST[self.config.best_by]
        new_best = not state.best or metrics[pick] > state.best[pick]
        if new_best:
            state.best_step, state.best = state.step, metrics
        self.log.note_best(state.step, state.best)
        return new_best

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        accelerator = self.accelerator
        rng_states = gather_object([read_rng(accelerator.device)])
        engine = save_engine(accelerator, self.output)
        optimizer_state = engine or whole_optimizer_state(self.optimizer)
        self.gather_draft()
        if accelerator.is_main_process:
            info = DraftInfo(
                target=self.config.target,
                target_fingerprint=self.sources["target_fingerprint"],
                tokenizer_hash=self.sources["tokenizer"],
                kept_tokens=None if self.draft.kept is None else len(self.draft.kept),
                metrics=self.log.evaluation(self.state.step),
            )
            save_checkpoint(
                self.output,
                self.draft,
                self.tokenizer,
                info,
                self.state,
                optimizer_state,
                rng_states,
                keep=self.config.keep,
                held_out=self.corpus.dev.examples,
                samples=self.samples[1] if self.samples[0] == self.state.step else None,
            )
        accelerator.wait_for_everyone()

    def result(self) -> DistillResult:
        """Return what came of the run."""
        return DistillResult(
            folder=checkpoint_folder(self.output, self.state.best_step),
            before=self.state.before,
            best=self.state.best,
            curve=self.log.rows,
        )

    def _agreed(self, seconds: float, request: StopRequest) -> tuple[float, int]:
        """Return the main process's clock and the signal that any process got, the same for all."""
        found = gather_object([(seconds, request.number)])
        return found[0][0], max(number for _, number in found)

    def _stop(self, number: int) -> None:
        """End a run that is not done where a signal asked for it."""
        if number and not self.state.done:
            folder = checkpoint_folder(self.output, self.state.step)
            name = signal.Signals(number).name
            raise Stopped(
                number, f"{name}: stopped and saved in {folder}; the same command goes on"
            )
