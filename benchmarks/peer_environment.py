"""Another program's own environment: a virtual environment under a given folder, never this project's own."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

MARK = "installed.txt"


def python_of(folder: Path, *installs: Sequence[str]) -> Path:
    """Return the interpreter of the environment in ``folder``; make it first unless it holds just these packages.

    installs: the arguments of one ``pip install`` each, in order
    """
    wanted = "\n".join(" ".join(arguments) for arguments in installs)
    python, mark = folder / "bin" / "python", folder / MARK
    if mark.exists() and mark.read_text() == wanted:
        return python
    venv.create(folder, with_pip=True)
    for arguments in installs:
        command = [python, "-m", "pip", "install", "--quiet", *arguments]
        subprocess.run(command, check=True)  # noqa: S603 - the caller's own list of packages
    mark.write_text(wanted)
    return python
