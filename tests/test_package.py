"""The layout: who may import whom, what is shipped, and that it runs when installed."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "spec": set(),
    "data": {"spec"},
    "controller": {"spec", "data"},
    "train": {"spec", "data"},
    "cli": {"spec", "data", "controller", "train"},
}


def imported_packages(path: Path, package: Path) -> set[str]:
    """Return which of our packages a file in a package's folder imports, itself aside."""
    depth = len(path.relative_to(package).parts) + 1  # dots that lead out of the package
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level == depth:
                found |= {(node.module or "").split(".")[0]} - {""}
                found |= {name.name for name in node.names if not node.module}
            elif node.level == 0 and (node.module or "").startswith("foredraft."):
                found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {n.name.split(".")[1] for n in node.names if n.name.startswith("foredraft.")}
    return found - {package.name}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert imported_packages(path, ROOT / package) <= ALLOWED[package], path


def test_the_import_test_sees_an_import(tmp_path: Path) -> None:
    folder = tmp_path / "spec"
    folder.mkdir()
    path = folder / "x.py"
    path.write_text("from ..train import distill\nimport foredraft.data.corpus\n")
    assert imported_packages(path, folder) == {"train", "data"}
    (folder / "inner").mkdir()
    path = folder / "inner" / "y.py"
    path.write_text("from ...train import distill\nfrom ..x import z\n")
    assert imported_packages(path, folder) == {"train"}


def test_every_package_and_data_file_is_shipped() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert folders == set(ALLOWED)
    assert setup["package-dir"] == {f"foredraft.{name}": name for name in folders}
    inside = {path.parent for name in folders for path in (ROOT / name).rglob("__init__.py")}
    dotted = {".".join(("foredraft", *path.relative_to(ROOT).parts)) for path in inside}
    assert set(setup["packages"]) == dotted, "a package that is not named is missing from the wheel"


@pytest.mark.parametrize("module", ["foredraft.train", "foredraft.cli.main"])
def test_entry_points_run_from_anywhere(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
