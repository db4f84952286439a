"""A hash chain: rows that each carry the digest of the row before, so that no past row changes unnoticed.

Pure functions over values; chain_file.py keeps them in a file. LEDGER.md writes down the bytes that are hashed.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patevolve.shared.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

PAGE_OF_LINKS = 512  # rows per read transaction when the chain is walked, so that no reader holds the log for long
GENESIS = "genesis"
_DIGEST = re.compile(r"[0-9a-f]{64}")
ZERO = "0" * 64  # what stands before the first link
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One row of the chain; ``body`` is canonical JSON, digests are 64 hexadecimal digits."""

    seq: int
    kind: str
    body: str
    previous: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How far the chain of ``site`` has come: the number and digest of its last row."""

    seq: int
    digest: str
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Proof that a chain grew from row ``since`` by these rows; it names kinds and body digests, not contents.

    rows: (kind, SHA-256 of the body) of rows since + 1, since + 2, ...
    """

    since: int
    rows: tuple[tuple[str, str], ...]


def canonical(value: Mapping[str, Any]) -> str:
    """Return the one JSON text of a mapping: ASCII, keys sorted, no spaces, no NaN. Raises LedgerError."""
    try:
        return _CANONICAL.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise LedgerError(f"entry cannot be written as canonical JSON ({error}); correct the entry") from error


def parse(body: str, *, where: str) -> dict[str, Any]:
    """Return the mapping that a canonical text stands for. Raises LedgerError when it is not canonical."""
    try:
        value: dict[str, Any] = json.loads(body)
        same = isinstance(value, dict) and canonical(value) == body
    except (ValueError, RecursionError, LedgerError) as error:
        raise LedgerError(
            f"{where}: body is not JSON; expected a canonical JSON object. Do not use this file"
        ) from error
    if not same:
        raise LedgerError(f"{where}: body is not a canonical JSON object. Do not use this file")
    return value


def sha256_of(data: bytes) -> str:
    """Return SHA-256 as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def link_digest(*, seq: int, kind: str, body_sha256: str, previous: str) -> str:
    """Return SHA-256 over version line, previous digest, seq, kind (length first) and the body's SHA-256.

    The input is an injective encoding of its arguments, so two different rows with one digest are a collision.
    The body enters by its digest, so that a site can prove growth (``Extension``) without showing its rows.
    Raises LedgerError for values that no chain holds.
    """
    try:
        kind_bytes = kind.encode()
        parts = (
            b"patevolve chain 1\n",
            _raw(previous),
            seq.to_bytes(8, "big"),
            len(kind_bytes).to_bytes(2, "big"),
            kind_bytes,
            _raw(body_sha256),
        )
    except (ValueError, OverflowError, AttributeError, TypeError) as error:
        raise LedgerError(f"row {seq!r} cannot belong to a chain ({error}); it was forged or damaged") from error
    return sha256_of(b"".join(parts))


def _raw(digest: str) -> bytes:
    if not _DIGEST.fullmatch(digest):  # fromhex also takes upper case and blanks: two texts of one row
        raise ValueError(f"{digest!r} is no digest of 64 lower-case hexadecimal digits")
    return bytes.fromhex(digest)


def next_link(tail: Link | None, kind: str, body: str) -> Link:
    """Return the link that follows ``tail`` (None: the first link, seq 0). Raises LedgerError."""
    seq, previous = (0, ZERO) if tail is None else (tail.seq + 1, tail.digest)
    digest = link_digest(seq=seq, kind=kind, body_sha256=sha256_of(_utf8(body)), previous=previous)
    return Link(seq=seq, kind=kind, body=body, previous=previous, digest=digest)


def _utf8(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise LedgerError("a row's body is not Unicode text; it was forged or damaged") from error


def extend(head: Head, extension: Extension) -> Head:
    """Return the head that a chain at ``head`` has after the rows of ``extension``. Raises LedgerError."""
    if extension.since != head.seq:
        raise LedgerError(f"the proof starts at row {extension.since}; expected row {head.seq} of {head.site!r}")
    digest, seq = head.digest, head.seq
    for kind, body_sha256 in extension.rows:
        seq += 1
        digest = link_digest(seq=seq, kind=kind, body_sha256=body_sha256, previous=digest)
    return Head(seq=seq, digest=digest, site=head.site)


def extension_of(links: Iterable[Link], since: int) -> Extension:
    """Return the proof that ``links`` (rows since + 1 and on) extend row ``since``."""
    return Extension(since=since, rows=tuple((link.kind, sha256_of(link.body.encode())) for link in links))


def check_row(row: tuple[Any, ...], tail: Link | None, *, path: Path) -> Link:
    """Return the row (seq, kind, body, digest) as the link that follows ``tail``. Raises LedgerError if it does not."""
    seq, kind, body, digest = row
    expected = 0 if tail is None else tail.seq + 1
    if type(seq) is not int or seq != expected:
        raise LedgerError(f"{path}: row {seq!r} found where row {expected} belongs: rows are missing or out of place")
    if not (isinstance(kind, str) and isinstance(body, str) and isinstance(digest, str)):
        raise LedgerError(f"{path}: row {seq} does not hold texts; the row was edited or the file is damaged")
    link = next_link(tail, kind, body)
    if link.digest != digest:
        raise LedgerError(f"{path}: row {seq} does not match its digest: this row or the one before it was edited")
    return link


def walk(
    rows: Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]], path: Path, tail: Link | None = None
) -> Iterator[Link]:
    """Yield the checked links after ``tail`` (None: all), read by ``rows(statement, values)``. Raises LedgerError."""
    while True:
        after = -1 if tail is None else tail.seq
        page = rows(
            "SELECT seq, kind, body, digest FROM chain WHERE seq > ? ORDER BY seq LIMIT ?", (after, PAGE_OF_LINKS)
        )
        for row in page:
            tail = check_row(row, tail, path=path)
            yield tail
        if len(page) < PAGE_OF_LINKS:
            break
    if tail is None:
        raise LedgerError(f"{path}: the chain has no rows; expected a genesis row. Restore the newest copy")
