"""Files that are whole or absent: written aside, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

DRAFT = ".part"  # ends the name of a file that is being written


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: a reader, or a run resumed after a crash, sees the old file or the new one."""
    with _draft(path, data, mode) as draft:
        draft.replace(path)


def write_new(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to a path that must not exist yet, whole or not at all. Raises FileExistsError."""
    with _draft(path, data, mode) as draft:
        os.link(draft, path)  # unlike a rename, it never replaces a file that another process wrote meanwhile


@contextlib.contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Give a flushed file beside ``path`` to be moved there; remove what the block leaves of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=DRAFT)
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(mode)
        yield draft
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    sync(path.parent)


def drafts(folder: Path) -> list[Path]:
    """Return the half-written files in a folder: beside a living writer's, those of processes that were killed."""
    return sorted(folder.glob(f".*{DRAFT}"))


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to the disk (file systems sync names apart from contents)."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no handle on a folder to sync
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
