"""Rolling back is a change of length: nothing moves, nothing grows, no round costs more than an earlier one."""

from __future__ import annotations

import pytest
import torch

from families import FAMILIES, build, random_prompts
from foredraft.spec import CachedModel
from rollback import measure


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("rounds", "context"), [(300, 256), pytest.param(1000, 4096, marks=pytest.mark.slow)]
)
def test_rolled_back_rounds_leave_memory_and_time_flat(rounds: int, context: int) -> None:
    flat = measure(rounds=rounds, context=context, gamma=1)
    assert flat.buffers_moved == 0
    # One more key and value a round would be 1000 rounds * 2 tokens * 3 layers * 128 bytes = 0.7 MiB;
    # a copy of the cache is 1.5 MiB. Peak size is counted in pages, and allocators keep some.
    assert flat.peak_growth < 2**19
    assert flat.object_growth < 20  # one object a round would be 100
    # Processor time, lower quartiles. Neighbours on the machine still cost up to a third (shared caches);
    # a cost that grows with the rounds would be many times as much after a thousand as after a hundred.
    assert flat.late / flat.early < 1.5
    assert 0 < flat.accepted < rounds + 100  # some rounds were accepted, some rejected


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral-sliding", "deepseek-v3", "gemma3n"])
def test_buffers_stay_where_they_are(name: str) -> None:
    model = build(name, attention=FAMILIES[name].attention[0])
    cached = CachedModel(model)
    [tokens] = random_prompts(60)
    cached.start(tokens[:20], 64)
    before = [(buffer.data_ptr(), buffer.shape) for buffer in cached.cache.buffers()]
    assert before
    for length in (24, 33, 21, 40, 60, 25):
        cached.roll_back(19)
        cached.advance(tokens[19:length])
    cached.start(tokens[:5], 40)  # another request, no longer than the buffers
    assert [(buffer.data_ptr(), buffer.shape) for buffer in cached.cache.buffers()] == before


def test_what_is_stale_is_never_read() -> None:
    # Large finite values in every slot above the cover must change nothing.
    model = build("gemma2", attention="eager")
    [tokens] = random_prompts(30)
    cached = CachedModel(model)
    cached.start(tokens[:21], 64)
    logits = cached.advance(tokens[20:], keep=10)
    cached.roll_back(20)
    with torch.inference_mode():
        for buffer in cached.cache.buffers():
            buffer[:, :, 20:] = 1e4
    assert torch.equal(cached.advance(tokens[20:], keep=10), logits)
