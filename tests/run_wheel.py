"""Installs the wheel into an empty environment and runs it from another folder (`make wheel`).

The dependencies are lent to it from the environment that runs this; they are gigabytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PROGRAM = """
import foredraft.cli, foredraft.controller, foredraft.data, foredraft.spec, foredraft.train
from importlib.metadata import entry_points
assert "elsewhere" in foredraft.spec.__file__, foredraft.spec.__file__
assert len(foredraft.data.load_prompts()) == 722
assert [e.name for e in entry_points(group="foredraft.lookahead")] == ["adaptive"]
"""


def main() -> None:
    """Run it: run_wheel.py ENVIRONMENT WHEEL."""
    environment, wheel = (Path(argument).resolve() for argument in sys.argv[1:])
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(wheel)]
    subprocess.run(pip, check=True)
    # After its own site-packages, so that an editable install of ours cannot stand in for the wheel.
    lent = next((environment / "lib").glob("python*/site-packages")) / "lent.pth"
    lent.write_text(sysconfig.get_path("purelib") + "\n")
    with tempfile.TemporaryDirectory() as folder:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for command in (
            [python, "-c", PROGRAM],
            [str(environment / "bin" / "foredraft"), "--help"],
        ):
            subprocess.run(command, check=True, cwd=folder, env=clean, stdout=subprocess.DEVNULL)
    print(f"{wheel.name}: installed and run from elsewhere")


if __name__ == "__main__":
    main()
