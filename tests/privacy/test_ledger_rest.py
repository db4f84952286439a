"""A ledger that rests between two questions: no file is open, and nothing else changes."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from patevolve.shared.errors import LedgerError
from patevolve.shared.privacy.events import DiscreteGaussian
from patevolve.shared.privacy.ledger import AnswerKey, Cap, Ledger, verify

CAP = Cap(epsilon=8.0, delta=1e-6)
EVENT = DiscreteGaussian(sigma=400.0, l2=8.0)


def key(question: str) -> AnswerKey:
    return AnswerKey(plan_sha256="a" * 64, run="r", question=question, question_sha256="c" * 64, cohort_sha256="e" * 64)


def charge(ledger: Ledger, question: str) -> int:
    return ledger.charge(key(question), part="counts", event=EVENT, cap=CAP).seq


@pytest.fixture
def path(tmp_path):
    Ledger.create(tmp_path / "ledger.sqlite", site="north").close()
    return tmp_path / "ledger.sqlite"


def held(path: Path) -> list[str]:
    """The names of this process's open files of a ledger."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("this system does not show a process its open files")
    found = []
    for one in list(folder.iterdir()):
        try:
            found.append(str(one.readlink()))
        except OSError:
            continue
    return sorted(Path(name).name for name in found if name.startswith(str(path)))


def test_a_resting_ledger_holds_its_lock_and_no_other_file(path):
    with Ledger.open(path, exclusive=True) as ledger:
        charge(ledger, "one")
        assert len(held(path)) == 4
        ledger.rest()
        assert held(path) == ["ledger.sqlite.lock"]
        with pytest.raises(LedgerError, match="in use by process"):
            Ledger.open(path, exclusive=True)
        charge(ledger, "two")
        assert len(held(path)) == 4


def test_rest_changes_nothing_that_is_charged_or_answered(path):
    with Ledger.open(path, exclusive=True) as ledger:
        for number in range(5):
            seq = charge(ledger, f"q{number}")
            ledger.rest()
            ledger.store_answer(key(f"q{number}"), b"answer %d" % number, seq)
            ledger.rest()
            ledger.rest()
        assert [ledger.answer(key(f"q{number}")) for number in range(5)] == [b"answer %d" % n for n in range(5)]
        ledger.rest()
        assert [one.question for one in ledger.charges()] == [f"q{number}" for number in range(5)]
    assert verify(path).charges == 5


def test_rest_keeps_what_makes_commits_durable(path):
    with Ledger.open(path) as ledger:
        ledger.rest()
        charge(ledger, "one")
        connection = ledger._chain._connection
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_a_closed_ledger_does_not_wake(path):
    ledger = Ledger.open(path, exclusive=True)
    ledger.rest()
    ledger.close()
    with pytest.raises(LedgerError):
        charge(ledger, "late")
    Ledger.open(path, exclusive=True).close()


def test_a_file_exchanged_in_its_sleep_is_refused(path, tmp_path):
    with Ledger.open(path, exclusive=True) as ledger:
        charge(ledger, "one")
        ledger.rest()
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
        with pytest.raises(LedgerError, match="exchanged while in use"):
            ledger.answer(key("one"))


@pytest.mark.parametrize("charged_before_it_slept", [True, False])
def test_an_older_content_put_back_in_its_sleep_is_refused(path, tmp_path, charged_before_it_slept):
    shutil.copy(path, tmp_path / "older")
    with Ledger.open(path) as first:
        charge(first, "one")
    with Ledger.open(path, exclusive=True) as ledger:
        if charged_before_it_slept:
            charge(ledger, "two")
        ledger.rest()
        path.write_bytes((tmp_path / "older").read_bytes())  # the same file, as a restore in place leaves it
        for use in (lambda: ledger.remaining(CAP), lambda: ledger.answer(key("one")), lambda: charge(ledger, "three")):
            with pytest.raises(LedgerError, match="changed while in use"):
                use()


def test_an_altered_schema_is_refused_when_it_wakes(path):
    with Ledger.open(path, exclusive=True) as ledger:
        ledger.rest()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE planted (x)")
            connection.commit()
        with pytest.raises(LedgerError, match="schema"):
            charge(ledger, "one")
