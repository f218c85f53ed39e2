"""`foredraft calibrate`: the temperatures that a draft should draw at, a line a temperature."""

from __future__ import annotations

from ..spec import load_causal_lm, load_tokenizer, pack_linears, settle_cpu, target_width
from ..train.calibrating import calibrate_folder
from ..train.evaluation import CACHE_GB
from ..train.held_out import load_held_out
from ..train.own_weights import check_own_weights
from ..train.teacher import Teacher
from .config import CalibrateCommand
from .packaged import resolve_target


def run_calibrate(config: CalibrateCommand) -> None:
    """`foredraft calibrate`: write them into the draft's `foredraft.json` and print them."""
    check_own_weights(config.draft)  # before anything is loaded
    settle_cpu()
    name = resolve_target(config.target)
    target = load_causal_lm(name, device=config.device, dtype=config.dtype)
    pack_linears(target)
    width = target_width(target, load_tokenizer(name))
    teacher = Teacher(target, width=width, cache_gb=CACHE_GB)
    rows = load_held_out(config.draft)
    for one in calibrate_folder(
        teacher, config.draft, rows, config.temperatures, dtype=config.dtype
    ):
        print(
            f"temperature {one.temperature:g}: the draft draws at {one.temperature * one.factor:.3g} "
            f"(× {one.factor:g}); α {one.alpha:.4f} before, {one.alpha_calibrated:.4f} after"
        )
