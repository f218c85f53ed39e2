"""The conditions in which speculation is known to lose: what each changes in the settings that were asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .bench_data import Condition
from .bench_plan import Plan

FLOOR = 0.97  # of plain decoding: what the controller is to keep in every condition
OTHER_TOKENIZER = "other-tokenizer"  # a small random model that is made for the run
TARGET_ITSELF = "the target itself"
FAR_DOMAINS = ("japanese",)  # the shipped prompts that no English corpus has


def losing_plan(name: str, asked: Plan) -> Plan:
    """Return the plan of a losing condition."""
    about, change = _CONDITIONS[name]
    return replace(change(asked), condition=Condition(name=name, about=about))


def _other_domain(asked: Plan) -> Plan:
    far = tuple(domain for domain in asked.domains if domain in FAR_DOMAINS)
    return replace(asked, domains=far or asked.domains, temperatures=(1.0,))


def _large_draft(asked: Plan) -> Plan:
    return replace(asked, drafters=(TARGET_ITSELF,))


def _long_candidates(asked: Plan) -> Plan:
    return replace(asked, policies=(8, 16, *_controllers(asked)))


def _short_outputs(asked: Plan) -> Plan:
    return replace(asked, max_tokens=(2, 4))


def _large_batches(asked: Plan) -> Plan:
    most = max(asked.batch_sizes)
    return replace(asked, batch_sizes=(most,) if most > 1 else (8,))


def _two_models_memory(asked: Plan) -> Plan:
    longest = max((length for length in asked.prompt_tokens if length is not None), default=512)
    return replace(asked, prompt_tokens=(longest,))


def _other_tokenizer(asked: Plan) -> Plan:
    return replace(asked, drafters=(OTHER_TOKENIZER, f"cross:{OTHER_TOKENIZER}"))


def _controllers(asked: Plan) -> tuple[int | str, ...]:
    return tuple(policy for policy in asked.policies if isinstance(policy, str))


_CONDITIONS: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "other-domain": (
        "Text that the draft did not learn from: Japanese where there are such prompts, at temperature 1.",
        _other_domain,
    ),
    "large-draft": (
        "A draft as slow as the target: the target itself. Every token is accepted and none pays.",
        _large_draft,
    ),
    "long-candidates": (
        "8 and 16 candidates a round, on hardware where a forward over more tokens takes longer.",
        _long_candidates,
    ),
    "short-outputs": (
        "Outputs of 2 and 4 tokens: the draft reads the whole prompt for hardly a token.",
        _short_outputs,
    ),
    "large-batches": (
        "The largest batch: its forwards are bound by arithmetic, so candidates are not free.",
        _large_batches,
    ),
    "two-models-memory": (
        "A long prompt: two sets of weights and two caches. Where the draft's weights do not fit, "
        "there is only plain decoding.",
        _two_models_memory,
    ),
    "other-tokenizer": (
        "A draft with another tokenizer, random: refused as it is, re-encoded as a cross-tokenizer draft.",
        _other_tokenizer,
    ),
}
