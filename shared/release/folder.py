"""Folders that are whole or absent, and the manifest that tells whether one is still as it was written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from patevolve.shared.errors import ReleaseError
from patevolve.shared.files import sync

FORMAT = 1
MANIFEST = "manifest.json"
SOURCE = "release-manifest.json"  # in an export: the manifest of the release that it was made from
PROOF = "proof.json"  # signs the manifest's digest, so the manifest cannot hold its own
FLUSHES = 16  # files brought to the disk at a time


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside ``folder`` to write into, and rename it into place when the block succeeds.

    A folder already there with the same manifest is kept. Raises ReleaseError if the disk fails or another release
    is there; whatever is raised, nothing half-written stays. One writer at a time: a run holds its folder.
    """
    folder = folder.absolute()
    aside = folder.with_name(f".{folder.name[:200]}.partial")
    try:
        if aside.exists():  # left by a process that was killed
            shutil.rmtree(aside)
        aside.mkdir(parents=True)
        yield aside
        _flush(aside)
        if folder.exists() and not _same_release(folder, aside):
            folder.rmdir()  # only an empty one; OSError otherwise
        if not folder.exists():
            aside.rename(folder)
            sync(folder.parent)
    except OSError as reason:
        raise ReleaseError(
            f"{folder.name} cannot be written ({reason.strerror or reason}); nothing of it was left behind. "
            f"Free the disk, or move away what is there, and resume."
        ) from reason
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _same_release(folder: Path, aside: Path) -> bool:
    if not (folder / MANIFEST).is_file() or (folder / MANIFEST).read_bytes() != (aside / MANIFEST).read_bytes():
        return False
    verify_manifest(folder)
    return True


def _flush(folder: Path) -> None:
    """Bring every file to the disk before the rename makes it visible; in threads, so that waits overlap."""
    with ThreadPoolExecutor(FLUSHES) as pool:
        list(pool.map(sync, [folder, *folder.rglob("*")]))


def write_files(folder: Path, *groups: Iterable[tuple[str, bytes]], seal: Callable[[str], bytes] | None = None) -> None:
    """Write each (relative path, bytes) into ``folder``, then the manifest, then the proof.

    seal: the manifest's SHA-256 to the bytes of the proof; None: there is none
    """
    digests = {}
    for group in groups:
        for name, data in group:
            digests[name] = hashlib.sha256(data).hexdigest()
            _write(folder / name, data)
    manifest = _manifest(digests)
    _write(folder / MANIFEST, manifest)
    if seal is not None:
        _write(folder / PROOF, seal(hashlib.sha256(manifest).hexdigest()))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)


def _manifest(digests: Mapping[str, str]) -> bytes:
    return (json.dumps({"format": FORMAT, "files": digests}, indent=1, sort_keys=True) + "\n").encode()


def verify_manifest(folder: Path) -> tuple[str, ...]:
    """Return the relative paths of the files of a release folder that is just as it was written.

    Raises ReleaseError naming what changed, is missing or is extra, the manifest's own bytes included. It finds
    damage and edits of files; someone who rewrites the manifest too is found by the signature over it (proof.py).
    """
    expected = read_manifest(folder)
    try:
        # rglob does not follow links to folders; a link is never part of a release and so shows as changed or extra
        found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not _plain_folder(path)}
        found.pop(MANIFEST)
        found = {name: path for name, path in found.items() if name != PROOF or path.is_symlink()}
        changed = [name for name in sorted(expected.keys() & found.keys()) if _digest(found[name]) != expected[name]]
    except OSError as reason:
        raise ReleaseError(f"{folder.name} cannot be read ({reason.strerror}); check its permissions.") from reason
    lists = {
        "changed": changed,
        "missing": sorted(expected.keys() - found.keys()),
        "extra": sorted(found.keys() - expected.keys()),
    }
    problems = [f"{word}: {_some(names)}" for word, names in lists.items() if names]
    if problems:
        raise ReleaseError(f"{folder.name} is not as it was written; {'; '.join(problems)}. Fetch the release again.")
    return tuple(sorted(expected))


def _plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return "not a plain file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path, name: str = MANIFEST) -> dict[str, str]:
    """Return the SHA-256 of each file that a manifest lists. Raises ReleaseError for another form."""
    path = folder / name
    try:
        raw = path.read_bytes()
        files = json.loads(raw)["files"]
        canonical = isinstance(files, dict) and _manifest(files) == raw and not path.is_symlink()
    except OSError as reason:
        raise ReleaseError(f"{path} cannot be read ({reason.strerror}); expected a release folder.") from reason
    except (ValueError, KeyError, TypeError, RecursionError):
        canonical = False
    if not canonical or not all(re.fullmatch("[0-9a-f]{64}", str(digest)) for digest in files.values()):
        raise ReleaseError(f"{name} is changed: it is not in the form that a release has. Fetch the release again.")
    return dict(files)
