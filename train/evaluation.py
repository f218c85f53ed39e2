"""How well a draft imitates its target on held-out text, teacher-forced.

α is always Σ min(p, q) against the whole vocabulary of the target, p not renormalised: what the
decode loop would accept at these positions with both models at temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..data import CorpusRow
from .batches import Example, make_examples, micro_batches
from .divergences import forward_kl
from .heads import LogitHead, divided, eval_mode, head_of
from .packing import Batch, Collate, collate_for, supervised_states
from .teacher import Teacher

METRICS = ("alpha_tf", "top1", "kl", "coverage")  # columns of a token table
BY_DOMAIN = ("alpha_tf", "coverage")
CACHE_GB = 2.0  # for a teacher's states where several drafts are scored on the same rows


def evaluate_draft(
    target: Any,
    draft: Any,
    kept: torch.Tensor | None,
    rows: Sequence[CorpusRow],
    *,
    width: int | None = None,
    max_length: int = 1024,
    batch_rows: int = 8,
    chunk_tokens: int = 1024,
    draft_temperature: float = 1.0,
) -> dict[str, float]:
    """Return how well a draft imitates the target on the responses of corpus rows.

    Args:
        target: a causal LM.
        draft: a causal LM on the same device; its head is cut if `kept` is given.
        kept: [V_draft], the target token of each row of a cut head; None: a whole head.
        rows: whose responses are scored, given their prompts.
        width: V, entries of the target's law (padding above the tokenizer is cut); None: all rows.
        max_length: tokens of prompt and response; what is beyond is cut from the end.
        batch_rows: rows in a forward.
        chunk_tokens: tokens whose logits exist at the same time.
        draft_temperature: divides the draft's logits; the target stays at temperature 1.

    Returns:
        Means over response tokens at temperature 1, under `eval/T1/`: alpha_tf (Σ min(p, q)),
        alpha_p10 (the tenth percentile of it), top1 (share with the same argmax), kl (in nats, of
        the target renormalised on what the draft can propose), coverage (its mass on that). Where rows
        are of several domains, alpha_tf and coverage of each too, under `eval/T1/domains/DOMAIN/`.

    Raises:
        ValueError: if no row has a response token.
    """
    teacher = Teacher(target, width=width)
    examples = make_examples(rows, max_length).examples
    if not examples:
        raise ValueError(
            f"rows must hold at least one response token, got {len(rows)} rows without"
        )
    teacher.check(examples[0])
    return evaluate(
        teacher,
        draft,
        columns_of(teacher, draft, kept),
        examples,
        collate=collate_for(draft),
        batch_rows=batch_rows,
        chunk_tokens=chunk_tokens,
        draft_temperature=draft_temperature,
        domains=domains_of(examples),
    )


def evaluate(
    teacher: Teacher,
    draft: Any,
    columns: torch.Tensor,
    examples: Sequence[Example],
    *,
    collate: Collate,
    batch_rows: int,
    chunk_tokens: int,
    gather: Callable[[torch.Tensor], torch.Tensor] = lambda table: table,
    draft_temperature: float = 1.0,
    domains: Sequence[str] = (),
) -> dict[str, float]:
    """Return the metrics of `evaluate_draft` on prepared examples, and α and coverage of each domain.

    Args:
        columns: [V_draft], the target token that each row of the draft's head stands for.
        examples: this process's share of them.
        collate: makes batches for the draft.
        gather: joins the token tables [N, 5] of all processes along their tokens.
        draft_temperature: as for `token_tables`.
        domains: all processes' domains, under `eval/T1/domains/`; examples of others count in the whole only.
    """
    tables = token_tables(
        teacher,
        draft,
        columns,
        examples,
        collate=collate,
        batch_rows=batch_rows,
        chunk_tokens=chunk_tokens,
        draft_temperature=draft_temperature,
    )
    marked = [_marked(table, example, domains) for example, table in tables.items()]
    table = gather(torch.cat([torch.empty(0, len(METRICS) + 1), *marked])).double()  # [N, 5]
    means = dict(zip(METRICS, table.mean(0).tolist(), strict=False))
    means["alpha_p10"] = table[:, 0].quantile(0.1).item()
    for index, domain in enumerate(domains):
        own = dict(zip(METRICS, table[table[:, -1] == index].mean(0).tolist(), strict=False))
        means |= {f"domains/{domain}/{name}": own[name] for name in BY_DOMAIN}
    return {f"eval/T1/{name}": value for name, value in means.items()}


def domains_of(examples: Sequence[Example]) -> list[str]:
    """Return the domains of examples, sorted; none where all are of one, of which the whole says it."""
    found = sorted({example.domain for example in examples if example.domain})
    return found if len(found) > 1 else []


def _marked(table: torch.Tensor, example: Example, domains: Sequence[str]) -> torch.Tensor:
    """Return an example's table [supervised, 4] with a column more: the index of its domain, or −1."""
    index = domains.index(example.domain) if example.domain in domains else -1
    return torch.cat([table, torch.full_like(table[:, :1], index)], dim=1)


