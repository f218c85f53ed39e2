"""Replay: the same rounds as the real loop's; the oracle: no sequence of γ is quicker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from controller_sim import predictor, table
from foredraft.controller import (
    AdaptiveLookahead,
    ConfidenceThreshold,
    EntropyBound,
    GammaBandit,
    HeuristicSchedule,
    RoundCosts,
    SurvivalThreshold,
)
from foredraft.controller.oracle import (
    best_fixed,
    oracle_gammas,
    replay_oracle,
    share_of_gain,
    yardsticks,
)
from foredraft.controller.replay import Replay, replay, replay_fixed
from foredraft.controller.shown_laws import shown_law
from foredraft.data import DenseText, Signals, signals
from foredraft.data.dense_positions import dense_text, read_text
from foredraft.data.dense_rollouts import draft_chains
from foredraft.spec import (
    FixedLookahead,
    LookaheadPolicy,
    ModelDrafter,
    RoundOutcome,
    SamplingParams,
    SpeculativeDecoder,
)
from toys import noisy_copy, tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")
GAMMA = 6
PROMPTS = [[10, 11, 12], [40, 41, 42, 43, 44, 45], [90, 7]]
FLAT = RoundCosts(draft_step=0.1, verify=(1.0,) * (GAMMA + 1))
STAIRS = RoundCosts(  # not even monotone
    draft_step=0.05,
    verify=(1.0, 1.6, 1.4, 1.4, 2.2, 2.1, 2.2),
    plain_overhead=0.01,
    round_overhead=0.03,
)
DEAR = RoundCosts(draft_step=1.2, verify=tuple(1.0 + 0.3 * n for n in range(GAMMA + 1)))
COSTS = {"flat": FLAT, "stairs": STAIRS, "dear": DEAR}
POLICIES: dict[str, Callable[[], LookaheadPolicy]] = {
    "plain": lambda: FixedLookahead(0),
    "γ=1": lambda: FixedLookahead(1),
    "γ=2": lambda: FixedLookahead(2),
    "γ=4": lambda: FixedLookahead(4),
    "heuristic": lambda: HeuristicSchedule(start=3, gamma_max=GAMMA),
    "confidence": lambda: ConfidenceThreshold(0.8, gamma_max=GAMMA),
    "entropy": lambda: EntropyBound(0.8, gamma_max=GAMMA),
    "survival": lambda: SurvivalThreshold(predictor(), 0.5, gamma_max=GAMMA),
}


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    """A target that ends a text now and then, and a draft that is right about half of the time."""
    target = tiny_llama(seed=1)
    target.generation_config.eos_token_id = [249, 163]  # ends two of the texts
    drafter = ModelDrafter(noisy_copy(target, scale=0.04), width=260)
    return SpeculativeDecoder(target, None, drafter)


@pytest.fixture(scope="module")
def texts(decoder: SpeculativeDecoder) -> list[DenseText]:
    """The greedy answers, at most 40 tokens, and what is drafted at each position."""
    made = []
    for index, prompt in enumerate(PROMPTS):
        written = decoder.with_lookahead(FixedLookahead(0)).generate([prompt], LONG)[0]
        assert isinstance(decoder.drafter, ModelDrafter)
        text = read_text(
            decoder.target, prompt, written.token_ids,
            gamma_max=GAMMA, max_tokens=40, ended=written.finish_reason == "stop",
        )  # fmt: skip
        chains = draft_chains(decoder.drafter, text, GAMMA)
        made.append(dense_text(f"t{index}", "d", text, chains, decoder.drafter, GAMMA))
    return made


LONG = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_a_replay_has_the_rounds_of_the_real_loop(
    make: Callable[[], LookaheadPolicy], decoder: SpeculativeDecoder, texts: list[DenseText]
) -> None:
    outputs = decoder.with_lookahead(make()).generate(PROMPTS, LONG)
    stats = [output.stats for output in outputs]
    live = stats[0] + stats[1] + stats[2]
    run = replay(make(), texts, FLAT)
    assert run.tokens == sum(len(output.token_ids) for output in outputs)
    assert (run.rounds, run.draft_steps) == (live.rounds, live.draft_steps)
    assert (run.drafted, run.accepted) == (live.drafted, live.accepted)
    assert run.gammas == live.gammas
    assert run.tokens_per_round == (live.emitted - live.discarded) / live.rounds


def test_the_texts_test_something(texts: list[DenseText], decoder: SpeculativeDecoder) -> None:
    lengths = np.concatenate([text.accepted_length for text in texts])
    assert set(lengths.tolist()) >= {0, 1, 2, 3, GAMMA}
    assert any(len(text.tokens) < 40 for text in texts), "no text ends by itself"
    assert any(len(text.tokens) == 40 for text in texts), "no text is cut"
    stopped = replay(POLICIES["confidence"](), texts, FLAT)
    assert len(stopped.gammas) > 3
    discarded = decoder.with_lookahead(FixedLookahead(4)).generate(PROMPTS, LONG)
    assert sum(output.stats.discarded for output in discarded) > 0, "no block reaches over an end"


class Listening(FixedLookahead):
    """Notes what it is shown."""

    def __init__(self, gamma: int) -> None:
        super().__init__(gamma)
        self.seen: list[tuple[float, ...]] = []

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        self.seen.append(signals(draft_logits))
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        self.seen.append(signals(outcome.target_logits[outcome.accepted]))


def test_a_replay_shows_what_the_real_loop_shows(
    decoder: SpeculativeDecoder, texts: list[DenseText]
) -> None:
    live, replayed = Listening(3), Listening(3)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        decoder.with_lookahead(live).generate([prompt], LONG)
        replay(replayed, [text], FLAT)
        live.seen.pop()  # a last round that reaches over the end
        replayed.seen.pop()
    np.testing.assert_allclose(replayed.seen, live.seen, atol=2e-4)


@pytest.mark.parametrize("vocabulary", [3, 40, 5000])
@pytest.mark.parametrize("sharpness", [0.3, 2.0, 6.0])
def test_a_shown_law_has_the_signals(vocabulary: int, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    for _ in range(20):
        look = signals(sharpness * torch.randn(vocabulary, generator=generator))
        np.testing.assert_allclose(signals(shown_law(look)), look, atol=2e-4)


@pytest.mark.parametrize(
    "row", [[0.0], [3.0, 3.0], [0.0, -math.inf, -math.inf], [0.0] * 7, [40.0, 0.0, 0.0, 0.0]]
)
def test_a_shown_law_of_an_extreme_law(row: list[float]) -> None:
    look = signals(torch.tensor(row))
    np.testing.assert_allclose(signals(shown_law(look)), look, atol=1e-4)


def test_an_unknown_law_is_shown_as_nan() -> None:
    assert shown_law(Signals(math.nan, math.nan, math.nan)).isnan().all()


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("gamma", [0, 1, 2, 5])
def test_the_quick_way_is_the_replay(costs: RoundCosts, gamma: int, texts: list[DenseText]) -> None:
    quick, run = replay_fixed(texts, costs, gamma), replay(FixedLookahead(gamma), texts, costs)
    assert quick.seconds == pytest.approx(run.seconds, rel=1e-12)
    quick.seconds = run.seconds
    assert quick == run


def test_seconds_are_the_tables() -> None:
    """By hand: 1 token plainly, then γ = 2 with one accepted; a look without a draw costs its step."""
    text = script([0, 1, 0])
    run = replay_fixed([text], STAIRS, 2)
    # t = 0: γ = 2, nothing accepted; t = 1: γ = 1 (one must be left), one accepted
    assert run.seconds == pytest.approx(STAIRS.seconds(2) + STAIRS.seconds(1))
    assert (run.tokens, run.rounds, run.accepted) == (3, 2, 1)

    class LookOnly(FixedLookahead):
        def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
            return False

    looked = replay(LookOnly(2), [text], STAIRS)
    assert looked.seconds == pytest.approx(2 * (0.05 + 1.0 + 0.03) + (1.0 + 0.01))
    assert looked.draft_steps == 2


def script(lengths: list[int], *, gamma_max: int = GAMMA) -> DenseText:
    """Return a text with those accepted lengths; nothing that a policy would look at."""
    count = len(lengths)
    limits = np.arange(count)[::-1].astype(np.int64)
    return DenseText(
        id="s",
        domain="d",
        prompt_length=3,
        width=10,
        tokens=np.zeros(count, dtype=np.int64),
        gamma_limit=limits,
        accepted_length=np.minimum(np.array(lengths), np.minimum(limits, gamma_max)),
        drafts=np.zeros((count, gamma_max), dtype=np.int64),
        looks=np.tile(np.array([-1.0, 1.0, 2.0]), (count, gamma_max, 1)),
        acceptance_prob=np.zeros((count, gamma_max)),
        target_looks=np.tile(np.array([-1.0, 1.0, 2.0]), (count, 1)),
    )


def all_ways(text: DenseText, costs: RoundCosts, position: int = 0) -> Iterator[float]:
    """Yield the seconds of every sequence of γ."""
    count = len(text.tokens)
    if position == count:
        yield 0.0
        return
    for gamma in range(min(costs.gamma_max, int(text.gamma_limit[position])) + 1):
        emitted = min(int(text.accepted_length[position]), gamma) + 1
        for rest in all_ways(text, costs, min(count, position + emitted)):
            yield costs.seconds(gamma) + rest


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_no_sequence_of_gammas_beats_the_oracle(costs: RoundCosts) -> None:
    """Brute force over all γ up to 3 on random texts; and over pairs of texts, as one rate."""
    costs = RoundCosts(
        draft_step=costs.draft_step,
        verify=costs.verify[:4],
        plain_overhead=costs.plain_overhead,
        round_overhead=costs.round_overhead,
    )
    rng = np.random.default_rng(4)
    texts = [script(rng.integers(0, 4, size=7).tolist(), gamma_max=3) for _ in range(6)]
    ways = [list(all_ways(text, costs)) for text in texts]
    for text, seconds in zip(texts, ways, strict=True):
        best = max(len(text.tokens) / each for each in seconds)
        assert replay_oracle([text], costs).tokens_per_second == pytest.approx(best, rel=1e-12)
    first, second = sorted(set(ways[0])), sorted(set(ways[1]))
    pairs = max(14 / (one + other) for one in first for other in second)
    assert replay_oracle(texts[:2], costs).tokens_per_second == pytest.approx(pairs, rel=1e-12)


def test_the_oracle_stops_before_a_step_of_the_stairs() -> None:
    """Three of three would be accepted, but four verified tokens cost more than a round for one."""
    costs = RoundCosts(draft_step=0.01, verify=(1.0, 1.0, 1.0, 3.0))
    flat = RoundCosts(draft_step=0.01, verify=(1.0,) * 4)
    text = script([3] * 8, gamma_max=3)
    assert replay_oracle([text], flat).gammas == {3: 2}
    run = replay_oracle([text], costs)
    assert run.seconds == pytest.approx(3.05)  # 3, 3 and 2 tokens
    assert max(run.gammas) == 2
    assert oracle_gammas(text, costs, 3)[5] == 2


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_no_policy_beats_the_oracle(costs: RoundCosts, texts: list[DenseText]) -> None:
    sticks = yardsticks(texts, costs)
    others: list[Callable[[], LookaheadPolicy]] = [
        lambda: AdaptiveLookahead(predictor(), table(costs), gamma_max=GAMMA),
        lambda: GammaBandit((0, 1, 2, 4)),
    ]
    runs = [replay(make(), texts, costs) for make in (*POLICIES.values(), *others)]
    assert all(run.tokens == sticks.oracle.tokens for run in runs)
    top = sticks.oracle.tokens_per_second
    assert max(run.tokens_per_second for run in runs) <= top * (1 + 1e-12)
    assert sticks.best_fixed.tokens_per_second >= max(run.tokens_per_second for run in runs[:4]) * (
        1 - 1e-12
    )
    assert len({round(run.tokens_per_second, 9) for run in runs}) > 4
    assert sticks.headroom >= 0.0
    if costs is DEAR:
        assert sticks.best_fixed_gamma == 0
        assert sticks.plain.seconds == pytest.approx(sticks.best_fixed.seconds)
    else:
        assert sticks.headroom > 0.05


def test_share_of_gain() -> None:
    def at(rate: float) -> Replay:
        return Replay(tokens=10, seconds=10 / rate)

    assert share_of_gain(at(2.0), base=at(1.0), oracle=at(3.0)) == pytest.approx(0.5)
    assert share_of_gain(at(0.5), base=at(1.0), oracle=at(3.0)) == pytest.approx(-0.25)
    assert share_of_gain(at(3.0), base=at(1.0), oracle=at(3.0)) == pytest.approx(1.0)
    assert share_of_gain(at(1.0), base=at(1.0), oracle=at(1.0)) is None


def test_what_cannot_be_replayed_is_named(texts: list[DenseText]) -> None:
    with pytest.raises(ValueError, match=r"gamma must be <= 6 \(6 recorded, 6 priced\), got 7"):
        replay(FixedLookahead(7), texts, FLAT)
    with pytest.raises(ValueError, match=r"gamma must be <= 2 \(6 recorded, 2 priced\), got 3"):
        replay_fixed(texts, RoundCosts(draft_step=0.1, verify=(1.0, 1.0, 1.0)), 3)
    with pytest.raises(ValueError, match="texts must not be empty"):
        best_fixed([], FLAT)
