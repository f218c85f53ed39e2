"""The accept/reject step as four small Triton kernels: two passes over V in tiles, nothing [.., V] written.

    _measure   every row and tile: largest logit, its index, mass relative to it
    _accept    every sequence: p/q of the drafted tokens, accepted length, scales of the row it stops at
    _weigh     every tile of that row: mass of max(p − q, 0), or of p after γ acceptances
    _draw      every sequence: the tile, then the index in it, where the cumulative mass passes u

Sums over a tile are float32; what is scalar or one per tile is float64, so u keeps its resolution.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 4096


def verify_block_triton(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    drafted: torch.Tensor,
    drafted_count: torch.Tensor,
    temperature: torch.Tensor,
    uniforms: torch.Tensor,
    draft_temperature: torch.Tensor | None = None,
    *,
    tile: int = TILE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `verify_block`. `tile`: entries of V that one program holds, a power of 2."""
    rows, gamma = drafted.shape
    vocabulary = target_logits.shape[-1]
    tiles = triton.cdiv(vocabulary, tile)
    target, draft = _rows_contiguous(target_logits), target_logits
    drawn = temperature.new_zeros(rows)  # a temperature of 0 reads no draft logits
    if draft_logits is not None:
        draft = _rows_contiguous(draft_logits)
        drawn = temperature if draft_temperature is None else draft_temperature
    temperature, drawn = temperature.contiguous(), drawn.contiguous()
    drafted, uniforms = drafted.contiguous(), uniforms.contiguous()
    laws = (target, draft, temperature, drawn, drafted_count.contiguous())
    strides = (*target.stride()[:2], *draft.stride()[:2])

    device = target.device
    peaks = torch.empty(rows, 2 * gamma + 1, tiles, dtype=torch.float32, device=device)
    masses, indices = torch.empty_like(peaks), torch.empty_like(peaks, dtype=torch.int32)
    scales = torch.empty(rows, 4, dtype=torch.float32, device=device)
    rests = torch.empty(rows, tiles, dtype=torch.float32, device=device)
    accepted = torch.empty(rows, dtype=torch.int64, device=device)
    tokens = torch.empty_like(accepted)
    parts = (peaks, masses, indices)
    sizes = (gamma, vocabulary, tiles)
    row_block, tile_block = triton.next_power_of_2(gamma + 1), triton.next_power_of_2(tiles)

    _measure[(rows * (2 * gamma + 1), tiles)](*laws, *strides, *parts, *sizes, tile, num_warps=8)
    _accept[(rows,)](
        *laws, *strides, *parts, drafted, uniforms, accepted, tokens, scales, *sizes,
        row_block, tile_block,
    )  # fmt: skip
    _weigh[(rows, tiles)](
        *laws, *strides, drafted, accepted, scales, rests, *sizes, tile, num_warps=8
    )
    _draw[(rows,)](
        *laws, *strides, peaks, masses, drafted, uniforms, accepted, tokens, scales, rests, *sizes,
        tile, tile_block, num_warps=8,
    )  # fmt: skip
    return accepted, tokens