def token_tables(
    teacher: Teacher,
    draft: Any,
    columns: torch.Tensor,
    examples: Sequence[Example],
    *,
    collate: Collate,
    batch_rows: int,
    chunk_tokens: int,
    draft_temperature: float = 1.0,
) -> dict[Example, torch.Tensor]:
    """Return the METRICS of each supervised token of each example: [supervised, 4], on the CPU.

    Args:
        columns, collate: as for `evaluate`.
        draft_temperature: divides the draft's logits; the target stays at temperature 1.
    """
    target_head = teacher.head.rows(columns)
    tables: dict[Example, torch.Tensor] = {}
    with eval_mode(draft):
        for part in micro_batches(examples, batch_rows):
            table = _token_table(
                teacher,
                draft,
                columns,
                target_head,
                part,
                collate(part),
                chunk_tokens,
                draft_temperature,
            )
            sizes = [example.supervised for example in part]
            tables.update(zip(part, torch.split(table.cpu(), sizes), strict=True))
    return tables


def alphas_of(
    teacher: Teacher,
    draft: Any,
    kept: torch.Tensor | None,
    examples: Sequence[Example],
    draft_temperature: float = 1.0,
) -> list[torch.Tensor]:
    """Return Σ min(p, q) at each supervised token of each example: [supervised] each, float64.

    Args:
        kept: [V_draft], the target token of each row of a cut head; None: a whole head.
        draft_temperature: as for `token_tables`.
    """
    tables = token_tables(
        teacher,
        draft,
        columns_of(teacher, draft, kept),
        examples,
        collate=collate_for(draft),
        batch_rows=8,
        chunk_tokens=1024,
        draft_temperature=draft_temperature,
    )
    return [tables[example][:, 0].double() for example in examples]


def columns_of(teacher: Teacher, draft: Any, kept: torch.Tensor | None) -> torch.Tensor:
    """Return the tokens [V_draft] that the draft can propose."""
    if kept is not None:
        return kept
    return torch.arange(min(teacher.width, head_of(draft).weight.shape[0]))


@torch.no_grad()
def _token_table(
    teacher: Teacher,
    draft: Any,
    columns: torch.Tensor,  # [V_draft]
    target_head: LogitHead,  # of those columns
    examples: Sequence[Example],
    batch: Batch,  # of the examples
    chunk_tokens: int,
    draft_temperature: float,
) -> torch.Tensor:
    """Return the metrics of each supervised token: [N, 4]."""
    draft_hidden = supervised_states(draft, batch)  # [N, d]
    target_hidden = teacher.hidden(examples)  # [N, d]
    log_sums, best = teacher.summary(examples, target_hidden, chunk_tokens)  # [N], [N]
    draft_head = head_of(draft).first(len(columns))
    columns = columns.to(teacher.device)
    tables = []
    for start in range(0, len(draft_hidden), chunk_tokens):
        chunk = slice(start, start + chunk_tokens)
        target_logits = target_head.logits(target_hidden[chunk])  # [n, V_draft]
        draft_logits = divided(
            draft_head.logits(draft_hidden[chunk]), draft_temperature
        )  # [n, V_draft]
        target_probs = (target_logits - log_sums[chunk, None]).exp()  # of the whole law
        draft_probs = draft_logits.softmax(-1)
        tables.append(
            torch.stack(
                [
                    torch.minimum(target_probs, draft_probs).sum(-1),
                    (columns[draft_logits.argmax(-1)] == best[chunk]).to(draft_probs),
                    forward_kl(target_logits, draft_logits),
                    target_probs.sum(-1),
                ],
                dim=-1,
            )
        )
    return torch.cat(tables)
