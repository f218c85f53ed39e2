"""The verify curve: dips within the noise go, steps and real dips stay."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.controller.steps import without_noise

STAIRS = (0.084, 0.093, 0.096, 0.127, 0.110, 0.115, 0.112, 0.140, 0.136)  # measured on two cores


def test_small_dips_are_pooled_and_the_rest_is_kept_exactly() -> None:
    smooth = without_noise(STAIRS, 0.05)
    assert smooth[:5] == STAIRS[:5], "the dip of 13 % after 4 tokens is a kernel's"
    assert smooth[5] == smooth[6] == pytest.approx((0.115 * 0.112) ** 0.5)
    assert smooth[7] == smooth[8] == pytest.approx((0.140 * 0.136) ** 0.5)


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_steps_stay_where_they_are(noise: float) -> None:
    """Noise of that size on a curve of two steps: within 1.5 % on average, flat parts flatter."""
    truth = np.array([1.0] * 4 + [1.5] * 4 + [1.6] * 4)
    rng = np.random.default_rng(0)
    raw, pooled = [], []
    for _ in range(200):
        seen = truth * np.exp(rng.uniform(-noise, noise, len(truth)) / 2)
        raw.append(np.abs(seen / truth - 1.0).mean())
        pooled.append(np.abs(np.array(without_noise(seen.tolist(), noise)) / truth - 1.0).mean())
    assert np.mean(pooled) < 0.8 * np.mean(raw)


def test_without_noise_nothing_changes_and_with_much_the_curve_rises() -> None:
    assert without_noise(STAIRS, 0.0) == STAIRS
    assert list(without_noise(STAIRS, 10.0)) == sorted(without_noise(STAIRS, 10.0))
    rising = tuple(1.0 + 0.1 * n for n in range(6))
    assert without_noise(rising, 10.0) == rising


def test_a_pool_is_checked_against_what_is_before_it() -> None:
    """1.00, 1.04, 0.98: the last two pool to 1.01, which is above the first; 0.94 draws the first in."""
    assert without_noise((1.0, 1.04, 0.98), 0.1)[0] == 1.0
    assert len(set(without_noise((1.0, 1.04, 0.94), 0.15))) == 1


def test_the_noise_is_checked() -> None:
    with pytest.raises(ValueError, match="noise must be a number"):
        without_noise(STAIRS, -0.1)
