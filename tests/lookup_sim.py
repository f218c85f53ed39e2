"""A simulated target that says a script, and a machine with a clock of its own, for policies of prompt lookup.

The looks and candidates are the real ones; what is simulated is what the target says and what forwards take.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller_sim import GREEDY, TARGET_LOGITS, Machine, Run
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
    sizes: tuple[int, int] = (5, 2),
) -> Run:
    """Decode one request greedily: the target says `script` after `prompt`, whatever is drafted."""
    index, run, place = NgramIndex(*sizes), Run(), 0
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
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == script[place + accepted]:
            accepted += 1
        _, verify, rest = machine.parts(0, len(drafted), place)
        policy.end_round(
            RoundOutcome(
                drafted=len(drafted),
                accepted=accepted,
                draft_seconds=0.0,
                verify_seconds=verify,
                round_seconds=verify + rest,
                draft_steps=0,
                target_logits=LOGITS[: len(drafted) + 1],
                target_probs=LOGITS[: len(drafted) + 1],
                draft_probs=LOGITS[: len(drafted)],
            )
        )
        index.extend(script[place : place + accepted + 1])
        place += accepted + 1
        run.tokens += accepted + 1
        run.seconds += verify + rest
        run.gammas.append(len(drafted))
        run.emitted.append(accepted + 1)
        run.round_seconds.append(verify + rest)
    return run
