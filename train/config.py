"""What a distillation run is asked for. Imports no torch, so that `--help` is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass

BEST_BY = ("alpha", "tau")
TEACHERS = ("online", "cache")
LOSSES = ("kl", "rkl", "jsd", "skl", "tv", "nla", "lk", "ce")

# Fields that may differ when a run is resumed: they change how it is computed and shown, not what.
OUTPUT_NEUTRAL = frozenset(
    {
        "cache_folder",  # bound by hashes of the target and of each row
        "chunk_tokens",
        "corpus",  # bound by the hash of its rows
        "gradient_checkpointing",
        "keep",
        "micro_rows",
        "output",
        "report_to",
        "run_name",
        "save_every",
        "teacher_cache_gb",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """How a draft is distilled from a target.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    target: str
    """Target model: hub id or folder of a causal LM."""
    corpus: str
    """Folder of a target-written corpus (rows.jsonl and manifest.json). Or conversations, of which
    what assistants said is learned: a .jsonl file, a folder of them, or a datasets id (id:config:split)."""
    output: str = "runs/draft"
    """Folder for checkpoints, metrics.jsonl and run.yaml; the same config again resumes there."""
    draft: str | None = None
    """Model to start from, with the target's tokenizer; none: the target's first layers."""
    layers: int = 2
    """Layers taken from the target where no draft is given."""
    head_tokens: int | None = 16384
    """Vocabulary entries the draft can propose, the corpus's most frequent; none: all of them."""
    head_start: str = "aligned"
    """Head of a draft cut from the target: "aligned" (the target's, times the least-squares map from the
    draft's last states to the target's) or "target" (the target's as it is)."""
    train_head: bool = True
    """Train the head; not, where there is too little text to learn so many rows from."""
    train_embeddings: bool = False
    """Train the input embedding too; it is large, and the target's own is a good one."""
    lora_rank: int = 0
    """Rank of adapters (LoRA, through peft) that are trained in place of the body's weights; 0: none, the body
    is trained whole. Checkpoints have them merged. Of head and embedding the fields above say."""
    lora_alpha: float = 16.0
    """Scales the adapters: they count lora_alpha / lora_rank times."""
    lora_targets: tuple[str, ...] = ("all-linear",)
    """Names of the layers that get one; "all-linear": each linear layer but the head."""

    steps: int = 300
    """Optimizer steps."""
    batch_rows: int = 16
    """Corpus rows in an optimizer step, all processes together."""
    micro_rows: int | None = None
    """Corpus rows in one forward of a process; gradients are accumulated. None: all at once."""
    max_length: int = 1024
    """Tokens of prompt and response; what is beyond is cut from the response's end."""
    complete_only: bool = True
    """Train only on responses that ended by themselves, not on those cut by a length limit."""
    seed: int = 0
    """Seeds the order of the rows (and dropout, where the draft has any)."""
    max_seconds: float | None = None
    """Wall time for training, in seconds; the learning rate ends low in time. None: no limit."""

    loss: str = "kl"
    """Between the target renormalised on what the draft can propose and the draft: "kl" (forward KL), "rkl"
    (reverse KL), "jsd" (Jensen-Shannon), "skl" (skewed KL). Acceptance itself, against the target's whole
    vocabulary: "tv" (1 − α), "nla" (−log α), "lk" (KL while α is low, then 1 − α). "ce": cross-entropy on the
    target's argmax, for greedy decoding."""
    jsd_beta: float = 0.5
    """Of "jsd": β, the target's weight in the mixture. 0 is forward KL and 1 reverse KL, but close to them
    the loss is only β times the one, or 1 − β times the other."""
    skew: float = 0.1
    """Of "skl": the target's share in the mixture that stands for the draft; to 0, it becomes forward KL."""
    lk_eta: float = 3.0
    """Of "lk": η, KL weighs exp(−η α) and 1 − α the rest."""
    state_weight: float = 0.0
    """Weight of a second loss: how far the draft's last states, aligned, are from the target's (1 a token
    for a constant). Teaches more a token, where text is scarce; needs an aligned head."""
    learning_rate: float = 1e-3
    """Peak of the learning rate, AdamW."""
    min_lr_ratio: float = 0.1
    """Last learning rate over the peak; a cosine lies between."""
    warmup_ratio: float = 0.05
    """Share of the run in which the learning rate rises."""
    weight_decay: float = 0.0
    """AdamW's decay, on matrices only."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averages of the gradient and its square."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are scaled down to it."""
    temperature: float = 1.0
    """Divides the logits of both models in the loss."""
    chunk_tokens: int = 1024
    """Tokens whose logits exist at the same time; more take more memory."""
    mixed_precision: str = "no"
    """"no" (float32) or "bf16"; weights and optimizer stay in float32."""
    gradient_checkpointing: bool = False
    """Compute the layers' activations again in the backward instead of keeping them: less memory, more time."""
    teacher_cache_gb: float = 2.0
    """Memory per process for the target's hidden states, GB; the others are computed anew."""
    teacher: str = "online"
    """"online" (the target reads the rows in training) or "cache": it reads them once, before, and its
    likeliest tokens are kept on disk; all others are one outcome in the loss, see `topk`. The draft's start
    and the evaluations, exact as ever, still ask the target."""
    cache_top_k: int = 64
    """Of "cache": likeliest tokens kept of each law; a supervised token takes 4 or 6 bytes for each, and 8."""
    cache_folder: str | None = None
    """Of "cache": its folder, which other runs may share; none: teacher-cache in `output`."""

    on_policy_share: float = 0.0
    """Share of a step's rows that the draft writes itself: it goes on from a random place in a row, and the
    target judges each token. Needs an online teacher."""
    on_policy_every: int = 50
    """Steps between two times that the draft writes, for all steps until the next."""
    on_policy_tokens: int = 16
    """Most tokens that it writes in a row; about as many as are drafted between two tokens of the target's."""
    on_policy_after: int = 0
    """Steps before it first writes: what an untrained draft writes teaches little."""

    serving_temperatures: tuple[float, ...] = (0.5, 0.7, 1.0)
    """Temperatures of requests that the best draft's own temperature is found for at the end, on held-out
    rows; between them it is interpolated. Greedy decoding needs none."""

    eval_every: int = 50
    """Steps between evaluations on held-out rows; there is one before the first and at the end."""
    eval_rows: int = 32
    """Held-out corpus rows in an evaluation."""
    eval_prompts: int = 8
    """Held-out prompts that an evaluation also decodes in the real loop, at each temperature; 0: none."""
    eval_temperatures: tuple[float, ...] = (0.0, 1.0)
    """Temperatures they are decoded at; 0 is greedy."""
    eval_gamma: int = 4
    """Tokens drafted in every round of that."""
    eval_max_tokens: int = 48
    """Most tokens of such an answer."""
    best_by: str = "alpha"
    """What picks the best checkpoint, on held-out text: "alpha" (Σ min(p, q), teacher-forced) or "tau" (tokens
    per target forward in the real loop; it costs the decoding, and a handful of prompts say little)."""
    save_every: int = 100
    """Steps between checkpoints; a new best is saved at once."""
    keep: int = 2
    """Newest checkpoints to keep, besides the best."""
    report_to: str = "wandb"
    """Tracker: "wandb" (offline without a key), "none", or another that accelerate knows."""
    run_name: str | None = None
    """Name of the run in the tracker; none: the tracker's choice."""

    def __post_init__(self) -> None:
        for name in ("betas", "eval_temperatures", "serving_temperatures", "lora_targets"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("target", "corpus", "output", "report_to"):
            _check(name, getattr(self, name), bool(getattr(self, name)), "a non-empty string")
        for name in ("layers", "steps", "batch_rows", "chunk_tokens", "eval_every", "eval_rows"):
            _check_integer(name, getattr(self, name), low=1)
        for name in ("save_every", "keep", "eval_gamma"):
            _check_integer(name, getattr(self, name), low=1)
        for name in ("head_tokens", "micro_rows"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), low=1)
        _check_integer("max_length", self.max_length, low=2)
        _check_integer("seed", self.seed, low=0)
        _check_integer("eval_prompts", self.eval_prompts, low=0)
        _check_integer("eval_max_tokens", self.eval_max_tokens, low=2)  # 1: no room for a draft
        _check_temperatures("eval_temperatures", self.eval_temperatures)
        heats = self.serving_temperatures
        valid = len(set(heats)) == len(heats) and all(0 < heat < math.inf for heat in heats)
        _check("serving_temperatures", heats, valid, "distinct numbers above 0, or none")
        best_by = self.best_by in BEST_BY and (self.best_by == "alpha" or self.eval_prompts > 0)
        _check("best_by", self.best_by, best_by, "alpha, or tau where eval_prompts is above 0")
        _check_integer("lora_rank", self.lora_rank, low=0)
        names = len(self.lora_targets) > 0 and all(self.lora_targets)
        _check("lora_targets", self.lora_targets, names, "names of layers, one or more")
        for name in ("learning_rate", "max_grad_norm", "temperature", "lora_alpha"):
            value = getattr(self, name)
            _check(name, value, value > 0 and math.isfinite(value), "above 0 and finite")
        if self.max_seconds is not None:
            _check("max_seconds", self.max_seconds, self.max_seconds > 0, "above 0, or none")
        for name in ("state_weight", "weight_decay", "teacher_cache_gb"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        _check("teacher", self.teacher, self.teacher in TEACHERS, "online or cache")
        _check_integer("cache_top_k", self.cache_top_k, low=1)
        allowed = "0 with teacher = cache, which keeps no states"
        compared = self.teacher == "cache" and self.state_weight != 0
        _check("state_weight", self.state_weight, not compared, allowed)
        for name in ("on_policy_every", "on_policy_tokens"):
            _check_integer(name, getattr(self, name), low=1)
        _check_integer("on_policy_after", self.on_policy_after, low=0)
        share = self.on_policy_share
        _check("on_policy_share", share, 0 <= share <= 1, "in [0, 1]")
        rows = share == 0 or round(share * self.batch_rows) >= 1
        _check("on_policy_share", share, rows, "0, or at least a row of batch_rows")
        online = share == 0 or self.teacher == "online"
        _check("on_policy_share", share, online, "0 with teacher = cache, which knows no new text")
        aligned = self.draft is None and self.head_start == "aligned"
        allowed = "0 unless head_start is aligned and no draft is given"
        _check("state_weight", self.state_weight, self.state_weight == 0 or aligned, allowed)
        _check("min_lr_ratio", self.min_lr_ratio, 0 <= self.min_lr_ratio <= 1, "in [0, 1]")
        _check("warmup_ratio", self.warmup_ratio, 0 <= self.warmup_ratio < 1, "in [0, 1)")
        valid_betas = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        _check("betas", self.betas, valid_betas, "two numbers in [0, 1)")
        starts = ("aligned", "target")
        _check("head_start", self.head_start, self.head_start in starts, "aligned or target")
        _check("loss", self.loss, self.loss in LOSSES, "one of " + ", ".join(LOSSES))
        _check("jsd_beta", self.jsd_beta, 0 <= self.jsd_beta <= 1, "in [0, 1]")
        _check("skew", self.skew, 0 < self.skew < 1, "in (0, 1); at 0 it would be kl")
        valid_eta = 0 <= self.lk_eta < math.inf
        _check("lk_eta", self.lk_eta, valid_eta, "at least 0 and finite")
        precisions = ("no", "bf16")
        _check(
            "mixed_precision",
            self.mixed_precision,
            self.mixed_precision in precisions,
            "no or bf16",
        )


def _check_integer(name: str, value: object, *, low: int) -> None:
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= low
    _check(name, value, valid, f"an integer of at least {low}")


def _check_temperatures(name: str, values: tuple[float, ...]) -> None:
    valid = len(values) > 0 and len(set(values)) == len(values)
    valid = valid and all(0 <= value < math.inf for value in values)
    _check(name, values, valid, "distinct numbers in [0, inf), one or more")


def _check(name: str, value: object, valid: bool, allowed: str) -> None:
    if not valid:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
