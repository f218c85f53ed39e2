"""Forwards of fixed shape and the device loop: equal to the ordinary ones, on the code that a card captures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foredraft.spec import (
    CachedModel,
    FixedLookahead,
    ModelDrafter,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    decode_round,
)
from foredraft.spec.device_loop import DeviceDecoder, DeviceOutput, generate_device
from foredraft.spec.graphs import (
    TOKEN_BUCKETS,
    GraphRunner,
    StaticModel,
    token_bucket,
    visible_bucket,
)
from toys import byte_tokenizer, greedy, tiny_gpt2, tiny_llama
from verify_cases import QueuedDraws

PROMPT = [5, 100, 33, 7, 250, 12]


def noisy_copy(model: Any, *, scale: float = 0.03) -> Any:
    """A draft that is right about as often as it is wrong."""
    draft = type(model)(model.config).eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(scale * weight.std() * torch.randn(weight.shape, generator=generator))
    return draft


def ordinary(target: Any, draft: Any, prompt: list[int], gamma: int, params: Any) -> list[int]:
    drafter = ModelDrafter(draft, width=260) if gamma else None
    decoder = SpeculativeDecoder(target, None, drafter, FixedLookahead(gamma))
    return decoder.generate([prompt], params)[0].token_ids


def test_buckets_are_the_smallest_that_hold() -> None:
    assert [token_bucket(n) for n in (1, 5, 6, 8, 10, 17)] == [1, 5, 7, 9, 13, 17]
    with pytest.raises(ValueError, match="at most 17 tokens, got 18"):
        token_bucket(18)
    assert [visible_bucket(n, 1000) for n in (1, 256, 257, 600)] == [256, 256, 512, 1000]


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2])  # GPT-2's positions are absolute
def test_static_forwards_equal_cached_ones_at_every_length_and_bucket(make_model: Any) -> None:
    model = make_model(context=128)
    generator = torch.Generator().manual_seed(0)
    sequence = torch.randint(0, 260, (60,), generator=generator).tolist()
    cached = CachedModel(model)
    cached.start(sequence, 100)
    cached.roll_back(0)
    expected = cached.advance(sequence, keep=60)
    for bucket in TOKEN_BUCKETS:
        static = StaticModel(model, capacity=96)
        static.prefill(sequence[:7])
        start = 7
        while start + 1 < 60:
            real = min(1 + (start % bucket), 60 - start)  # the rest of the bucket is padding
            fed = [*sequence[start : start + real], *[259] * (bucket - real)]
            positions = torch.arange(start, start + bucket)[None]
            logits = static.forward(torch.tensor([fed]), positions, 96, keep=bucket)[0, :real]
            difference = (logits - expected[start : start + real]).abs().max()
            assert difference < 1e-4 * expected.abs().max() / 10, (bucket, start)
            start += real


def test_rejected_tokens_and_padding_are_never_seen() -> None:
    model = tiny_llama()
    static = StaticModel(model, capacity=64)
    static.prefill(PROMPT)
    clean = static.forward(torch.tensor([[9]]), torch.tensor([[6]]), 64, keep=1)
    static.forward(torch.full((1, 9), 77), torch.arange(6, 15)[None], 64, keep=9)  # all rejected
    again = static.forward(torch.tensor([[9]]), torch.tensor([[6]]), 64, keep=1)
    assert torch.equal(clean, again)


@pytest.mark.parametrize("gamma", [0, 1, 3, 16])
def test_greedy_on_the_device_equals_the_ordinary_loop(gamma: int) -> None:
    target = tiny_llama()
    draft = noisy_copy(target) if gamma else None
    decoder = DeviceDecoder(target, draft, gamma=gamma, capacity=320)
    for prompt, length in ((PROMPT, 30), ([7], 12), ([7, 8], 1), (list(range(240)), 24)):
        params = greedy(max_tokens=length)
        output = decoder.generate(prompt, params)
        assert output.token_ids == ordinary(target, draft, prompt, gamma, params)
        assert output.finish_reason == "length"
        assert output.rounds + sum(output.accepted_lengths.elements()) == length
    if gamma >= 3:
        assert (
            len(output.accepted_lengths) >= 3
        )  # blocks were accepted in full, in part, not at all


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_the_limit_holds_at_every_offset_of_a_block(max_tokens: int) -> None:
    model = tiny_llama()
    output = generate_device(model, model, PROMPT, 4, greedy(max_tokens=max_tokens))
    assert output.token_ids == ordinary(model, None, PROMPT, 0, greedy(max_tokens=max_tokens))
    assert output.rounds + sum(output.accepted_lengths.elements()) == max_tokens


@pytest.mark.parametrize("offset", range(1, 6))
def test_an_end_token_ends_the_output_at_every_offset(offset: int) -> None:
    model = tiny_llama()
    plain = ordinary(model, None, PROMPT, 0, greedy(max_tokens=12))
    end = plain[offset]
    params = greedy(max_tokens=12, stop_token_ids=(end,))
    output = generate_device(model, model, PROMPT, 3, params)
    assert output.token_ids == plain[: plain.index(end) + 1]
    assert output.finish_reason == "stop"


def test_stop_strings_are_found() -> None:
    model, tokenizer = tiny_llama(), byte_tokenizer()
    decoder = DeviceDecoder(model, model, gamma=4, capacity=64)
    plain = SpeculativeDecoder(model, tokenizer).generate([PROMPT], greedy(max_tokens=30))[0]
    stop = plain.text[6:8]
    params = greedy(max_tokens=30, stop=(stop,))
    output = decoder.generate(PROMPT, params, tokenizer)
    expected = SpeculativeDecoder(model, tokenizer).generate([PROMPT], params)[0]
    assert output.token_ids == expected.token_ids
    assert output.finish_reason == "stop"


class UniformsOfARound(FixedLookahead):
    """Refills the draws at each round with the uniforms that the device loop has in it."""

    def __init__(self, gamma: int, seed: int) -> None:
        super().__init__(gamma)
        self.generator = torch.Generator().manual_seed(seed)
        self.draws = QueuedDraws([])

    def begin_round(self, start: RoundStart) -> int:
        gamma = self.gamma_max
        row = torch.empty(2 * gamma + 1, dtype=torch.float64).uniform_(generator=self.generator)
        uniforms = row.tolist()
        allowed = min(gamma, start.gamma_limit) if start.context_length > 1 else 0
        self.draws.uniforms = [*uniforms[:allowed], *uniforms[gamma:]]
        return allowed


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=3),
        SamplingParams(temperature=0.6, seed=4),
        SamplingParams(temperature=1.4, top_k=30, seed=5),
        SamplingParams(temperature=0.9, top_p=0.8, min_p=0.02, seed=6),
    ],
    ids=["T=1", "T=0.6", "top_k", "top_p,min_p"],
)
@pytest.mark.parametrize("prompt", [PROMPT, [7]], ids=["prompt", "one token"])
def test_sampling_on_the_device_equals_the_ordinary_loop_with_its_uniforms(
    params: SamplingParams, prompt: list[int]
) -> None:
    target = tiny_llama(sharpness=2.0)
    draft = noisy_copy(target, scale=0.1)
    gamma, length = 3, 30
    settings = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    params = SamplingParams(**settings, seed=params.seed, max_tokens=length)
    output = generate_device(target, draft, prompt, gamma, params)

    assert params.seed is not None
    policy = UniformsOfARound(gamma, params.seed)
    model, drafter = CachedModel(target, width=260), ModelDrafter(draft, width=260)
    tokens = list(prompt)
    law = TokenLaw(params, prompt, width=260, eos_token_ids=(), device=model.device)
    end = len(tokens) + length
    model.start(tokens, end)
    drafter.reset(end)
    while len(tokens) < end:
        emitted, _ = decode_round(
            tokens, model, drafter, policy, law, policy.draws,
            gamma_limit=end - len(tokens) - 1,
        )  # fmt: skip
        tokens += emitted
    assert output.token_ids == tokens[len(prompt) :]
    assert len(output.accepted_lengths) >= 2


class CaptureRules(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what a CUDA graph cannot hold: a read by the host, a shape that depends on values, a copy
    of a number from the host (`torch.where` with a Python scalar makes one on a card)."""

    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        self.seen += 1
        assert name not in ("aten::_local_scalar_dense", "aten::nonzero"), name
        assert name != "aten::lift_fresh" or args[0].dim() == 0, "a tensor made of Python numbers"
        if name == "aten::where.self":
            assert all(value.dim() > 0 for value in args), "where with a scalar"
        for index in (
            args[1] if name.startswith("aten::index") and isinstance(args[1], list) else ()
        ):
            assert index is None or index.dtype != torch.bool, "an index that is a mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_k": 30, "top_p": 0.9}])
