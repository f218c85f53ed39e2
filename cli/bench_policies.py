"""From the name of a policy to the policy, for one drafter; fits the adaptive one where none is given."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..controller import (
    AdaptiveLookahead,
    ChainLookahead,
    ConfidenceThreshold,
    GammaBandit,
    HeuristicSchedule,
    LookupLookahead,
)
from ..data import Prompt, TraceConfig
from ..spec import (
    ChainDrafter,
    FixedLookahead,
    LookaheadPolicy,
    PromptLookupDrafter,
    SpeculativeDecoder,
    model_fingerprint,
    text_hash,
)
from ..spec.chain import CHAIN
from ..spec.load_parts import draft_model
from . import fitting

GAMMA_MAX = 8  # of a lookahead that is fitted on the spot
TRACE_TOKENS = 40
LOOKAHEADS = "lookaheads"  # sub-folder of those fitted on the spot
NO_TABLE = "learns what rounds take and what matches are worth"
NO_LOGITS = "bandit over γ: this drafter has no draft model whose looks could be read"
FITTED, FITTED_BEFORE = "fitted for this run: ", "fitted before: "  # and the folder
Say = Callable[[str], None]


@dataclass(slots=True)
class Policies:
    """Makes policies for the arms of a bench; what was fitted is kept for its conditions."""

    folder: Path
    lookahead: str | None  # folder that was given
    prompts: Sequence[Prompt]  # of the dev split, to fit on
    temperatures: tuple[float, ...]
    say: Say
    _fitted: dict[str, Path] = field(default_factory=dict)  # drafter -> folder

    def make(
        self, policy: int | str, drafter: str, decoder: SpeculativeDecoder
    ) -> tuple[LookaheadPolicy, str]:
        """Return a policy that has learned nothing yet, and words about it.

        Args:
            decoder: with the drafter it is for.

        Raises:
            ValueError: if what is needed to fit it cannot be measured.
        """
        match policy:
            case "adaptive":
                return self._adaptive(drafter, decoder)
            case "bandit":
                return GammaBandit(), "discounted UCB over γ"
            case "confidence":
                return ConfidenceThreshold(), "transformers' confidence threshold 0.4, at most 20"
            case "heuristic":
                return HeuristicSchedule(), "transformers' schedule: +2 / −1, from 20"
            case int():
                return FixedLookahead(policy), "the same γ in every round"
        raise ValueError(f"policies must be known, got {policy!r}")

    def _adaptive(self, drafter: str, decoder: SpeculativeDecoder) -> tuple[LookaheadPolicy, str]:
        lookup = isinstance(decoder.drafter, PromptLookupDrafter)
        if draft_model(decoder.drafter) is None and not lookup:
            return GammaBandit(), NO_LOGITS
        given = None if self.lookahead is None else self._load(Path(self.lookahead), decoder)
        if given is not None:
            return given, f"{FITTED_BEFORE}{self.lookahead}"
        if lookup:
            return LookupLookahead(), NO_TABLE
        name = drafter.removeprefix(CHAIN)  # a chain and its model by itself are fitted together
        if name not in self._fitted:
            self._fitted[name] = self._fit(name, decoder)
        folder = self._fitted[name]
        policy = self._load(folder, decoder)
        if policy is None:
            raise ValueError(f"{folder}: fitted, and cannot be read")
        return policy, f"{FITTED}{folder}"

    def _load(self, folder: Path, decoder: SpeculativeDecoder) -> LookaheadPolicy | None:
        """Return the lookahead of a folder; None where it is another draft's or another machine's."""
        target, draft = model_fingerprint(decoder.target.model), draft_model(decoder.drafter)
        try:
            if draft is None:
                return LookupLookahead.load(folder, target=target)
            fingerprint = model_fingerprint(draft)
            if isinstance(decoder.drafter, ChainDrafter):
                return ChainLookahead.load(folder, target=target, draft=fingerprint)
            return AdaptiveLookahead.load(folder, target=target, draft=fingerprint)
        except ValueError as error:
            self.say(f"{folder}: not used: {error}")
            return None

    def _fit(self, drafter: str, decoder: SpeculativeDecoder) -> Path:
        name = f"{Path(drafter).name or 'draft'}-{text_hash(drafter)[:8]}".replace(" ", "-")
        folder = self.folder / LOOKAHEADS / name
        if (folder / "lookahead.json").is_file() and self._load(folder, decoder) is not None:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(decoder.drafter, ChainDrafter):
            decoder = SpeculativeDecoder(
                decoder.target.model, decoder.tokenizer, decoder.drafter.model, FixedLookahead(1)
            )
        self.say(f"{drafter}: fitting its lookahead on {len(self.prompts)} prompts")
        settings = TraceConfig(gamma=4, max_tokens=TRACE_TOKENS, temperatures=self.temperatures)
        fitting.trace(decoder, self.prompts, folder / "traces", settings)
        self.say(fitting.fit(decoder, folder / "traces", folder, GAMMA_MAX))
        return folder
