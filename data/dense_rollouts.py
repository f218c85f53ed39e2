"""The chains of all positions of a text at once: one forward over the text, one more for each depth.

As long as drafted tokens agree with the text, the draft's law is that after the text itself, so one forward
gives it for all positions. After a first disagreement at position r the chain goes on off the text, and
does so in the same way wherever it began: one rollout for each r. All rollouts share the text's keys
and take each step together, as a tree under a mask of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..spec import HeadDrafter, ModelDrafter, full_attention
from ..spec.batch_masks import mask_bias, ragged_obstacle
from ..spec.cached import cache_argument
from ..spec.searches import best_tokens
from .dense_positions import Chain, WrittenText, one_by_one


def draft_chains(drafter: ModelDrafter, text: WrittenText, gamma_max: int) -> list[Chain]:
    """Return the chain of each position: together where the draft's attention allows, else one by one."""
    model = drafter.cached.model
    own = isinstance(drafter, HeadDrafter)  # goes on from other states at each depth
    if own or not full_attention(model) or ragged_obstacle(model) is not None:
        return one_by_one(drafter, text, gamma_max)
    return together(drafter, text, gamma_max)


def together(drafter: ModelDrafter, text: WrittenText, gamma_max: int) -> list[Chain]:
    """Return the chain of each position, up to rounding those of `one_by_one`."""
    places = min(len(text.tokens), drafter.context - len(text.prompt))
    if places < 1:
        return [Chain([], []) for _ in range(text.length)]
    drafter.cached.reset(len(text.prompt) + places * gamma_max)  # a rollout for each place at most
    base = _on_text(drafter, text, places)
    wrong = [place for place in range(places) if base.tokens[place] != text.tokens[place]]
    rollouts = _roll_out(drafter, text, base, wrong, gamma_max)
    return [
        _assemble(
            text, base, rollouts, position, min(gamma_max, text.limit(position, drafter.context))
        )
        for position in range(text.length)
    ]


def _on_text(drafter: ModelDrafter, text: WrittenText, places: int) -> Chain:
    """Return what the draft says at each position after the text itself."""
    new = text.sequence[: len(text.prompt) + places - 1]
    logits = drafter.cached.advance(new, keep=places)  # [places, V_draft]
    return Chain(_best(drafter, logits), list(logits))


def _assemble(
    text: WrittenText, base: Chain, rollouts: dict[int, Chain], position: int, gamma: int
) -> Chain:
    tokens: list[int] = []
    logits: list[torch.Tensor] = []
    for place in range(position, position + gamma):
        tokens.append(base.tokens[place])
        logits.append(base.logits[place])
        if base.tokens[place] != text.tokens[place]:
            rest = rollouts[place]
            tokens += rest.tokens
            logits += rest.logits
            break
    return Chain(tokens[:gamma], logits[:gamma])


def _roll_out(
    drafter: ModelDrafter, text: WrittenText, base: Chain, wrong: Sequence[int], gamma_max: int
) -> dict[int, Chain]:
    """Return, for each position where the draft is wrong, what it proposes after its wrong token."""
    steps = {
        place: min(gamma_max, text.limit(place, drafter.context)) - 1 for place in wrong
    }  # forwards after the wrong token
    rollouts = {place: Chain([], []) for place in wrong}
    tree = _Tree(drafter, len(text.prompt))
    last = {place: base.tokens[place] for place in wrong}
    for depth in range(1, gamma_max):
        alive = [place for place in wrong if steps[place] >= depth]
        if not alive:
            break
        logits = tree.advance(alive, [last[place] for place in alive])  # [R, V_draft]
        for place, token, row in zip(alive, _best(drafter, logits), list(logits), strict=True):
            rollouts[place].tokens.append(token)
            rollouts[place].logits.append(row)
            last[place] = token
    return rollouts


class _Tree:
    """Branches off one sequence in a draft's cache: a branch sees the sequence up to its root and itself."""

    def __init__(self, drafter: ModelDrafter, prompt_length: int) -> None:
        """Branch off what the cache covers."""
        self._cached, self._prompt = drafter.cached, prompt_length
        self._own: dict[int, list[int]] = {}  # root -> where its nodes stand in the cache
        model = self._cached.model
        eager = model.config.get_text_config()._attn_implementation == "eager"
        self._additive = next(model.parameters()).dtype if eager else None

    @torch.inference_mode()
    def advance(self, roots: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Feed one more token to each branch and return the logits after it, [R, V_draft].

        Args:
            roots: positions of the text; the first token of a branch stands in place of the text's there.
        """
        cached, start = self._cached, self._cached.cover
        length = start + len(roots)
        before = torch.tensor([self._prompt + root for root in roots])  # [R]
        seen = torch.arange(length) < before[:, None]  # [R, length]
        for row, root in enumerate(roots):
            own = self._own.setdefault(root, [])
            own.append(start + row)
            seen[row, own] = True
        depths = torch.tensor([len(self._own[root]) - 1 for root in roots])
        logits = cached.model(
            input_ids=torch.tensor([list(tokens)], device=cached.device),
            attention_mask=mask_bias(seen[None, None].to(cached.device), self._additive),
            position_ids=(before + depths)[None].to(cached.device),
            use_cache=True,
            logits_to_keep=len(roots),
            **{cache_argument(cached.model): cached.cache},
        ).logits[0, :, : cached.width]  # [R, V_draft]
        cached.cache.cover = length
        return logits  # type: ignore[no-any-return]


def _best(drafter: ModelDrafter, logits: torch.Tensor) -> list[int]:
    """Return the tokens that the draft draws greedily, in the target's vocabulary. [N, V_draft]."""
    best = best_tokens(logits)  # [N]
    tokens: list[int] = (best if drafter.kept is None else drafter.kept.to(best)[best]).tolist()
    return tokens
