"""`foredraft verify`: the parity gate of a draft's folder, a line a check."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..data import load_prompts
from ..spec import load_causal_lm, load_tokenizer, pack_linears, settle_cpu
from ..train import Check, verify_draft
from ..train.own_weights import check_own_weights
from .comparing import interleave_domains
from .config import VerifyCommand
from .packaged import resolve_target

_WORDS = {True: ("pass", "green"), False: ("FAIL", "bold red"), None: ("note", "dim")}


def run_verify(config: VerifyCommand) -> int:
    """`foredraft verify`: print the checks and return 1 where one failed, else 0."""
    check_own_weights(config.draft)  # before anything is loaded
    settle_cpu()
    name = resolve_target(config.target)
    prompts = load_prompts(
        config.prompts,
        domains=config.domains if config.prompts == "shipped" else None,
        split="test",
        limit_per_domain=config.prompts_per_domain,
    )
    target = load_causal_lm(name, device=config.device, dtype=config.dtype)
    pack_linears(target)
    checks = verify_draft(
        target,
        load_tokenizer(name),
        config.draft,
        interleave_domains(prompts),
        gamma=config.gamma,
        max_tokens=config.max_tokens,
        seed=config.seed,
        device=config.device,
        dtype=config.dtype,
    )
    print_checks(checks, Console())
    return int(any(check.passed is False for check in checks))


def print_checks(checks: list[Check], console: Console) -> None:
    """Print a line a check: whether it passed, its name, and its figures with their bound."""
    for check in checks:
        word, style = _WORDS[check.passed]
        line = Text.assemble((word, style), f"  {check.name:<13}{check.said}")
        console.print(line, soft_wrap=True)
