"""A hash chain in one SQLite file: the append-only, durable base of the site's and the coordinator's ledgers.

Choices (LEDGER.md has the schema and what is promised about it):

- Write-ahead log with ``synchronous=FULL``: one fsync per commit, before the call returns (a rollback journal
  needs three or four). ``NORMAL`` would return before the row is on the disk, which rule 4 forbids.
- No automatic checkpoints. Ours run with the writer lock held, so that none ever races a commit: SQLite before
  3.51.3 can lose committed pages when a checkpoint and a commit that restarts the log overlap.
- Each write transaction is ``BEGIN IMMEDIATE``: what was read to decide a charge can't change before it is written.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from patevolve.shared.errors import LedgerError, PatevolveError
from patevolve.shared.files import sync
from patevolve.shared.privacy.chain import (
    GENESIS,
    ZERO,
    Link,
    canonical,
    link_digest,
    next_link,
    sha256_of,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

BUSY_TIMEOUT = 30.0  # seconds that a charge waits for other processes' charges
ROWS_PER_CHECKPOINT = 256  # the log then holds about 5 MB of small rows
LOG_BYTES = 8 * 2**20  # a log that a large answer made longer is cut back to this
# What forged bodies and altered column types make Python raise.
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError)

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
        self._resting = False

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
            draft.unlink(missing_ok=True)  # of an earlier process with this number, killed while creating
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                _write_first_link(draft, form, {"format": form.name, "version": form.version, **genesis})
                os.link(draft, target)
            finally:
                draft.unlink(missing_ok=True)
            sync(target.parent)
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
            self._resting = False
            self._connection.close()

    def rest(self) -> None:
        """Close the file until its next use: three descriptors are free meanwhile, and nothing else changes.

        What this process last saw must still be there when it wakes; a file that was exchanged is refused then.
        """
        with self._lock, ledger_errors(self.path, "closing the ledger for a while"):
            self._check_process()
            if not self._resting and not self._connection.in_transaction:
                self._seen = self._seen or self.tail()
                self._connection.close()
                self._resting = True

    def _wake(self) -> None:
        if not self._resting:
            return
        self._check_still_ours()
        connection = _connect(f"{self.path.as_uri()}?mode=rw")
        try:
            check_format(connection, self.form, self.path)
            _prepare(connection, self.path)
            self._connection, self._resting = connection, False
            self._check_tail()
        except BaseException:
            connection.close()
            self._resting = True  # refused again at every further use, reading too
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one immediate transaction; it is durable when the block has ended without an error.

        Raises LedgerError when another process holds the ledger, the disk is full, or the file was exchanged.
        """
        with self._lock, ledger_errors(self.path, "charging"):
            self._check_still_ours()
            self._wake()
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._seen
            try:
                self._check_tail()
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._seen = before
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
            self._wake()
            return self._connection.execute(statement, values).fetchall()

    def tail(self) -> Link:
        """Return the last link."""
        rows = self.rows("SELECT seq, kind, body, digest FROM chain ORDER BY seq DESC LIMIT 2")
        return _tail_of(rows, self.path)

    def link_at(self, seq: int) -> Link:
        """Return row ``seq``, checked against its digest. Raises LedgerError when there is none."""
        rows = self.rows(
            "SELECT seq, kind, body, digest FROM chain WHERE seq IN (?, ?) ORDER BY seq DESC", (seq, seq - 1)
        )
        if not rows or rows[0][0] != seq:
            raise LedgerError(f"{self.path}: row {seq} not found; expected the number of an existing row")
        return _tail_of(rows, self.path)

    def links(self, *, after: int | None = None) -> Iterator[Link]:
        """Yield the links (after row ``after``) in order, each checked against the one before. Raises LedgerError."""
        return walk(self.rows, self.path, None if after is None else self.link_at(after))

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
        """Copy the log into the database file every so many rows; the log's space is then used again.

        RESTART takes the writer lock first. The commit is durable in the log already, so a checkpoint that fails
        (disk full, a reader in the way) is no fault of the charge: a later charge tries again.
        """
        if self._seen is not None and self._seen.seq % ROWS_PER_CHECKPOINT == 0:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


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
    if _schema(connection) != _expected_schema(form):
        raise LedgerError(f"{path}: the schema differs from that of {form.name} {form.version}; the file was altered")


def _schema(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


@functools.cache
def _expected_schema(form: Format) -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in form.statements:
            connection.execute(statement)
        return _schema(connection)


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)


def verified(path: Path, form: Format, check: Callable[[sqlite3.Connection], T]) -> T:
    """Return ``check(connection)`` on one snapshot of a sound file of this form. Raises LedgerError alone."""
    try:
        return _checked(path, form, check)
    except LedgerError:
        raise
    except (sqlite3.Error, OSError, PatevolveError, *_MALFORMED) as error:
        raise LedgerError(f"{path}: is no sound ledger ({error}). Do not spend; restore the newest copy") from error


def _checked(path: Path, form: Format, check: Callable[[sqlite3.Connection], T]) -> T:
    if not path.is_file():
        raise LedgerError(f"{path}: no ledger found; expected a file of kind {form.name}. Check the path")
    with closing(_open_read_only(path)) as connection:
        connection.execute("BEGIN")  # one snapshot, also while others append
        check_format(connection, form, path)
        state = connection.execute("PRAGMA integrity_check").fetchall()
        if state != [("ok",)]:
            raise LedgerError(f"{path}: SQLite finds damage ({state[0][0]!r}). Do not spend; restore the newest copy")
        return check(connection)


def _open_read_only(path: Path) -> sqlite3.Connection:
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
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES:d}")
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
    if digest != link_digest(seq=seq, kind=kind, body_sha256=sha256_of(body.encode()), previous=previous):
        raise LedgerError(f"{path}: row {seq} does not match its digest: this row or the one before it was edited")
    return Link(seq=seq, kind=kind, body=body, previous=previous, digest=digest)


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
