"""A hash chain in one SQLite file: the append-only, durable base of the site's and the coordinator's ledgers.

The bytes that are hashed, the schema and what is promised about them are written down in LEDGER.md. Choices:

- Write-ahead log with ``synchronous=FULL``: one fsync per commit, before the call returns (a rollback journal
  needs three or four). ``NORMAL`` would return before the row is on the disk, which rule 4 forbids.
- No automatic checkpoints. Ours run with the writer lock held, so that none ever races a commit: SQLite before
  3.51.3 can lose committed pages when a checkpoint and a commit that restarts the log overlap.
- Each write transaction is ``BEGIN IMMEDIATE``: what was read to decide a charge can't change before it is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from patevolve.shared.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BUSY_TIMEOUT = 30.0  # seconds that a charge waits for other processes' charges
CHECKPOINT_BYTES = 4 * 2**20  # the log is folded into the database file when it has grown to this size
PAGE_OF_LINKS = 512  # rows per read transaction when the chain is walked, so that no reader holds the log for long
GENESIS = "genesis"
ZERO = "0" * 64  # what stands before the first link

_CHAIN_SCHEMA = (
    "CREATE TABLE chain (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, digest TEXT NOT NULL)",
    "CREATE TRIGGER chain_keeps_rows BEFORE DELETE ON chain BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER chain_keeps_values BEFORE UPDATE ON chain BEGIN SELECT RAISE(ABORT, 'append-only'); END",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What tells one kind of chain file from another: name, version, SQLite application id, further schema."""

    name: str
    version: int
    application_id: int
    schema: tuple[str, ...] = ()

    @property
    def statements(self) -> tuple[str, ...]:
        """Every statement that makes up the file's schema, in order."""
        return (*_CHAIN_SCHEMA, *self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One row of the chain; ``body`` is canonical JSON, digests are 64 hexadecimal digits."""

    seq: int
    kind: str
    body: str
    previous: str
    digest: str


def canonical(value: Mapping[str, Any]) -> str:
    """Return the one JSON text of a mapping: ASCII, keys sorted, no spaces, no NaN. Raises LedgerError."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise LedgerError(f"entry cannot be written as canonical JSON ({error}); correct the entry") from error


def parse(body: str, *, where: str) -> dict[str, Any]:
    """Return the mapping that a canonical text stands for. Raises LedgerError when it is not canonical."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise LedgerError(
            f"{where}: body is not JSON; expected a canonical JSON object. Do not use this file"
        ) from error
    if not isinstance(value, dict) or canonical(value) != body:
        raise LedgerError(f"{where}: body is not a canonical JSON object. Do not use this file")
    return value


def link_digest(*, seq: int, kind: str, body: str, previous: str) -> str:
    """Return SHA-256 over version line, previous digest, seq, kind and body; lengths precede what varies in length.

    The input is an injective encoding of its four arguments, so two different rows with one digest are a collision.
    """
    kind_bytes, body_bytes = kind.encode(), body.encode()
    parts = (
        b"patevolve chain 1\n",
        bytes.fromhex(previous),
        seq.to_bytes(8, "big"),
        len(kind_bytes).to_bytes(2, "big"),
        kind_bytes,
        len(body_bytes).to_bytes(8, "big"),
        body_bytes,
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()


def next_link(tail: Link | None, kind: str, body: str) -> Link:
    """Return the link that follows ``tail`` (None: the first link, seq 0)."""
    seq, previous = (0, ZERO) if tail is None else (tail.seq + 1, tail.digest)
    digest = link_digest(seq=seq, kind=kind, body=body, previous=previous)
    return Link(seq=seq, kind=kind, body=body, previous=previous, digest=digest)


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


@contextmanager
def ledger_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's and the file system's errors into LedgerError with what was found and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {doing} failed: {error}. {_advice(error)}") from error
    except OSError as error:
        raise LedgerError(
            f"{path}: {doing} failed: {error.strerror}. Nothing may be spent until this is put right"
        ) from error


def _advice(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"Another process held the ledger for {BUSY_TIMEOUT:.0f} s: end it or wait, then ask again"
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return "No noise may be drawn for this question. Free space on this disk, then ask again"
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "The file is damaged or is no ledger. Restore the newest copy and verify it against the signed heads"
    return "No noise may be drawn for this question. Run `patevolve ledger verify`"


class Chain:
    """An open chain file. Safe for threads of one process and for many processes; refuses use after a fork."""

    def __init__(self, path: Path, form: Format, connection: sqlite3.Connection) -> None:
        """Hold an opened connection; use ``create`` or ``open`` instead."""
        self.path = path
        self.form = form
        self._connection = connection
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._inode = _inode(path)
        self._seen: Link | None = None

    @classmethod
    def create(cls, path: str | os.PathLike[str], form: Format, genesis: Mapping[str, Any]) -> Self:
        """Write a new chain whose first link holds ``genesis``, durably, and open it.

        The file appears under its name only when complete, so a crash leaves no half-made chain behind.
        Raises LedgerError when something of that name exists.
        """
        target = Path(path).absolute()
        for taken in (target, *(target.with_name(target.name + tail) for tail in ("-wal", "-shm", "-journal"))):
            if taken.exists() or taken.is_symlink():
                raise LedgerError(f"{taken} exists; expected no file of that name. Choose another path")
        draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
        with ledger_errors(target, "creating the ledger"):
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                _write_first_link(draft, form, {"format": form.name, "version": form.version, **genesis})
                os.link(draft, target)
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(target.parent)
        return cls.open(target, form)

    @classmethod
    def open(cls, path: str | os.PathLike[str], form: Format) -> Self:
        """Open an existing chain for appending. Raises LedgerError when missing, foreign or of another version."""
        target = Path(path).resolve()
        if not target.is_file():
            raise LedgerError(
                f"{target}: no ledger found; expected the site's ledger file. Create it once with `ledger init`"
            )
        with ledger_errors(target, "opening the ledger"):
            connection = _connect(f"{target.as_uri()}?mode=rw")
            try:
                check_format(connection, form, target)
                _prepare(connection, target)
            except BaseException:
                connection.close()
                raise
        return cls(target, form, connection)

    def close(self) -> None:
        """Close the file; further use raises LedgerError."""
        with self._lock, ledger_errors(self.path, "closing the ledger"):
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one immediate transaction; it is durable when the block has ended without an error.

        Raises LedgerError when another process holds the ledger, the disk is full, or the file was exchanged.
        """
        with self._lock, ledger_errors(self.path, "charging"):
            self._check_still_ours()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_tail()
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._seen = None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._fold_log()

    def append(self, kind: str, body: str) -> Link:
        """Add a link within ``transaction`` and return it."""
        link = next_link(self.tail(), kind, body)
        self.write("INSERT INTO chain VALUES (?, ?, ?, ?)", (link.seq, kind, body, link.digest))
        self._seen = link
        return link

    def write(self, statement: str, values: tuple[Any, ...]) -> None:
        """Run one statement of the owner's derived tables within ``transaction``."""
        if not self._connection.in_transaction:
            raise LedgerError("a ledger is written within a transaction only; use Ledger.charge or store_answer")
        self._connection.execute(statement, values)

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a SELECT."""
        with self._lock, ledger_errors(self.path, "reading the ledger"):
            self._check_process()
            return self._connection.execute(statement, values).fetchall()

    def tail(self) -> Link:
        """Return the last link."""
        rows = self.rows("SELECT seq, kind, body, digest FROM chain ORDER BY seq DESC LIMIT 2")
        return _tail_of(rows, self.path)

    def links(self, *, kind: str | None = None) -> Iterator[Link]:
        """Yield the links in order, each checked against the one before it. Raises LedgerError at the first fault."""
        for link in walk(self.rows, self.path):
            if kind is None or link.kind == kind:
                yield link

    def _check_process(self) -> None:
        # SQLite's locks belong to the process that opened the file: a child that inherits them corrupts it.
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: opened by process {self._process}; open the ledger again in this process")

    def _check_still_ours(self) -> None:
        self._check_process()
        if _inode(self.path) != self._inode:
            raise LedgerError(
                f"{self.path}: the file was exchanged while in use. Stop, and verify it against signed heads"
            )

    def _check_tail(self) -> None:
        """Refuse when what this process last wrote or saw is gone: the file was rolled back under it."""
        seen, tail = self._seen, self.tail()
        if seen is not None:
            found = self.rows("SELECT digest FROM chain WHERE seq = ?", (seen.seq,))
            if found != [(seen.digest,)]:
                raise LedgerError(
                    f"{self.path}: row {seen.seq} changed while in use. Stop, and verify against signed heads"
                )
        self._seen = tail

    def _fold_log(self) -> None:
        log = self.path.with_name(self.path.name + "-wal")
        # TRUNCATE takes the writer lock first. The commit is durable in the log already, so a checkpoint that fails
        # (disk full, a reader in the way) is no fault of the charge: a later charge tries again.
        with suppress(sqlite3.Error, OSError):
            if log.stat().st_size >= CHECKPOINT_BYTES:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def walk(rows: Any, path: Path) -> Iterator[Link]:
    """Yield checked links read through ``rows(statement, values)``; raises LedgerError at the first fault."""
    tail: Link | None = None
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


def check_format(connection: sqlite3.Connection, form: Format, path: Path) -> None:
    """Raise LedgerError unless the file is of this form and version, with exactly this schema."""
    found = (_pragma(connection, "application_id"), _pragma(connection, "user_version"))
    if found[0] != form.application_id:
        raise LedgerError(f"{path}: not a file of kind {form.name}; check the path")
    if found[1] != form.version:
        raise LedgerError(
            f"{path}: schema version {found[1]} found, {form.version} expected; use the patevolve version that wrote it"
        )
    # Exactly: a planted trigger or view would act inside our own transactions.
    present = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if present != set(form.statements):
        raise LedgerError(f"{path}: the schema differs from that of {form.name} {form.version}; the file was altered")


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write. A file on a read-only medium without a log is read as it lies."""
    connection = _connect(f"{path.as_uri()}?mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        connection = _connect(f"{path.as_uri()}?mode=ro&immutable=1")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise LedgerError(f"{path}: write-ahead log refused by this file system; keep the ledger on a local disk")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")  # macOS: flush the drive's cache too
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("PRAGMA trusted_schema=OFF")


def _write_first_link(path: Path, form: Format, genesis: Mapping[str, Any]) -> None:
    connection = _connect(f"{path.as_uri()}?mode=rw")
    try:
        _prepare(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        for statement in form.statements:
            connection.execute(statement)
        first = next_link(None, GENESIS, canonical(genesis))
        connection.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (first.seq, first.kind, first.body, first.digest))
        connection.execute(f"PRAGMA application_id={form.application_id:d}")
        connection.execute(f"PRAGMA user_version={form.version:d}")
        connection.execute("COMMIT")
    finally:
        connection.close()  # the last connection folds its log into the file and syncs it


def _tail_of(rows: list[tuple[Any, ...]], path: Path) -> Link:
    if not rows:
        raise LedgerError(f"{path}: the chain has no rows; expected a genesis row. Restore the newest copy")
    seq, kind, body, digest = rows[0]
    previous = ZERO if len(rows) == 1 else rows[1][3]
    if digest != link_digest(seq=seq, kind=kind, body=body, previous=previous):
        raise LedgerError(f"{path}: row {seq} does not match its digest: this row or the one before it was edited")
    return Link(seq=seq, kind=kind, body=body, previous=previous, digest=digest)


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` durable (file systems sync names apart from contents)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
