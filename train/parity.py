"""The parity gate: is a draft believed in the decode loop as often as it was in training?

Good figures in training and none in serving come from labels off by one, a rope setting that is not
read, a vocabulary map or a head that is not the trained one. Each shows as two α that should be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..data import Prompt
from ..spec import (
    DraftInfo,
    SpeculativeDecoder,
    check_same_vocabulary,
    cut_head,
    load_causal_lm,
    load_drafter,
    load_kept_tokens,
    load_tokenizer,
    target_width,
    tokenizer_hash,
)
from .assisted import Greedy, with_foredraft, with_transformers
from .batches import Example
from .evaluation import CACHE_GB, alphas_of
from .held_out import load_held_out
from .own_weights import check_own_weights
from .parity_figures import interval, pairs_of, standard_error, surprise
from .teacher import Teacher
from .traced import Traced, decode_traced

ALPHA = "eval/T1/alpha_tf"
SAME_ROWS = 0.01  # α on the same rows: what 16 bits may round
SAME_POSITIONS = 0.02  # mean |Δα| at the same positions: our loop may keep a draft in float16
OTHER_TEXT = 0.25  # share of α by which other text may be harder or easier, besides its error
FALSE_ALARMS = 1e-4  # chance that draws alone fail a line
PER_FORWARD = 0.05  # accepted tokens per target forward: greedy decoding has ties, and no noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A line of the gate."""

    name: str
    passed: bool | None  # None: shown only
    said: str  # figures and bound


@dataclass(frozen=True, slots=True, eq=False)
class _Folder:
    """A draft's folder, loaded twice where its head is cut."""

    info: DraftInfo | None
    kept: torch.Tensor | None  # [V_draft]
    cut: Any  # the model that our loop drafts with
    whole: Any  # the one that other engines load
    held_out: list[Example]

    @property
    def temperature(self) -> float:
        """What a request's temperature of 1 is multiplied by when the draft draws."""
        return 1.0 if self.info is None else self.info.temperature.factor(1.0)


class _Counts(NamedTuple):
    """What several answers took together."""

    rounds: int
    drafted: int
    accepted: int

    @classmethod
    def of(cls, answers: Sequence[Greedy]) -> _Counts:
        rows = [(one.rounds, one.drafted, one.accepted) for one in answers]
        return cls(*map(sum, zip(*rows, strict=True))) if rows else cls(0, 0, 0)

    @property
    def per_forward(self) -> float:
        """Accepted tokens per target forward; a rate of what was drafted depends on the tokens that a
        draft adds after an end token, which our loop does and transformers does not."""
        return self.accepted / self.rounds if self.rounds else float("nan")


def verify_draft(
    target: Any,
    tokenizer: Any,
    folder: str | Path,
    prompts: Sequence[Prompt],
    *,
    gamma: int = 4,
    max_tokens: int = 48,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
) -> list[Check]:
    """Return the checks of a draft's folder; those after a folder that cannot be used are left out.

    Args:
        target: a causal LM in eval mode, whose linear layers may be packed.
        folder: of the draft.
        prompts: held out of the draft's training; each is decoded at temperature 1 and twice greedily.
        gamma: tokens drafted in every round.
        seed: of the sampled answers.
        device, dtype: of the target, and for the draft.

    Raises:
        ValueError: if the draft is no model of its own: an exit, a name that means no folder.
    """
    check_own_weights(folder)
    width = target_width(target, tokenizer)
    options = {"device": device, "dtype": dtype}
    try:
        info = DraftInfo.load(folder)
        _check_tokenizer(folder, info, tokenizer)
    except ValueError as error:
        return [Check(name="tokenizer", passed=False, said=str(error))]
    checks = [Check(name="tokenizer", passed=True, said="means the target's tokens by its ids")]
    try:
        draft = _load(folder, info, **options)
        drafter = load_drafter(str(folder), tokenizer, width=width, **options)
    except ValueError as error:
        return [*checks, Check(name="folder", passed=False, said=str(error))]
    decoder = SpeculativeDecoder(target, tokenizer, drafter)
    traced = decode_traced(decoder, prompts, gamma=gamma, max_tokens=max_tokens, seed=seed)
    teacher = Teacher(target, width=width, cache_gb=CACHE_GB)
    texts = draft.held_out or [one.example for one in traced]
    alphas = [] if draft.info is None else alphas_of(teacher, draft.cut, draft.kept, texts)
    return [
        *checks,
        check_training(draft, alphas),
        *check_loop(teacher, draft, traced),
        *note_whole_head(teacher, draft, texts, alphas),
        check_transformers(
            with_foredraft(target, tokenizer, draft.whole, prompts, gamma, max_tokens),
            with_transformers(target, tokenizer, draft.whole, prompts, gamma, max_tokens),
            target,
        ),
    ]


