"""The site's ledger as a file: locks, many processes, crashes, full disks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from patevolve.shared.errors import (
    LedgerError,
)
from patevolve.shared.privacy.events import DiscreteGaussian
from patevolve.shared.privacy.ledger import AnswerKey, Cap, Ledger, verify

CAP = Cap(epsilon=8.0, delta=1e-6)
SMALL = DiscreteGaussian(sigma=400.0, l2=8.0)
PLAN, OTHER_PLAN, CONTENT, OTHER_CONTENT, COHORT, OTHER_COHORT = (c * 64 for c in "abcdef")

# A second process in the tests: it opens the ledger and charges with names of its own.
PREAMBLE = """
    import sys
    from patevolve.shared.errors import LedgerError
    from patevolve.shared.privacy.events import DiscreteGaussian
    from patevolve.shared.privacy.ledger import AnswerKey, Cap, Ledger
    path, name = sys.argv[1:3]
    cap = Cap(epsilon=8.0, delta=1e-6)
    event = DiscreteGaussian(sigma=4000.0, l2=8.0)
    def charge(ledger, question):
        key = AnswerKey(plan_sha256="a" * 64, run="r", question=question, question_sha256="c" * 64,
                        cohort_sha256="e" * 64)
        return ledger.charge(key, part="neighbours", event=event, cap=cap)
