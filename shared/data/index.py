"""A site's records embedded once, on its own disk: built in bounded memory, resumed after a crash, sealed by a key.

An index is a folder of chunks, each written whole or not at all, and a last file that says it is complete. A chunk is
an NPZ of plain arrays (never pickled). With a key it is sealed by ChaCha20-Poly1305 (RFC 8439) under a random nonce,
bound to the index's header and to its own number, so that chunks cannot be exchanged, reordered or carried into
another index. What a thief of the disk still sees is the number and size of the chunks.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.names import shown
from patevolve.shared.errors import DataError
from patevolve.shared.files import drafts, write_atomic

FORMAT = 1
KEY_BYTES, NONCE_BYTES = 32, 12
HEADER, END = "index.json", "complete"
NAMES = ("features", "classes", "units", "sites", "contents")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Piece:
    """Some records, embedded.

    features:  (n, d) public features;  classes: (n,) int64;  units, sites: (n,) unicode, "" where nothing is known
    contents:  (n,) S64, the SHA-256 of each record's values and class, which the contribution bound is keyed by
    """

    features: NDArray[np.float64]
    classes: NDArray[np.int64]
    units: NDArray[np.str_]
    sites: NDArray[np.str_]
    contents: NDArray[np.bytes_]

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: private features stay in the site's process."""
        raise TypeError("private features cannot be serialised")

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index on the disk: where it is, what it is of, and the key that opens it (None: not sealed)."""

    folder: Path
    header: str
    key: bytes | None

    def __repr__(self) -> str:
        """Name the folder only: the key stays out of logs."""
        return f"Index({str(self.folder)!r})"


def open_index(folder: Path, about: dict[str, Any], key: bytes | None = None) -> Index:
    """Return the index in a folder, new or to be resumed; only its owner may read it.

    about: what the records and features are of (the plan, the source's state, the encoder): JSON values

    Raises DataError if the folder holds another index, or is not writable.
    """
    if key is not None and len(key) != KEY_BYTES:
        raise DataError(f"a key of {len(key)} bytes found; expected {KEY_BYTES}. Correct the site's key file.")
    header = json.dumps({"format": FORMAT, "sealed": key is not None, **about}, sort_keys=True)
    path = folder / HEADER
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            if any(folder.iterdir()):
                raise DataError(f"{shown(folder.name)} is not empty and holds no index. Name another folder.")
            write_atomic(path, header.encode(), mode=0o600)
        found = path.read_text("utf-8")
        for draft in drafts(folder):
            draft.unlink(missing_ok=True)
    except OSError as reason:
        raise DataError(
            f"the index in {shown(folder.name)} cannot be opened ({reason.strerror}). Check it."
        ) from reason
    if found != header:
        raise DataError(
            f"{shown(folder.name)} holds an index of other data, another plan or key setting; the source may have "
            f"changed. Remove the folder to embed the data again."
        )
    return Index(folder=folder, header=hashlib.sha256(header.encode()).hexdigest(), key=key)


def build(index: Index, works: Iterable[Callable[[], Piece]]) -> int:
    """Write every piece of work that is not there yet and return how many were written; the rest is not read again.

    works: in a fixed order; each is called at most once, and its piece leaves memory before the next
    Raises DataError if the disk is full, a chunk there is damaged, or a work raises it; what was written stays.
    """
    if is_complete(index):
        return 0
    written, count = 0, 0
    for number, work in enumerate(works):
        path, count = _chunk(index, number), number + 1
        if path.exists():
            _read(index, number)  # a damaged chunk is found before hours are spent on the others
            continue
        _write(path, _seal(index, number, _packed(work())))
        written += 1
    _write(index.folder / END, _seal(index, -1, str(count).encode()))
    return written


def is_complete(index: Index) -> bool:
    """Return whether the index holds everything. Raises DataError if its last file is damaged or of another key."""
    path = index.folder / END
    return path.exists() and _count(index) >= 0


def pieces_of(index: Index) -> Iterator[Piece]:
    """Yield the pieces of a complete index, one in memory at once. Raises DataError if it is not whole."""
    if not is_complete(index):
        raise DataError(f"the index in {shown(index.folder.name)} is not complete; resume it first.")
    for number in range(_count(index)):
        yield _read(index, number)


def _count(index: Index) -> int:
    text = _unseal(index, -1, _bytes(index.folder / END))
    if not text.isdigit():
        raise DataError(f"the index in {shown(index.folder.name)} is damaged at its end. Remove the folder.")
    return int(text)


def _chunk(index: Index, number: int) -> Path:
    return index.folder / f"{number:08d}.{'sealed' if index.key else 'npz'}"


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data, mode=0o600)
    except OSError as reason:
        raise DataError(
            f"the index in {shown(path.parent.name)} cannot be written ({reason.strerror}). Free some space and run "
            f"the same command again: it goes on from here."
        ) from reason


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as reason:
        raise DataError(f"{shown(path.name)} of the index cannot be read ({reason.strerror}).") from reason


def _packed(piece: Piece) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{name: getattr(piece, name) for name in NAMES})
    return buffer.getvalue()


def _read(index: Index, number: int) -> Piece:
    data = _unseal(index, number, _bytes(_chunk(index, number)))
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in NAMES}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as reason:
        raise _damaged(index, number) from reason
    return Piece(**arrays)


def _bound(index: Index, number: int) -> bytes:
    """Return what a chunk is bound to."""
    return f"{index.header}/{number}".encode()


def _seal(index: Index, number: int, data: bytes) -> bytes:
    if index.key is None:
        return hashlib.sha256(_bound(index, number) + data).digest() + data
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415 - only sealed indexes

    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(index.key).encrypt(nonce, data, _bound(index, number))


def _unseal(index: Index, number: int, data: bytes) -> bytes:
    if index.key is None:
        digest, rest = data[:32], data[32:]
        if hashlib.sha256(_bound(index, number) + rest).digest() != digest:
            raise _damaged(index, number)
        return rest
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - only sealed indexes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415 - as above

    try:
        return ChaCha20Poly1305(index.key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _bound(index, number))
    except (InvalidTag, ValueError) as reason:
        raise _damaged(index, number) from reason


def _damaged(index: Index, number: int) -> DataError:
    what = "its end" if number < 0 else f"chunk {number}"
    return DataError(
        f"the index in {shown(index.folder.name)} is damaged at {what}, or the key is another one. Give the right key, "
        f"or remove that file to have it written again."
    )
