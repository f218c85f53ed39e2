"""What a bench measures, block by block: a block is what all arms of a condition decode in turn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .bench_config import LOSING, BenchCommand
from .bench_data import Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A condition with all that is varied in it."""

    condition: Condition
    drafters: tuple[str, ...]
    policies: tuple[int | str, ...]
    domains: tuple[str, ...]
    prompt_tokens: tuple[int | None, ...]
    max_tokens: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Prompts decoded at once, under one setting."""

    condition: str
    domain: str
    prompt_tokens: int | None
    max_tokens: int
    rows: int
    temperature: float
    index: int
    repeat: int

    @property
    def work(self) -> int:
        """What it takes, in tokens; for the time that is left."""
        return self.rows * (self.max_tokens + (self.prompt_tokens or 0) // 8)


def blocks_of(plans: Sequence[Plan], prompts_per_domain: int, repeats: int) -> list[Block]:
    """Return all blocks, in an order in which every prefix has all conditions in about equal parts."""
    return [
        Block(
            condition=plan.condition.name,
            domain=domain,
            prompt_tokens=length,
            max_tokens=most,
            rows=rows,
            temperature=temperature,
            index=index,
            repeat=repeat,
        )
        for index in range(prompts_per_domain)
        for repeat in range(repeats)
        for plan in plans
        for length, most, rows, temperature, domain in itertools.product(
            plan.prompt_tokens, plan.max_tokens, plan.batch_sizes, plan.temperatures, plan.domains
        )
    ]


def make_plans(config: BenchCommand, domains: Sequence[str]) -> list[Plan]:
    """Return one plan of the settings as asked, or one for each losing condition that was asked for.

    Args:
        domains: that there are prompts of, after the choice of `config.domains`.
    """
    asked = Plan(
        condition=Condition(name="as asked", about="The settings of the command."),
        drafters=config.drafters,
        policies=config.policies,
        domains=tuple(domains),
        prompt_tokens=config.prompt_tokens or (None,),
        max_tokens=config.max_tokens,
        batch_sizes=config.batch_sizes,
        temperatures=config.temperatures,
    )
    if not config.preset:
        return [asked]
    from .bench_losing import losing_plan  # it builds on Plan

    wanted = LOSING if "losing" in config.preset else config.preset
    return [losing_plan(name, asked) for name in wanted]
