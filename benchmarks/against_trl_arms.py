"""The arms of `against_trl`: one target, one starting draft, rows and steps, trained by each trainer.

Each arm runs in a process of its own. Its clock starts at its first step; its memory is counted from when the
target and the rows are there, so that draft, gradients, optimizer and logits are all in it.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from foredraft.train import DistillConfig
from foredraft.train.batches import Corpus, Example, ExampleSet, prompt_groups, rows_of_step
from foredraft.train.draft import first_layers, prepare_draft
from foredraft.train.loop import Run
from foredraft.train.schedule import learning_rate
from foredraft.train.teacher import Teacher
from foredraft.train.tracking import peak_memory_gb

SPECIAL = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
CPU = torch.device("cpu")


class Sizes(NamedTuple):
    """Of the pair and its rows."""

    vocabulary: int
    hidden: int
    layers: int
    draft_layers: int
    rows: int
    prompt_tokens: int
    answer_tokens: int


class Job(NamedTuple):
    """What every arm is given."""

    sizes: Sizes
    distil: dict[str, Any]  # fields of DistillConfig

    @property
    def config(self) -> DistillConfig:
        """The run, as our trainer takes it: forward KL at temperature 1, every weight trained."""
        return DistillConfig(
            target="random", corpus="random", loss="kl", layers=self.sizes.draft_layers,
            head_tokens=None, train_embeddings=True, eval_prompts=0, report_to="none", **self.distil,
        )  # fmt: skip


@dataclass
class Measured:
    """What an arm took, step by step."""

    tokens: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of processor time
    wall_seconds: list[float] = field(default_factory=list)
    peak_gb: float = 0.0


class _Clock:
    """Notes what each step took, and at last the most memory that was held above the start."""

    def __init__(self) -> None:
        self.measured = Measured()
        self._held = psutil.Process().memory_info().rss / 1e9

    def start(self) -> None:
        self._last = time.process_time(), time.perf_counter()

    def step(self) -> None:
        now = time.process_time(), time.perf_counter()
        self.measured.seconds.append(now[0] - self._last[0])
        self.measured.wall_seconds.append(now[1] - self._last[1])
        self._last = now
        self.measured.peak_gb = peak_memory_gb(CPU) - self._held


def make_target(sizes: Sizes) -> Any:
    """Return a random Llama whose laws are neither flat nor one-hot."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, intermediate_size=3 * sizes.hidden,
        num_hidden_layers=sizes.layers, num_attention_heads=max(1, sizes.hidden // 32),
        num_key_value_heads=max(1, sizes.hidden // 64), initializer_range=0.05,
        pad_token_id=0, bos_token_id=None, eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(4.0)
    return model


def make_examples(sizes: Sizes) -> list[Example]:
    """Return rows of random tokens, no prompt twice; lengths are half to one and a half times the mean's."""
    generator = torch.Generator().manual_seed(0)

    def draw(mean: int) -> torch.Tensor:
        length = int(torch.randint(max(1, mean // 2), 3 * mean // 2 + 1, (), generator=generator))
        return torch.randint(len(SPECIAL), sizes.vocabulary, (length,), generator=generator)

    examples = []
    for _ in range(sizes.rows):
        prompt, answer = draw(sizes.prompt_tokens), draw(sizes.answer_tokens)
        examples.append(Example(torch.cat([prompt, answer]), len(answer)))
    return examples


def answer_start(example: Example) -> int:
    """Return where an answer begins: all before it is the prompt, all from it on is supervised.

    TRL's trainers are given these two parts, and cannot be given more.

    Raises:
        ValueError: if anything else of the row is supervised: the arms would not have the same loss.
    """
    start = len(example.tokens) - example.supervised
    if not torch.equal(example.positions, torch.arange(start - 1, len(example.tokens) - 1)):
        raise ValueError(
            f"spans must be the row's last {example.supervised} tokens for TRL's trainers, got "
            f"{example.spans} of {len(example.tokens)} tokens"
        )
    return start


def batches_of(examples: list[Example], config: DistillConfig) -> list[list[Example]]:
    """Return the rows of every step, as our trainer takes them."""
    groups = prompt_groups(examples)
    return [
        [examples[row] for row in rows_of_step(config.seed, step, groups, config.batch_rows)]
        for step in range(config.steps)
    ]


def foredraft(job: Job) -> Measured:
    """Train with our loop: its steps alone, without evaluations and checkpoints."""
    target, examples = make_target(job.sizes), make_examples(job.sizes)
    with tempfile.TemporaryDirectory() as folder:
        config = job.config
        object.__setattr__(config, "output", folder)
        clock = _Clock()
        rows = ExampleSet(examples, 0, 0)
        teacher = Teacher(target, cache_gb=config.teacher_cache_gb)
        run = Run(
            config, Accelerator(cpu=True), teacher, None, Corpus(rows, rows, "", {}), {}, None
        )
        clock.start()
        for _ in range(config.steps):
            before = run.state.tokens
            metrics = run.step()
            run.state.step += 1
            clock.measured.losses.append(metrics["train/loss"])
            clock.measured.tokens.append(run.state.tokens - before)
            clock.step()
    return clock.measured


def gkd(job: Job) -> Measured:
    """Train with TRL's GKDTrainer, never on-policy: λ = 0; β = 0 is forward KL there."""
    trl: Any = importlib.import_module("trl.experimental.gkd")
    target, batches = _given(job)
    clock = _Clock()

    class Trainer(trl.GKDTrainer):  # type: ignore[misc]
        """GKDTrainer that takes the rows as they come and notes the losses."""

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            return _noted(super().compute_loss(*args, **options), clock.measured.losses)

    # "nll": left unset, TRL replaces the draft's forward by one that gives a chunked cross-entropy.
    config = trl.GKDConfig(
        **_arguments(job.config), lmbda=0.0, beta=0.0, temperature=1.0, loss_type="nll",
        max_length=job.sizes.prompt_tokens * 2 + job.sizes.answer_tokens * 2,
    )  # fmt: skip
    records = [
        {
            "input_ids": one.tokens.tolist(),
            "completion_mask": [0] * answer_start(one) + [1] * one.supervised,
            "prompt": "",  # asked for, and not read where a mask says what the answer is
        }
        for batch in batches
        for one in batch
    ]
    return _train(Trainer, config, target, records, batches, job, clock)


def distillation(job: Job) -> Measured:
    """Train with TRL's DistillationTrainer and its chunked loss, given the answers that it would generate."""
    trl: Any = importlib.import_module("trl")
    target, batches = _given(job)
    rows = [one for batch in batches for one in batch]
    clock = _Clock()

    class Trainer(trl.DistillationTrainer):  # type: ignore[misc]
        """DistillationTrainer that takes the rows as they come, answers included, and notes the losses."""

        def _generate(self, prompts: list[str]) -> Any:
            chosen = [rows[int(prompt)] for prompt in prompts]
            starts = [one.tokens[: answer_start(one)].tolist() for one in chosen]
            answers = [one.tokens[answer_start(one) :].tolist() for one in chosen]
            return starts, answers, None, None, None

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            return _noted(super().compute_loss(*args, **options), clock.measured.losses)

    config = trl.DistillationConfig(
        **_arguments(job.config), beta=0.0, temperature=1.0, shuffle_dataset=False
    )
    records = [{"prompt": str(index)} for index in range(len(rows))]
    return _train(Trainer, config, target, records, batches, job, clock)


ARMS = {"foredraft": foredraft, "gkd": gkd, "distillation": distillation}


def _given(job: Job) -> tuple[Any, list[list[Example]]]:
    """Return the target and the rows of every step."""
    return make_target(job.sizes), batches_of(make_examples(job.sizes), job.config)


def _noted(loss: torch.Tensor, losses: list[float]) -> torch.Tensor:
    losses.append(loss.item())
    return loss


def _arguments(config: DistillConfig) -> dict[str, Any]:
    """Return the fields of transformers' TrainingArguments for the same steps, as quick as they can be."""
    return {
        "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": config.batch_rows,
        "max_steps": config.steps, "max_grad_norm": config.max_grad_norm, "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no",
        "logging_steps": config.steps, "disable_tqdm": True,
    }  # fmt: skip


def _train(
    trainer_class: Any,
    config: Any,
    target: Any,
    records: list[dict[str, Any]],
    batches: list[list[Example]],
    job: Job,
    clock: _Clock,
) -> Measured:
    """Train the starting draft with our optimizer's settings and rate, on the records in their order."""

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                clock.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.step()

    ours = job.config
    draft = prepare_draft(first_layers(target, ours.layers), None, ours).model
    optimizer = torch.optim.AdamW(
        draft.parameters(), lr=ours.learning_rate, betas=ours.betas, weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: learning_rate(ours, min(step, ours.steps - 1), 0.0) / ours.learning_rate,
    )
    words = Tokenizer(models.WordLevel(SPECIAL, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    trainer = trainer_class(
        model=draft, teacher_model=target, args=config, processing_class=tokenizer,
        train_dataset=importlib.import_module("datasets").Dataset.from_list(records),
        optimizers=(optimizer, schedule), callbacks=[Steps()],
    )  # fmt: skip
    trainer.train()
    clock.measured.tokens = [sum(one.supervised for one in batch) for batch in batches]
    return clock.measured
