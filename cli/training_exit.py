"""`foredraft train-exit`: an adapter with which a target's first layers draft."""

from __future__ import annotations

from ..spec import load_causal_lm, load_tokenizer, pack_linears, settle_cpu
from ..train import ExitConfig, train_exit
from .packaged import resolve_target


def run_train_exit(config: ExitConfig) -> None:
    """`foredraft train-exit`"""
    settle_cpu()
    name = resolve_target(config.target)
    target = load_causal_lm(name)
    pack_linears(target)
    result = train_exit(config, target=target, tokenizer=load_tokenizer(name))
    print(
        f"{result.folder}: α {result.untrained:.3f} untrained, {result.aligned:.3f} in closed form, "
        f"{result.alpha:.3f} trained; {result.bytes / 1e6:.1f} MB, {result.share:.2%} of the target's"
    )
