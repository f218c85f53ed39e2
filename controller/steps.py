"""The verify curve with its steps but without its noise.

More tokens in one forward do not take less time, but for the choice of a kernel, so a small dip of the measured
curve is noise and a large one is real. Dips within the noise are pooled (isotonic regression, Ayer et al.
1955, in logs); all that rises, and what falls by more, is kept as measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .config import check_number


def without_noise(seconds: Sequence[float], noise: float) -> tuple[float, ...]:
    """Return the curve with every fall of at most `noise` pooled with what it falls from.

    Args:
        seconds: of 1, 2, … tokens, above 0.
        noise: relative, such as 0.05; 0 keeps the curve as it is.
    """
    check_number("noise", noise, low=0.0)
    most = math.log1p(noise)
    blocks: list[tuple[float, int]] = []  # mean log, cells
    for value in seconds:
        blocks.append((math.log(value), 1))
        while len(blocks) > 1 and 0.0 < blocks[-2][0] - blocks[-1][0] <= most:
            (above, cells), (below, more) = blocks[-2:]
            blocks[-2:] = [((above * cells + below * more) / (cells + more), cells + more)]
    smooth: list[float] = []
    for mean, cells in blocks:
        kept = seconds[len(smooth)] if cells == 1 else math.exp(mean)
        smooth += [kept] * cells
    return tuple(smooth)
