"""What the demo makes of its parts' results."""

from __future__ import annotations

from foredraft.cli.demo import _curve


def test_the_curve_adds_up_the_time_of_the_steps() -> None:
    """The logged rows bear no running time: it was shown as 0 s."""
    step = {
        "train/tokens": 10.0,
        "train/loss": 2.0,
        "perf/teacher_ms": 500.0,
        "perf/draft_ms": 1000.0,
    }
    rows = [
        {"step": 0, "eval/T1/alpha_tf": 0.1},
        {"step": 1, **step},
        {"step": 2, **step, "train/tokens": 20.0},
        {"step": 2, "eval/T1/alpha_tf": 0.2},
    ]
    points = _curve(rows)
    assert [point.seconds for point in points] == [0.0, 1.5, 3.0, 3.0]
    assert [point.tokens for point in points] == [0, 10, 20, 20]
    assert points[-1].alpha == 0.2