def check_training(draft: _Folder, alphas: Sequence[torch.Tensor]) -> Check:
    """α as `foredraft.json` has it from training, against the reloaded folder's.

    On the very rows it was measured on where the folder has them; else on the text just decoded, which
    only tells a collapse.

    Args:
        alphas: [supervised] a row, of the folder's draft.
    """
    recorded = None if draft.info is None else draft.info.metrics.get(ALPHA)
    if recorded is None:
        return Check(name="training", passed=None, said="the folder has no α from training")
    mean = float(torch.cat(list(alphas)).mean())
    if draft.held_out:
        where, bound = f"on the same {len(alphas)} held-out rows", SAME_ROWS
    else:
        where = f"on {len(alphas)} answers decoded now (the folder has no held-out rows)"
        bound = 3 * standard_error(alphas) + OTHER_TEXT * recorded
    said = f"α {recorded:.4f} in training, {mean:.4f} reloaded {where}"
    return _bounded("training", abs(recorded - mean), bound, said)


def check_loop(teacher: Teacher, draft: _Folder, traced: Sequence[Traced]) -> list[Check]:
    """α in our loop, against the reloaded folder's at the same positions, and against what it accepted.

    The loop tests a drafted token at every emitted position but those of bonus tokens, so both sides
    are Σ min(p, q) of one context each: they differ by rounding only.
    """
    examples = [one.example for one in traced]
    alphas = alphas_of(teacher, draft.cut, draft.kept, examples, draft.temperature)
    in_loop, forced = pairs_of(traced, alphas)  # [prompts] of [tested] each
    if not in_loop:
        return [Check(name="loop", passed=False, said="no drafted token was tested")]
    ours, theirs = torch.cat(in_loop), torch.cat(forced)
    low, high = interval(in_loop)
    said = (
        f"α {ours.mean():.4f} in our loop (95 % by prompt {low:.4f}–{high:.4f}), {theirs.mean():.4f} "
        f"teacher-forced at the same {len(ours)} tested positions ({torch.cat(alphas).mean():.4f} at all)"
    )
    gap = float((ours - theirs).abs().mean())
    accepted, expected, chance = surprise(traced, false_alarms=FALSE_ALARMS)
    drawn = f"{accepted} tested tokens accepted in our loop, {expected:.1f} expected"
    return [
        _bounded("loop", gap, SAME_POSITIONS, said, measure="mean |Δ|"),
        _bounded("acceptance", abs(accepted - expected), chance, drawn),
    ]


def note_whole_head(
    teacher: Teacher,
    draft: _Folder,
    texts: Sequence[Example],
    alphas: Sequence[torch.Tensor],  # of the cut head on them
) -> list[Check]:
    """α of the head over the whole vocabulary, where ours is cut: what other engines draft with."""
    if draft.kept is None:
        return []
    cut = float(torch.cat(list(alphas)).mean())
    whole = float(torch.cat(alphas_of(teacher, draft.whole, None, texts)).mean())
    said = f"α {whole:.4f} with the head over the whole vocabulary, {cut:.4f} cut as in our loop"
    return [Check(name="other engines", passed=None, said=said)]


def check_transformers(ours: Sequence[Greedy], theirs: Sequence[Greedy], target: Any) -> Check:
    """What transformers' `assistant_model` accepts greedily, against our loop with the same draft and γ.

    Compared where both gave the same tokens: elsewhere two logits must tie, or it is a fault.
    """
    pairs = list(zip(ours, theirs, strict=True))
    equal = [pair for pair in pairs if pair[0].tokens == pair[1].tokens]
    wrong = [a.prompt_id for a, b in pairs if not a.ties_with(b, target)]
    mine, other = (_Counts.of([pair[side] for pair in equal]) for side in (0, 1))
    said = (
        f"greedy, γ the same: {other.accepted} of {other.drafted} drafted tokens accepted by "
        f"assistant_model, {mine.accepted} of {mine.drafted} by our loop, on {len(equal)} of "
        f"{len(pairs)} prompts with equal outputs; per target forward"
    )
    if wrong or not equal:
        said = f"outputs differ on {', '.join(wrong) or 'all prompts'}, not by a tie; {said}"
        return Check(name="transformers", passed=False, said=said)
    return _bounded("transformers", abs(mine.per_forward - other.per_forward), PER_FORWARD, said)


def _bounded(name: str, value: float, bound: float, said: str, measure: str = "|Δ|") -> Check:
    passed = value <= bound  # not where it is NaN
    sign = "≤" if passed else "above"
    return Check(name=name, passed=passed, said=f"{said}: {measure} {value:.4f} {sign} {bound:.4f}")


def _check_tokenizer(folder: str | Path, info: DraftInfo | None, tokenizer: Any) -> None:
    """Raise where the folder's tokenizer, or the one it was trained with, is not the target's."""
    check_same_vocabulary(tokenizer, load_tokenizer(str(folder)))
    ours = tokenizer_hash(tokenizer)
    if info is not None and info.tokenizer_hash != ours:
        raise ValueError(
            f"foredraft.json: tokenizer_hash is {info.tokenizer_hash}, the target's is {ours}"
        )


def _load(folder: str | Path, info: DraftInfo | None, *, device: str, dtype: str) -> _Folder:
    kept = None if info is None else load_kept_tokens(folder, info)
    whole = load_causal_lm(str(folder), device=device, dtype=dtype)
    cut = whole
    if kept is not None:
        cut = load_causal_lm(str(folder), device=device, dtype=dtype)
        cut_head(cut, kept)
    return _Folder(info, kept, cut, whole, load_held_out(folder))
