"""The fused verifier: Triton equals the torch reference, which equals spec/verify.py and has its law."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2

from foredraft.spec import SamplingParams, token_probs, verify
from foredraft.spec.kernels import draw_tokens, verify_block, verify_block_reference
from verify_cases import Case, QueuedDraws, random_case, special_cases

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [  # rows, γ, V: not multiples of a tile of 64, but one
    *(
        (rows, gamma, size, torch.float32)
        for rows, gamma, size in ((1, 0, 7), (5, 8, 50), (1, 4, 257))
    ),
    *((2, 2, 130, dtype) for dtype in FLOATS),
    (4, 1, 64, torch.float32),
]
SPECIAL = dict(special_cases())


def one_by_one(case: Case) -> tuple[list[int], list[int]]:
    """What spec/verify.py says of each row, with the same uniforms."""
    lengths, tokens = [], []
    heat = case.temperature if case.draft_temperature is None else case.draft_temperature
    for row, count in enumerate(case.drafted_count.tolist()):
        drafted = case.drafted[row, :count].tolist()
        params = SamplingParams(temperature=float(case.temperature[row]))
        p = token_probs(case.target_logits[row, : count + 1], params)
        certain = torch.nn.functional.one_hot(torch.tensor(drafted, dtype=torch.int64), p.shape[-1])
        if case.draft_logits is None or heat[row] == 0:
            q = certain.to(p)
        else:
            q = token_probs(
                case.draft_logits[row, :count], SamplingParams(temperature=float(heat[row]))
            )
        length, token = verify(p, q, drafted, QueuedDraws(case.uniforms[row].tolist()))
        lengths.append(length)
        tokens.append(token)
    return lengths, tokens


def assert_same(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    assert found[0].tolist() == expected[0].tolist(), "accepted lengths"
    assert found[1].tolist() == expected[1].tolist(), "last tokens"


def interpreted(case: Case, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The Triton kernels on CPU tensors (conftest.py asks for the interpreter)."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the kernels run on the card: see the gpu tests")
    from foredraft.spec.kernels.verify_triton import verify_block_triton

    return verify_block_triton(*case.arguments(), tile=tile)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SPECIAL)
def test_reference_equals_the_verifier_of_one_sequence(name: str) -> None:
    lengths, tokens = verify_block_reference(*SPECIAL[name].arguments())  # type: ignore[arg-type]
    assert (lengths.tolist(), tokens.tolist()) == one_by_one(SPECIAL[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_reference_equals_the_verifier_on_random_laws(dtype: torch.dtype) -> None:
    lengths = set()
    for seed in range(60):
        case = random_case(1 + seed % 5, seed % 9, 11 + seed, seed=seed, dtype=dtype)
        found = verify_block_reference(*case.arguments())  # type: ignore[arg-type]
        assert (found[0].tolist(), found[1].tolist()) == one_by_one(case)
        lengths |= set(found[0].tolist())
    assert lengths >= {0, 1, 2, 3, 4}  # acceptance and rejection were both tested


@pytest.mark.parametrize("name", SPECIAL)
def test_triton_equals_the_reference_at_the_edges(name: str) -> None:
    case = SPECIAL[name]
    assert_same(interpreted(case, tile=64), verify_block_reference(*case.arguments()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "gamma", "vocabulary", "dtype"), SHAPES)
def test_triton_equals_the_reference_on_random_laws(
    rows: int, gamma: int, vocabulary: int, dtype: torch.dtype
) -> None:
    case = random_case(rows, gamma, vocabulary, seed=rows + gamma, dtype=dtype)
    expected = verify_block_reference(*case.arguments())  # type: ignore[arg-type]
    assert_same(interpreted(case, tile=64), expected)


def test_triton_takes_a_large_vocabulary_and_strided_logits() -> None:
    case = random_case(1, 2, 262_144, seed=3, greedy_rows=False)
    wide = torch.nn.functional.pad(case.target_logits, (0, 64), value=1e4)
    cut = replace(case, target_logits=wide[..., :262_144])  # rows that do not follow each other
    assert cut.target_logits.stride(1) == 262_208
    expected = verify_block_reference(*case.arguments())  # type: ignore[arg-type]
    assert_same(interpreted(cut, tile=32_768), expected)


def test_a_wrong_kernel_would_be_seen() -> None:
    # The comparison above must be able to fail: shifted uniforms and another q give other tokens.
    case = random_case(5, 8, 130, seed=13)
    expected = verify_block_reference(*case.arguments())  # type: ignore[arg-type]
    for other in (
        replace(case, uniforms=case.uniforms.roll(1, 1)),
        replace(case, draft_temperature=case.temperature * 2),
    ):
        found = verify_block_reference(*other.arguments())  # type: ignore[arg-type]
        assert any(a.tolist() != b.tolist() for a, b in zip(found, expected, strict=True))


def test_greedy_rows_ignore_the_uniforms() -> None:
    case = random_case(6, 4, 50, seed=5)
    case = replace(case, temperature=torch.zeros(6))
    expected = verify_block_reference(*case.arguments())  # type: ignore[arg-type]
    for value in (0.0, 0.5, 1.0 - 2**-53):
        other = replace(case, uniforms=torch.full_like(case.uniforms, value))
        assert_same(verify_block(*other.arguments()), expected)  # type: ignore[arg-type]


def test_rows_do_not_depend_on_their_neighbours() -> None:
    case = random_case(5, 6, 40, seed=8)
    lengths, tokens = verify_block(*case.arguments())  # type: ignore[arg-type]
    for row in range(5):
        alone = [None if x is None else x[row : row + 1] for x in case.arguments()]
        assert_same(verify_block(*alone), (lengths[row : row + 1], tokens[row : row + 1]))  # type: ignore[arg-type]


def test_draw_tokens_inverts_the_law() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, 1.0], [3.0, 3.0, 0.0, -torch.inf]])
    heat = torch.tensor([1.0, 0.0])
    edge = float(logits[0].softmax(-1)[0])
    for u, token in ((0.0, 0), (edge - 1e-6, 0), (edge + 1e-6, 2), (1.0 - 2**-53, 3)):
        uniforms = torch.full((2,), u, dtype=torch.float64)
        assert draw_tokens(logits, heat, uniforms).tolist() == [token, 0]


def test_a_million_draws_follow_the_targets_law() -> None:
    # Pairs of tokens from blocks of two, completed by one more draw where the block was cut short.
    # Chi-square over 64 cells (none expected less than 5 times), fixed seed; a right verifier fails
    # once in 100,000 runs. The draft is drawn at another temperature than the target.
    vocabulary, gamma, chunk, chunks, temperature = 8, 1, 100_000, 10, 0.7
    generator = torch.Generator().manual_seed(7)
    first = torch.randn(vocabulary, generator=generator)
    second = torch.randn(vocabulary, vocabulary, generator=generator)  # [x1, V]
    draft = first + torch.randn(vocabulary, generator=generator)
    heat, draft_heat = torch.full((chunk,), temperature), torch.full((chunk,), 1.3)
    counts = torch.zeros(vocabulary * vocabulary)
    kept = 0
    for _ in range(chunks):
        u = torch.rand(chunk, 2 * gamma + 2, generator=generator, dtype=torch.float64)
        drafted = draw_tokens(draft.expand(chunk, -1), draft_heat, u[:, 0])  # [chunk]
        target = torch.stack([first.expand(chunk, -1), second[drafted]], 1)  # [chunk, 2, V]
        accepted, last = verify_block_reference(
            target, draft.expand(chunk, 1, -1), drafted[:, None],
            torch.full((chunk,), gamma), heat, u[:, 1:3], draft_heat,
        )  # fmt: skip
        completed = draw_tokens(second[last], heat, u[:, 3])
        one = torch.where(accepted == 1, drafted, last)
        two = torch.where(accepted == 1, last, completed)
        counts += torch.bincount(one * vocabulary + two, minlength=vocabulary * vocabulary)
        kept += int(accepted.sum())
    p = (first / temperature).softmax(-1).double()[:, None]
    pairs = p * (second / temperature).softmax(-1).double()
    expected = chunk * chunks * pairs.flatten()
    assert expected.min() >= 5
    alpha = torch.minimum(p[:, 0], (draft / 1.3).softmax(-1).double()).sum()
    assert kept / (chunk * chunks) == pytest.approx(float(alpha), abs=4 * 0.5 / 1000)
    assert float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(1e-5, len(expected) - 1)


def test_without_triton_the_reference_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "triton", None)
        without.delitem(sys.modules, "foredraft.spec.kernels.verify_triton", raising=False)
        kernels = importlib.reload(importlib.import_module("foredraft.spec.kernels"))
        assert not kernels.HAS_TRITON
        u = torch.zeros(1, dtype=torch.float64)
        assert kernels.draw_tokens(torch.tensor([[0.0, 1.0]]), torch.zeros(1), u).tolist() == [1]
        with pytest.raises(ImportError):
            importlib.import_module("foredraft.spec.kernels.verify_triton")
    importlib.reload(kernels)


COMPILE = """
import importlib.util, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
spec = importlib.util.spec_from_file_location("verify_triton", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
types = {"target": "*bf16", "draft": "*fp32", "uniforms": "*fp64", "indices": "*i32"}
types |= dict.fromkeys(("drafted_count", "drafted", "accepted", "tokens"), "*i64")
types |= dict.fromkeys(("temperature", "drawn", "peaks", "masses", "scales", "rests"), "*fp32")
types |= dict.fromkeys(("gamma", "vocabulary", "tiles"), "i32")
sizes = {"TILE": 1024, "ROWS": 8, "TILES": 32}
for name in ("_measure", "_accept", "_weigh", "_draw"):
    kernel = getattr(kernels, name)
    fixed = {a: sizes[a] for a in kernel.arg_names if a in sizes}
    kinds = {a: "constexpr" if a in fixed else types.get(a, "i64") for a in kernel.arg_names}
    done = compile(ASTSource(kernel, kinds, fixed), target=GPUTarget("cuda", 90, 32))
    print(name, len(done.asm["cubin"]) > 0)
"""


def test_the_kernels_compile_for_a_card_that_is_not_here() -> None:
    # The interpreter takes what the compiler does not; a Hopper card's code can be made anywhere.
    pytest.importorskip("triton")
    path = Path(__file__).parent.parent / "spec" / "kernels" / "verify_triton.py"
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(path)],
        capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "0"},
    )  # fmt: skip
    assert done.stdout.count("True") == 4, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
@pytest.mark.parametrize("name", SPECIAL)
def test_the_card_equals_the_reference(name: str) -> None:
    found = verify_block(*SPECIAL[name].arguments("cuda"))  # type: ignore[arg-type]
    assert_same(found, verify_block_reference(*SPECIAL[name].arguments()))  # type: ignore[arg-type]