def test_what_is_captured_can_be_captured(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = CaptureRules()  # type: ignore[no-untyped-call]

    class Watched(GraphRunner):
        def __call__(self) -> None:
            with rules:
                super().__call__()

    monkeypatch.setattr("foredraft.spec.device_loop.GraphRunner", Watched)
    monkeypatch.setattr("foredraft.spec.searches._on_host", lambda rows: False)  # as on a card
    target = tiny_llama()
    params = SamplingParams(**settings, max_tokens=12, seed=1)
    output = generate_device(target, noisy_copy(target), PROMPT, 3, params)
    assert len(output.token_ids) == 12
    assert rules.seen > 1000
    with pytest.raises(AssertionError, match="where with a scalar"), rules:
        torch.where(torch.ones(2) > 0, torch.ones(2), 0.0)


def test_one_read_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []

    class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.name() == "aten::_local_scalar_dense":
                reads.append(func)
            return func(*args, **(kwargs or {}))

    whole = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> Any:
        reads.append(tensor)
        return whole(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    model = tiny_llama()
    decoder = DeviceDecoder(model, model, gamma=3, capacity=64)
    with Counted():  # type: ignore[no-untyped-call]
        output = decoder.generate(PROMPT, greedy(max_tokens=20))
    assert len(reads) == output.rounds


def test_seeds_reproduce_and_requests_do_not_touch_each_other() -> None:
    target = tiny_llama(sharpness=2.0)
    decoder = DeviceDecoder(target, noisy_copy(target), gamma=3, capacity=100)

    def run(seed: int) -> DeviceOutput:
        return decoder.generate(PROMPT, SamplingParams(max_tokens=40, seed=seed))

    first, other = run(1), run(2)
    decoder.generate(list(range(60)), greedy(max_tokens=20))  # leaves its keys in the caches
    assert run(1).token_ids == first.token_ids
    assert first.token_ids != other.token_ids


def test_a_cut_draft_head_and_a_draft_temperature_keep_greedy_output() -> None:
    target = tiny_llama()
    kept = torch.arange(0, 260, 2)
    draft = noisy_copy(target)
    head = torch.nn.Linear(32, len(kept), bias=False)
    with torch.no_grad():
        head.weight.copy_(draft.get_output_embeddings().weight[kept])
    draft.set_output_embeddings(head)
    decoder = DeviceDecoder(target, draft, gamma=3, capacity=100, kept=kept, draft_temperature=0.5)
    output = decoder.generate(PROMPT, greedy(max_tokens=60))
    assert output.token_ids == ordinary(target, None, PROMPT, 0, greedy(max_tokens=60))
    drafted = decoder.generate(PROMPT, SamplingParams(max_tokens=60, seed=1))
    assert sum(drafted.accepted_lengths.elements()) > 0


def test_what_cannot_be_static_is_refused_by_name() -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match=r"gamma must be 1 to 16 with a draft.*got 17"):
        DeviceDecoder(model, model, gamma=17, capacity=64)
    with pytest.raises(ValueError, match="gamma"):
        DeviceDecoder(model, None, gamma=2, capacity=64)
    decoder = DeviceDecoder(model, model, gamma=2, capacity=64)
    with pytest.raises(ValueError, match=r"prompt must have 1 to 4 tokens with max_tokens = 60"):
        decoder.generate(PROMPT, greedy(max_tokens=60))
    with pytest.raises(ValueError, match="repetition_penalty"):
        decoder.generate(PROMPT, greedy(max_tokens=8, repetition_penalty=1.2))
    with pytest.raises(ValueError, match="draft must be on the target's device, cpu, got meta"):
        DeviceDecoder(model, tiny_llama().to("meta"), gamma=2, capacity=64)
    eager = tiny_llama(attn_implementation="eager")
    with pytest.raises(ValueError, match="attn_implementation must be 'sdpa'"):
        StaticModel(eager, capacity=64)


def test_caches_stay_as_large_as_they_were() -> None:
    model = tiny_llama()
    decoder = DeviceDecoder(model, model, gamma=2, capacity=128)
    decoder.generate(PROMPT, greedy(max_tokens=20))
    before = decoder.target.cache_bytes()
    decoder.generate(PROMPT, greedy(max_tokens=100))
    # 2 layers × keys and values × 2 heads × slots × 8 × 4 bytes
    assert decoder.target.cache_bytes() == before == 2 * 2 * 2 * decoder.target.capacity * 8 * 4


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, where it imports a compiler
def test_a_traced_forward_equals_the_ordinary_one() -> None:
    # What torch.compile must be able to do: one graph, no break. gpu_check.py lets it generate code.
    model = tiny_llama(layers=1)
    decoder = DeviceDecoder(model, model, gamma=1, capacity=64)
    expected = decoder.generate(PROMPT, greedy(max_tokens=16)).token_ids
    decoder.target.compile(backend="aot_eager", fullgraph=True)
    assert decoder.generate(PROMPT, greedy(max_tokens=16)).token_ids == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_graphs_on_the_card_equal_the_ordinary_loop(gamma: int) -> None:
    target = tiny_llama().cuda()
    draft = noisy_copy(target.cpu()).cuda() if gamma else None
    target = target.cuda()
    decoder = DeviceDecoder(target, draft, gamma=gamma, capacity=320)
    for _ in range(3):  # an ordinary run, a capture, replays
        output = decoder.generate(PROMPT, greedy(max_tokens=60))
        assert output.token_ids == ordinary(target, draft, PROMPT, gamma, greedy(max_tokens=60))
