"""Public files that a plan names by SHA-256: model weights and pools of public images, never fetched by a program.

A person puts a file into one of the folders (``patevolve assets add FILE``); the plan names it by the hash of its
bytes, so that every site computes with the same file wherever it came from. Nothing private is ever an asset.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.files import write_atomic

FOLDERS = "PATEVOLVE_ASSETS"  # environment: folders to search first, separated as in PATH
SHIPPED = Path(__file__).parent / "shipped"
BLOCK = 1 << 20


def folders() -> list[Path]:
    """Return where assets are searched, first to last: the environment's, the user's, those that came along."""
    named = [Path(name) for name in os.environ.get(FOLDERS, "").split(os.pathsep) if name]
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return [*named, home / "patevolve" / "assets", SHIPPED]


def find(sha256: str) -> Path:
    """Return the file whose bytes have this hash. Raises PlanError if no folder holds it, or it was changed."""
    for folder in folders():
        for path in sorted(folder.glob(f"{sha256}*")):
            state = path.stat()
            if _hash_of(path, state.st_size, state.st_mtime_ns) != sha256:
                raise PlanError(f"{path} has other bytes than its name says. Delete it and add the right file again.")
            return path
    raise PlanError(
        f"no public file with SHA-256 {sha256} found in {', '.join(map(str, folders()))}; the plan needs it. Get it "
        f"from whoever wrote the plan, then: patevolve assets add FILE."
    )


def add(path: Path) -> Path:
    """Copy a file into the first folder, under its hash, and return where it lies. Raises InputError."""
    try:
        data = path.read_bytes()
    except OSError as reason:
        raise InputError(f"{path} cannot be read ({reason.strerror}); expected a public file. Check it.") from reason
    target = folders()[0] / f"{hashlib.sha256(data).hexdigest()}{path.suffix}"
    if not target.exists():
        write_atomic(target, data)
    return target


def listed() -> list[Path]:
    """Return every asset in every folder, those found first in front."""
    return [path for folder in folders() for path in sorted(folder.glob("*")) if len(path.stem) == 64]


@functools.lru_cache(maxsize=64)
def _hash_of(path: Path, size: int, changed: int) -> str:
    """Return a file's hash, computed again when its size or time changes."""
    del size, changed
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