"""


def names(**changes):
    start = {"plan_sha256": PLAN, "run": "r1", "question": "neighbours/g3"}
    return start | {"question_sha256": CONTENT, "cohort_sha256": COHORT} | changes


def charge(ledger, *, event=SMALL, cap=CAP, part="neighbours", **changes):
    more = {name: changes.pop(name) for name in ("scope", "time") if name in changes}
    return ledger.charge(AnswerKey(**names(**changes)), part=part, event=event, cap=cap, **more)


def charge_until_refused(ledger, error, text, event=SMALL):
    """Return how many charges were accepted before the expected refusal."""
    for number in range(2000):
        try:
            charge(ledger, question=f"q{number}", event=event)
        except error as found:
            refusal, accepted = str(found), number
            break
    assert text in refusal
    return accepted


def script(body):
    return textwrap.dedent(PREAMBLE) + textwrap.dedent(body)


def start(body, path, name="p", **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script(body), str(path), name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger.create(path, site="north") as opened:
        yield opened


def test_a_ledger_is_created_once(path):
    Ledger.create(path, site="north").close()
    with pytest.raises(LedgerError, match="exists"):
        Ledger.create(path, site="north")
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o077 == 0


def test_a_log_left_by_a_deleted_ledger_prevents_a_new_one(path):
    path.with_name(path.name + "-wal").write_bytes(b"left over")
    with pytest.raises(LedgerError, match="exists"):
        Ledger.create(path, site="north")


@pytest.mark.parametrize("content", [None, b"", b"SQLite format 3\x00", bytes(5000), b"text" * 999])
def test_what_is_no_ledger_is_not_opened(path, content):
    if content is not None:
        path.write_bytes(content)
    for attempt in (Ledger.open, verify):
        with pytest.raises(LedgerError):
            attempt(path)


def test_a_folder_and_another_database_are_no_ledger(path, tmp_path):
    path.mkdir()
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    for place in (path, other):
        for attempt in (Ledger.open, verify):
            with pytest.raises(LedgerError):
                attempt(place)


def test_a_later_schema_version_is_refused_with_advice(path):
    Ledger.create(path, site="north").close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(LedgerError, match="version 2 found, 1 expected"):
        Ledger.open(path)


def test_a_second_running_institution_is_refused_at_once(path):
    Ledger.create(path, site="north").close()
    with Ledger.open(path, exclusive=True):
        with pytest.raises(LedgerError, match=str(os.getpid())):
            Ledger.open(path, exclusive=True)
        body = """
            try:
                Ledger.open(path, exclusive=True)
            except LedgerError as error:
                sys.exit(error.exit_code)
        """
        process = start(body, path)
        process.communicate(timeout=30)
        assert process.returncode == 6
        Ledger.open(path).close()  # looking at it is permitted
    Ledger.open(path, exclusive=True).close()


def test_the_lock_ends_with_its_process_however_that_ends(path):
    Ledger.create(path, site="north").close()
    process = start("opened = Ledger.open(path, exclusive=True)\nprint('held', flush=True)\ninput()", path)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(LedgerError, match=str(process.pid)):
        Ledger.open(path, exclusive=True)
    process.kill()
    process.communicate()
    Ledger.open(path, exclusive=True).close()


def test_thirty_processes_that_append_at_once_lose_nothing(path):
    Ledger.create(path, site="north").close()
    body = """
        import os
        gate, opener = os.pipe()
        children = []
        for child in range(30):  # forked before any ledger is opened: each opens its own
            children.append(os.fork())
            if children[-1] == 0:
                with Ledger.open(path) as opened:
                    os.close(opener)
                    os.read(gate, 1)
                    rows = [charge(opened, f"p{child}/{number}").seq for number in range(5)]
                sys.stdout.write(" ".join(map(str, rows)) + "\\n")
                sys.stdout.flush()
                os._exit(0)
        os.close(opener)  # all start now
        sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
    """
    process = start(body, path)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    by_child = [[int(row) for row in line.split()] for line in out.splitlines()]
    assert all(rows == sorted(rows) for rows in by_child)
    assert sorted(row for rows in by_child for row in rows) == list(range(2, 152))
    with Ledger.open(path) as opened:
        asked = {one.question for one in opened.charges()}
    assert asked == {f"p{number}/{count}" for number in range(30) for count in range(5)}
    assert verify(path).charges == 150


def test_threads_share_one_ledger(ledger):
    threads = [
        threading.Thread(target=lambda number=number: [charge(ledger, question=f"t{number}/{i}") for i in range(10)])
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verify(ledger.path).charges == 80


def test_a_forked_child_may_not_use_the_parents_ledger(ledger):
    child = os.fork()
    if child == 0:
        try:
            charge(ledger)
        except LedgerError:
            os._exit(6)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    charge(ledger)


def test_a_writer_that_holds_the_ledger_is_waited_for_and_then_named(path, monkeypatch):
    Ledger.create(path, site="north").close()
    monkeypatch.setattr("patevolve.shared.privacy.chain_file.BUSY_TIMEOUT", 0.2)
    with Ledger.open(path) as opened:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="Another process held the ledger"):
            charge(opened)
        other.execute("ROLLBACK")
        other.close()
        assert charge(opened).seq == 2


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02, 0.04])
def test_a_process_killed_in_mid_charge_leaves_whole_charges_alone(path, delay):
    Ledger.create(path, site="north").close()
    body = """
        opened = Ledger.open(path)
        for number in range(10**6):
            seq = charge(opened, f"q{number}").seq
            print(seq, flush=True)
    """
    process = start(body, path)
    first = process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    promised = [int(row) for row in (first + process.stdout.read()).split("\n")[:-1]]
    process.communicate()
    with Ledger.open(path) as opened:
        found = [one.seq for one in opened.charges()]
        # Every charge that was answered for is there; at most the one in flight may stand beyond it.
        assert found[: len(promised)] == promised
        assert len(found) - len(promised) in (0, 1)
        charge(opened, question="afterwards")
    assert verify(path).charges == len(found) + 1


def test_a_process_killed_between_charge_and_answer_is_visible(path):
    Ledger.create(path, site="north").close()
    process = start("charge(Ledger.open(path), 'lost')\nprint('charged', flush=True)\ninput()", path)
    assert process.stdout.readline() == "charged\n"
    process.kill()
    process.communicate()
    with Ledger.open(path) as opened:
        assert [one.question for one in opened.unanswered()] == ["lost"]
        assert opened.spent(1e-6).epsilon > 0


def test_a_full_disk_refuses_to_spend_and_spends_again_when_there_is_room(ledger):
    charge(ledger)
    connection = ledger._chain._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    accepted = charge_until_refused(ledger, LedgerError, "full")
    assert len(list(ledger.charges())) == accepted + 1
    assert verify(ledger.path).charges == accepted + 1
    connection.execute("PRAGMA max_page_count=100000")
    charge(ledger, question="room again")
    assert verify(ledger.path).charges == accepted + 2


def test_a_disk_that_takes_no_more_bytes_refuses_to_spend_and_recovers(path):
    Ledger.create(path, site="north").close()
    body = """
        import resource
        opened = Ledger.open(path)
        charge(opened, "first")
        resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        done = 0
        try:
            for number in range(1000):
                charge(opened, f"q{number}")
                done += 1
        except LedgerError as error:
            print(done, error.exit_code, flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
        charge(opened, "afterwards")
    """
    process = start(body, path)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    done, code = map(int, out.split())
    assert (done < 1000, code) == (True, 6)
    with Ledger.open(path) as opened:
        asked = [one.question for one in opened.charges()]
    assert asked == ["first", *(f"q{number}" for number in range(done)), "afterwards"]


def test_commits_are_synced_before_the_call_returns(ledger):
    connection = ledger._chain._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def log_size_after_200_charges(path, monkeypatch, rows_per_checkpoint):
    monkeypatch.setattr("patevolve.shared.privacy.chain_file.ROWS_PER_CHECKPOINT", rows_per_checkpoint)
    with Ledger.create(path, site="north") as opened:
        opened._chain._connection.execute("PRAGMA synchronous=OFF")  # for speed: durability is not looked at here
        for number in range(200):
            charge(opened, question=f"q{number}")
        return path.with_name(path.name + "-wal").stat().st_size


def test_the_log_is_folded_into_the_file_and_stays_small(path, tmp_path, monkeypatch):
    folded = log_size_after_200_charges(path, monkeypatch, 16)
    growing = log_size_after_200_charges(tmp_path / "other.sqlite", monkeypatch, 10**9)
    assert folded < growing / 5
    assert not path.with_name(path.name + "-wal").exists()
    assert verify(path).charges == 200


def test_a_copy_on_a_read_only_medium_can_be_verified(path, tmp_path):
    with Ledger.create(path, site="north") as opened:
        charge(opened)
    place = tmp_path / "medium"
    place.mkdir()
    copy = place / "copy.sqlite"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o400)
    place.chmod(0o500)
    try:
        assert verify(copy).charges == 1
    finally:
        place.chmod(0o700)


def test_the_ledger_needs_the_standard_library_and_numpy_alone(path):
    body = """
        heavy = {"cryptography", "scipy", "sklearn", "dp_accounting", "matplotlib", "torch", "flwr", "pandas"}
        print(sorted(heavy & set(sys.modules)))
    """
    assert start(body, path).communicate()[0] == "[]\n"
