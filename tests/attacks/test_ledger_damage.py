"""Bytes of the ledger's file change or go missing: everything is found, or nothing has changed."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3

import pytest

from patevolve.shared.errors import LedgerError
from patevolve.shared.privacy.events import DiscreteGaussian, Exponential
from patevolve.shared.privacy.ledger import AnswerKey, Cap, Ledger, verify

CAP = Cap(epsilon=8.0, delta=1e-6)
EVENTS = (DiscreteGaussian(sigma=400.0, l2=8.0), Exponential(epsilon=0.01))


def key(number):
    return AnswerKey(
        plan_sha256="a" * 64, run="r1", question=f"q{number}", question_sha256="c" * 64, cohort_sha256="e" * 64
    )


def fill(ledger, numbers):
    for number in numbers:
        name = key(number)
        paid = ledger.charge(name, part="neighbours", event=EVENTS[number % 2], cap=CAP, time="2031-05-06T07:08:09Z")
        if number % 3:
            ledger.store_answer(name, b"answer %d" % number, paid.seq)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    place = tmp_path_factory.mktemp("original") / "ledger.sqlite"
    with Ledger.create(place, site="north") as ledger:
        fill(ledger, range(9))
    return place


@pytest.fixture
def path(original, tmp_path):
    return shutil.copy(original, tmp_path / "ledger.sqlite")


def refused(path, match=None, **options):
    with pytest.raises(LedgerError, match=match):
        verify(path, **options)
    if not options:
        with pytest.raises(LedgerError):
            Ledger.open(path)


def row(path, seq):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT kind, body, digest FROM chain WHERE seq = ?", (seq,)).fetchone()


def contents(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        schema = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
        return schema, [
            connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608 - our names
            for table in ("chain", "totals", "spending", "questions", "answers")
        ]


def test_flipped_bytes_are_found_or_change_nothing(path):
    """A flip is either refused with LedgerError, or lies in bytes that no table uses and leaves every row as it was."""
    source = random.Random(20240607)  # noqa: S311 - which bytes to flip
    before, data = contents(path), path.read_bytes()
    found = 0
    trials = 300
    for _ in range(trials):
        damaged = bytearray(data)
        damaged[source.randrange(len(data))] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        try:
            verify(path)
        except LedgerError:
            found += 1
        else:
            assert contents(path) == before
    assert trials / 10 < found < trials  # both outcomes were seen: pages are partly empty


def test_flips_within_rows_are_always_found(path):
    """Control of the test above: aimed at the bytes of the rows themselves, no flip passes."""
    source = random.Random(7)  # noqa: S311 - which bytes to flip
    data = path.read_bytes()
    for seq in range(12):
        _, body, digest = row(path, seq)
        for text in (body, digest):
            damaged = bytearray(data)
            at = data.index(text.encode()) + source.randrange(len(text))
            damaged[at] ^= 1 << source.randrange(7)
            copy = path.with_name("damaged.sqlite")
            copy.write_bytes(damaged)
            refused(copy)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_file_cut_off_anywhere_is_refused(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path)


def test_random_bytes_are_refused(tmp_path):
    source = random.Random(3)  # noqa: S311 - bytes that are no ledger
    for size in (0, 1, 99, 100, 4096, 20000):
        for start in (b"", b"SQLite format 3\x00"):
            place = tmp_path / f"{size}{len(start)}.sqlite"
            place.write_bytes((start + source.randbytes(size))[: max(size, 1)])
            refused(place)


def test_a_log_with_a_torn_end_loses_only_what_was_never_promised(path, tmp_path):
    """The last bytes of the write-ahead log are cut at every kind of place: whole charges remain, or a refusal."""
    ledger = Ledger.open(path)
    promised = verify(path).charges
    fill(ledger, [30])
    log = path.with_name(path.name + "-wal").read_bytes()
    for cut in (0, 1, 24, 4000, len(log) // 2, len(log) - 33, len(log)):
        place = tmp_path / f"torn{cut}.sqlite"
        shutil.copy(path, place)
        place.with_name(place.name + "-wal").write_bytes(log[: len(log) - cut])
        with Ledger.open(place) as torn:
            assert len(list(torn.charges())) in (promised, promised + 1)
            fill(torn, [33])
        verify(place)
    ledger.close()
