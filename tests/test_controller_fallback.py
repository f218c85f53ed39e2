"""A saved lookahead that cannot be used is refused by a warning, and decoding goes on with the bandit."""

from __future__ import annotations

import importlib.metadata
import json
import pickle
import re
import tomllib
import warnings
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from controller_sim import CHEAP, GREEDY, predictor, table
from foredraft.controller import AdaptiveLookahead, GammaBandit, load_or_bandit
from foredraft.spec import ModelDrafter, SamplingParams, SpeculativeDecoder, load_lookahead
from toys import noisy_copy, tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def entry_points_of_this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed may be of another commit."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    group = "foredraft.lookahead"
    points = EntryPoints(
        EntryPoint(name, value, group) for name, value in project["entry-points"][group].items()
    )
    installed = importlib.metadata.entry_points

    def entry_points(**params: Any) -> Any:
        return points if params == {"group": group} else installed(**params)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def change(file: str, **fields: Any) -> Any:
    def damage(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return damage


def put(file: str, content: bytes) -> Any:
    return lambda folder: (folder / file).write_bytes(content)


DAMAGE = {
    "another schema": (change("predictor.json", schema=99), "schema is 99"),
    "another draft": (change("predictor.json", draft="x"), "draft is 'x'"),
    "other features": (change("predictor.json", features=["a"]), "features are"),
    "other numbers": (change("predictor.json", hazards=[3.0]), "hazards must be"),
    "corrupt": (put("predictor.json", b'{"schema": 1, "feat'), "not a usable acceptance predictor"),
    "a pickle": (put("predictor.json", pickle.dumps({"schema": 1})), "not a usable acceptance"),
    "no predictor": (lambda folder: (folder / "predictor.json").unlink(), "No such file"),
    "another machine": (change("latency.json", device="cuda"), "latency table"),
    "a corrupt table": (put("latency.json", b"\xff"), "not a usable latency table"),
    "settings": (change("lookahead.json", gamma_max=0), "gamma_max must be"),
}


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    target = tiny_llama(seed=1)
    return SpeculativeDecoder(target, None, ModelDrafter(noisy_copy(target, scale=0.04), width=260))


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_b51_a_file_that_does_not_fit_is_refused_and_the_bandit_decodes(
    tmp_path: Path, decoder: SpeculativeDecoder, damage: Any, words: str
) -> None:
    """B51, and the issue: refused with a clear error, no pickle is run, decoding goes on."""
    AdaptiveLookahead(predictor(), table(CHEAP)).save(tmp_path)
    damage(tmp_path)
    with pytest.warns(UserWarning, match="goes on with a bandit") as caught:
        policy = load_or_bandit(tmp_path, draft="")  # the fingerprint that the simulation saves
    assert words in str(caught[-1].message)
    assert str(tmp_path) in str(caught[-1].message)
    assert isinstance(policy, GammaBandit)
    with pytest.raises(ValueError, match=re.escape(words)):
        AdaptiveLookahead.load(tmp_path, draft="")
    plain = decoder.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=12))[0]
    ours = decoder.with_lookahead(policy).generate(
        [[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=12)
    )[0]
    assert ours.token_ids == plain.token_ids
    assert ours.stats.drafted > 0


def test_a_decoder_asks_for_the_fallback(tmp_path: Path) -> None:
    AdaptiveLookahead(predictor(), table(CHEAP)).save(tmp_path)
    DAMAGE["another schema"][0](tmp_path)
    with pytest.warns(UserWarning, match="goes on with a bandit"):
        assert isinstance(load_lookahead(tmp_path), GammaBandit)


def test_a_folder_that_fits_is_used_without_a_word(tmp_path: Path) -> None:
    AdaptiveLookahead(predictor(), table(CHEAP)).save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = load_lookahead(tmp_path)
    assert isinstance(policy, AdaptiveLookahead)
    policy.begin_request(GREEDY)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b"\x80\x04"])
def test_a_description_that_says_nothing_is_named(tmp_path: Path, content: bytes) -> None:
    """What is meant cannot be told, so nothing is put in its place."""
    (tmp_path / "lookahead.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"lookahead\.json: not the description of a lookahead"):
        load_lookahead(tmp_path)
