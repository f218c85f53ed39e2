"""`foredraft train-head`: heads that draft from a target's last hidden states."""

from __future__ import annotations

from collections.abc import Sequence

from ..spec import load_causal_lm, load_tokenizer, pack_linears, settle_cpu
from ..train import HeadConfig, train_heads
from .packaged import resolve_target


def run_train_head(config: HeadConfig) -> None:
    """`foredraft train-head`"""
    settle_cpu()
    name = resolve_target(config.target)
    target = load_causal_lm(name)
    pack_linears(target)
    result = train_heads(
        config, target=target, tokenizer=load_tokenizer(name), progress=_print_progress
    )
    print(
        f"{result.folder}: α by depth {_shown(result.start)} in closed form, {_shown(result.alphas)} "
        f"trained in {result.steps} steps; {result.bytes / 1e6:.1f} MB, {result.share:.2%} of the target's"
    )


def _print_progress(steps: int, seconds: float, alphas: Sequence[float]) -> None:
    print(f"step {steps}, {seconds:.0f} s: α by depth {_shown(alphas)}", flush=True)


def _shown(alphas: Sequence[float]) -> str:
    return "/".join(f"{alpha:.3f}" for alpha in alphas)
