"""A simulated target that says a script, and a machine with a clock of its own, for lookups and chains.

The looks and candidates are the real ones; what is simulated is what the target says and what forwards take.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller_sim import GREEDY, TARGET_LOGITS, Machine, Run, Text
from controller_sim import LOGITS as LOOKS
from foredraft.spec import LookaheadPolicy, RoundOutcome, RoundStart
from foredraft.spec.looks import Looker
from foredraft.spec.ngrams import NgramIndex

LOGITS = TARGET_LOGITS.repeat(3, 1)  # [96, V]


def simulate_lookup(
    policy: LookaheadPolicy,
    prompt: Sequence[int],
    script: Sequence[int],
    machine: Machine,
    *,
    text: Text | None = None,
) -> Run:
    """Decode one request greedily: the target says `script` after `prompt`, whatever is drafted.

    Args:
        text: what a draft model after the lookup is right about; None: there is none.
    """
    index, run, place = NgramIndex(5, 2), Run(), 0
    index.extend(prompt)
    looker = Looker(index)
    policy.begin_request(GREEDY)
    while place < len(script):
        limit = len(script) - place - 1
        cap = policy.begin_round(RoundStart(len(index.tokens), limit, looker.look))
        assert 0 <= cap <= min(limit, policy.gamma_max)
        drafted: list[int] = []
        while index.match and len(drafted) < cap and policy.wants_step(len(drafted) + 1):
            drafted.append(index.following(drafted))
        accepted = steps = 0
        while accepted < len(drafted) and drafted[accepted] == script[place + accepted]:
            accepted += 1
        if text is not None and not drafted and cap:
            steps, drawn, accepted = draft(policy, text, place, cap)
            drafted = [-1] * drawn
        drafting, verify, rest = machine.parts(steps, len(drafted), place)
        policy.end_round(
            RoundOutcome(
                drafted=len(drafted),
                accepted=accepted,
                draft_seconds=drafting,
                verify_seconds=verify,
                round_seconds=drafting + verify + rest,
                draft_steps=steps,
                target_logits=LOGITS[: len(drafted) + 1],
                target_probs=LOGITS[: len(drafted) + 1],
                draft_probs=LOGITS[: len(drafted)],
            )
        )
        index.extend(script[place : place + accepted + 1])
        place += accepted + 1
        run.tokens += accepted + 1
        run.seconds += drafting + verify + rest
        run.gammas.append(len(drafted))
        run.emitted.append(accepted + 1)
        run.round_seconds.append(drafting + verify + rest)
        run.sources.append("model" if steps else "lookup" if drafted else "plain")
    return run


def draft(policy: LookaheadPolicy, text: Text, place: int, cap: int) -> tuple[int, int, int]:
    """Return steps, drawn tokens and accepted ones of a model that drafts at a place of the text."""
    steps = drawn = accepted = 0
    right = True
    while drawn < cap and policy.wants_step(drawn + 1):
        steps, at = steps + 1, place + drawn
        if not policy.wants_token(drawn + 1, LOOKS[int(text.looks[at])]):
            break
        drawn += 1
        right = right and bool(text.coins[at] < text.chances[at])
        accepted += right
    return steps, drawn, accepted
