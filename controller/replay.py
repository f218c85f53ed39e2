"""Replays a lookahead on recorded texts, exactly for greedy decoding: no model, a clock of its own.

Greedy decoding says the same whatever is drafted. A round that drafts γ tokens at position t therefore
ends at t + min(L_t, γ) + 1, L_t being how many of the tokens drafted from t agree with the text, and what a
policy sees before each draw is recorded too. Rounds and tokens are those of the real loop; seconds are a
table's. What a table has no cell for is not priced: reading the prompt, catching up after plain rounds,
the policy's own work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from ..data import DenseText, Signals
from ..data.signals import NO_SIGNALS
from ..spec import LookaheadPolicy, OneHot, RoundOutcome, Said, SamplingParams, show_tokens
from ..spec.policy import ask_gamma
from .economics import RoundCosts
from .shown_laws import shown_law

GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class Replay:
    """What decoding some texts came to. Tokens past a text's end are emitted and not counted."""

    tokens: int = 0
    seconds: float = 0.0
    draft_steps: int = 0
    drafted: int = 0
    accepted: int = 0  # past a text's end too
    gammas: Counter[int] = field(default_factory=Counter)  # tokens drafted in a round -> rounds

    @property
    def rounds(self) -> int:
        return self.gammas.total()

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    def add_round(
        self, *, tokens: int, seconds: float, steps: int, drafted: int, accepted: int
    ) -> None:
        """Count one round."""
        self.tokens += tokens
        self.seconds += seconds
        self.draft_steps += steps
        self.drafted += drafted
        self.accepted += accepted
        self.gammas[drafted] += 1


def replay(policy: LookaheadPolicy, texts: Iterable[DenseText], costs: RoundCosts) -> Replay:
    """Decode the texts one after the other, each a request, under a policy; it learns as it would.

    The policy is shown laws with the recorded signals (`shown_law`); one that reads more than top-1
    probability, margin and entropy of a law, or more than the last row of an outcome's target logits, is not
    replayed exactly.

    Raises:
        ValueError: if the policy may draft more than was recorded or priced.
    """
    run = Replay()
    for text in texts:
        check_reach(policy.gamma_max, text, costs)
        policy.begin_request(GREEDY)
        position = 0
        committed = list(text.prompt)
        while position < len(text.tokens):
            emitted = _round(policy, text, position, committed, costs, run)
            committed += text.tokens[position : position + emitted].tolist()
            position += emitted
    return run


def replay_gammas(text: DenseText, costs: RoundCosts, gammas: Sequence[int], run: Replay) -> None:
    """Decode a text with a γ for each position, without a policy; adds to `run`.

    Args:
        gammas: [N], cut at what may be drafted.
    """
    position, count = 0, len(text.tokens)
    while position < count:
        gamma = min(gammas[position], int(text.gamma_limit[position]))
        accepted = min(gamma, int(text.accepted_length[position]))
        run.add_round(
            tokens=min(accepted + 1, count - position),
            seconds=costs.seconds(gamma),
            steps=gamma,
            drafted=gamma,
            accepted=accepted,
        )
        position += accepted + 1


def replay_fixed(texts: Iterable[DenseText], costs: RoundCosts, gamma: int) -> Replay:
    """Return what `replay(FixedLookahead(gamma), …)` returns, quickly; γ = 0 is plain decoding.

    Raises:
        ValueError: if γ is more than was recorded or priced.
    """
    run = Replay()
    for text in texts:
        check_reach(gamma, text, costs)
        replay_gammas(text, costs, [gamma] * len(text.tokens), run)
    return run


def check_reach(gamma: int, text: DenseText, costs: RoundCosts) -> None:
    """Raise ValueError if a γ was not recorded or is not priced."""
    most = min(text.gamma_max, costs.gamma_max)
    if gamma > most:
        raise ValueError(
            f"gamma must be <= {most} ({text.gamma_max} recorded, {costs.gamma_max} priced), got {gamma}"
        )


def _round(
    policy: LookaheadPolicy,
    text: DenseText,
    position: int,
    committed: list[int],
    costs: RoundCosts,
    run: Replay,
) -> int:
    """Decode one round and return how many tokens were emitted.

    Args:
        committed: the prompt, empty where it is not known, and `position` tokens.
    """
    drafts = text.drafts[position].tolist()
    cap = ask_gamma(policy, text.prompt_length + position, int(text.gamma_limit[position]))
    steps = drawn = 0
    while drawn < cap and policy.wants_step(drawn + 1):  # as ModelDrafter.propose
        steps += 1
        look = Signals(*text.looks[position, drawn].tolist())
        law = shown_law(look)
        if text.prompt:
            kept = torch.full(law.shape, drafts[drawn])  # the likeliest token is the one drafted
            show_tokens(policy, Said(committed, drafts[:drawn], kept))
        if not policy.wants_token(drawn + 1, law):
            break
        drawn += 1
    accepted = min(drawn, int(text.accepted_length[position]))
    draft, verify = steps * costs.draft_step, costs.verify[drawn]
    rest = costs.round_overhead if steps else costs.plain_overhead
    last, count = position + accepted, len(text.tokens)
    said = [*text.tokens[position : last + 1].tolist()]  # fewer than emitted past the end
    policy.end_round(
        RoundOutcome(
            drafted=drawn,
            accepted=accepted,
            draft_seconds=draft,
            verify_seconds=verify,
            round_seconds=draft + verify + rest,
            draft_steps=steps,
            target_logits=_target_rows(text, last, drawn + 1),
            target_probs=OneHot(said + [-1] * (drawn + 1 - len(said)), text.width),
            draft_probs=OneHot(text.drafts[position, :drawn].tolist(), text.width),
        )
    )
    run.add_round(
        tokens=min(accepted + 1, count - position),
        seconds=draft + verify + rest,
        steps=steps,
        drafted=drawn,
        accepted=accepted,
    )
    return accepted + 1


def _target_rows(text: DenseText, last: int, rows: int) -> torch.Tensor:
    """Return target logits [rows, n]: each shows the law that gave the round's last token.

    Past the text's end it is not known, and NaN; the request is over, nobody asks for it.
    """
    known = last < len(text.tokens)
    look = Signals(*text.target_looks[last].tolist()) if known else NO_SIGNALS
    return shown_law(look).expand(rows, -1)