def _rows_contiguous(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(-1) == 1 else logits.contiguous()


@triton.jit
def _measure(
    target, draft, temperature, drawn, drafted_count,
    target_row, target_place, draft_row, draft_place,
    peaks, masses, indices,
    gamma, vocabulary, tiles, TILE: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)  # γ+1 target rows, then γ draft rows, of each sequence
    tile = tl.program_id(1)
    row, place = part // (2 * gamma + 1), part % (2 * gamma + 1)
    count = tl.load(drafted_count + row)
    index = tile * TILE + tl.arange(0, TILE)
    inside = index < vocabulary
    if place <= gamma:
        used = place <= count
        heat = tl.load(temperature + row)
        offset = row * target_row + place * target_place + index
        logits = tl.load(target + offset, mask=inside & used, other=float("-inf")).to(tl.float32)
    else:
        place -= gamma + 1
        heat = tl.load(drawn + row)
        used = (place < count) & (heat > 0.0)
        offset = row * draft_row + place * draft_place + index
        logits = tl.load(draft + offset, mask=inside & used, other=float("-inf")).to(tl.float32)
    if used:
        peak = tl.max(logits, axis=0)
        mass = tl.sum(_relative(logits, peak, heat), axis=0)
        tl.store(peaks + part * tiles + tile, peak)
        tl.store(masses + part * tiles + tile, mass)
        tl.store(indices + part * tiles + tile, tile * TILE + tl.argmax(logits, axis=0))


@triton.jit
def _accept(
    target, draft, temperature, drawn, drafted_count,
    target_row, target_place, draft_row, draft_place,
    peaks, masses, indices, drafted, uniforms, accepted, tokens, scales,
    gamma, vocabulary, tiles, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(drafted_count + row)
    heat, draft_heat = tl.load(temperature + row), tl.load(drawn + row)
    places = tl.arange(0, ROWS)
    tested = places < count
    token = tl.load(drafted + row * gamma + places, mask=tested, other=0)

    first = row * (2 * gamma + 1)
    p_peak, p_mass, best = _combine(
        peaks, masses, indices, first + places, places <= count, heat, tiles, TILES
    )
    at = target + row * target_row + places * target_place + token
    logit = tl.load(at, mask=tested, other=float("-inf")).to(tl.float32)
    p = tl.where(
        heat > 0.0, _relative(logit, p_peak, heat) / p_mass, (best == token).to(tl.float32)
    )

    from_law = tl.where(tested, draft_heat, 0.0) > 0.0
    q_peak, q_mass, _ = _combine(
        peaks, masses, indices, first + gamma + 1 + places, from_law, draft_heat, tiles, TILES
    )
    at = draft + row * draft_row + places * draft_place + token
    logit = tl.load(at, mask=from_law, other=float("-inf")).to(tl.float32)
    q = tl.where(from_law, _relative(logit, q_peak, draft_heat) / q_mass, 1.0)

    u = tl.load(uniforms + row * (gamma + 1) + places, mask=tested, other=1.0)
    kept = tested & (u < tl.div_rn(p, q).to(tl.float64))
    length = tl.min(
        tl.where(kept, ROWS, places), axis=0
    )  # the first not kept; `count` is not tested
    stop = places == length
    tl.store(accepted + row, length.to(tl.int64))
    tl.store(tokens + row, tl.sum(tl.where(stop, best, 0), axis=0).to(tl.int64))  # if greedy
    tl.store(scales + row * 4 + 0, tl.sum(tl.where(stop, p_peak, 0.0), axis=0))
    tl.store(scales + row * 4 + 1, tl.sum(tl.where(stop, p_mass, 0.0), axis=0))
    tl.store(scales + row * 4 + 2, tl.sum(tl.where(stop, q_peak, 0.0), axis=0))
    tl.store(scales + row * 4 + 3, tl.sum(tl.where(stop, q_mass, 0.0), axis=0))


@triton.jit
def _weigh(
    target, draft, temperature, drawn, drafted_count,
    target_row, target_place, draft_row, draft_place,
    drafted, accepted, scales, rests,
    gamma, vocabulary, tiles, TILE: tl.constexpr,
):  # fmt: skip
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(temperature + row) > 0.0:
        _, rest = _stop_laws(
            target, draft, temperature, drawn, drafted_count,
            target_row, target_place, draft_row, draft_place,
            drafted, accepted, scales, row, tile, gamma, vocabulary, TILE,
        )  # fmt: skip
        tl.store(rests + row * tiles + tile, tl.sum(rest, axis=0))


@triton.jit
def _draw(
    target, draft, temperature, drawn, drafted_count,
    target_row, target_place, draft_row, draft_place,
    peaks, masses, drafted, uniforms, accepted, tokens, scales, rests,
    gamma, vocabulary, tiles, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + row)
    if heat > 0.0:
        length = tl.load(accepted + row)
        used = length + (length < tl.load(drafted_count + row)).to(
            tl.int64
        )  # uniforms of the tests
        u = tl.load(uniforms + row * (gamma + 1) + used)
        every = tl.arange(0, TILES)
        inside = every < tiles
        weights = tl.load(rests + row * tiles + every, mask=inside, other=0.0)
        nothing_left = tl.sum(weights, axis=0) <= 0.0  # p = q up to rounding: draw from p
        if nothing_left:
            at = (row * (2 * gamma + 1) + length) * tiles + every
            peak = tl.load(peaks + at, mask=inside, other=float("-inf"))
            mass = tl.load(masses + at, mask=inside, other=0.0)
            top, total = tl.load(scales + row * 4), tl.load(scales + row * 4 + 1)
            weights = mass * _relative(peak, top, heat) / total
        weights = weights.to(tl.float64)
        goal = u * tl.sum(weights, axis=0)
        tile = _passing(tl.cumsum(weights, axis=0), goal, weights, TILES)
        goal -= tl.sum(tl.where(every < tile, weights, 0.0), axis=0)
        p, rest = _stop_laws(
            target, draft, temperature, drawn, drafted_count,
            target_row, target_place, draft_row, draft_place,
            drafted, accepted, scales, row, tile, gamma, vocabulary, TILE,
        )  # fmt: skip
        weights = tl.where(nothing_left, p, rest).to(tl.float64)
        index = _passing(tl.cumsum(weights, axis=0), goal, weights, TILE)
        tl.store(tokens + row, (tile * TILE + index).to(tl.int64))


@triton.jit
def _stop_laws(
    target, draft, temperature, drawn, drafted_count,
    target_row, target_place, draft_row, draft_place,
    drafted, accepted, scales, row, tile, gamma, vocabulary, TILE: tl.constexpr,
):  # fmt: skip
    """A tile of p at the place where the row stops, and of what the last token is drawn from."""
    place = tl.load(accepted + row)
    rejected = place < tl.load(drafted_count + row)
    heat = tl.load(temperature + row)
    draft_heat = tl.load(drawn + row, mask=rejected, other=0.0)
    index = tile * TILE + tl.arange(0, TILE)
    inside = index < vocabulary

    at = target + row * target_row + place * target_place + index
    logits = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    p = _relative(logits, tl.load(scales + row * 4), heat) / tl.load(scales + row * 4 + 1)

    at = draft + row * draft_row + place * draft_place + index
    from_law = tl.where(inside, draft_heat, 0.0) > 0.0
    logits = tl.load(at, mask=from_law, other=float("-inf")).to(tl.float32)
    q = _relative(logits, tl.load(scales + row * 4 + 2), draft_heat)
    token = tl.load(drafted + row * gamma + place, mask=rejected, other=-1)
    q = tl.where(from_law, q / tl.load(scales + row * 4 + 3), (index == token).to(tl.float32))
    return p, tl.maximum(p - q, 0.0)


@triton.jit
def _combine(
    peaks, masses, indices, parts, used, heat, tiles, TILES: tl.constexpr
):  # fmt: skip
    """Largest logit, mass relative to it and its index, of each whole row, from those of its tiles."""
    every = tl.arange(0, TILES)
    at = parts[:, None] * tiles + every[None, :]  # [ROWS, TILES]
    inside = used[:, None] & (every < tiles)[None, :]
    peak = tl.load(peaks + at, mask=inside, other=float("-inf"))
    mass = tl.load(masses + at, mask=inside, other=0.0)
    top = tl.max(peak, axis=1)
    total = tl.sum(mass * _relative(peak, top[:, None], heat), axis=1)
    best = tl.load(indices + parts * tiles + tl.argmax(peak, axis=1), mask=used, other=0)
    return tl.where(used, top, 0.0), tl.where(used, total, 1.0), best


@triton.jit
def _relative(logits, peak, heat):
    """exp((logits − peak) / heat), and 0 for a logit of -inf, also where all are."""
    finite = tl.where(peak == float("-inf"), 0.0, peak)
    return tl.exp((logits - finite) / tl.where(heat > 0.0, heat, 1.0))


@triton.jit
def _passing(cumulative, goal, weights, SIZE: tl.constexpr):
    """The first index of positive weight whose cumulative weight passes the goal; else the last."""
    every = tl.arange(0, SIZE)
    first = tl.min(tl.where((cumulative > goal) & (weights > 0.0), every, SIZE), axis=0)
    last = tl.max(tl.where(weights > 0.0, every, 0), axis=0)
    return tl.where(first < SIZE, first, last)
