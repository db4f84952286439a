"""The site's ledger: what it accepts, refuses, keeps, and survives."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import (
    BudgetError,
    LedgerError,
    MessageError,
    ParameterError,
    PatevolveError,
    UnsupportedEventError,
)
from patevolve.shared.privacy import accountant, budget, ledger_view
from patevolve.shared.privacy.events import DiscreteGaussian, DiscreteLaplace, Exponential, SubsampledGaussian
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
        return ledger.charge(plan_sha256="a" * 64, run="r", question=question, question_sha256="c" * 64,
                             cohort_sha256="e" * 64, part="neighbours", event=event, cap=cap)
"""


def names(**changes):
    start = {"plan_sha256": PLAN, "run": "r1", "question": "neighbours/g3"}
    return start | {"question_sha256": CONTENT, "cohort_sha256": COHORT} | changes


def charge(ledger, *, event=SMALL, cap=CAP, part="neighbours", **changes):
    more = {name: changes.pop(name) for name in ("scope", "time") if name in changes}
    return ledger.charge(**names(**changes), part=part, event=event, cap=cap, **more)


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


# What a charge writes


def test_a_charge_is_read_back_as_it_was_written(ledger):
    written = charge(ledger, time="2031-05-06T07:08:09Z", scope="local")
    (read,) = ledger.charges()
    assert read == written
    assert (read.plan_sha256, read.run, read.question, read.part) == (PLAN, "r1", "neighbours/g3", "neighbours")
    assert (read.event, read.cap, read.scope, read.time) == (SMALL, CAP, "local", "2031-05-06T07:08:09Z")
    assert read.digest == ledger.head().digest
    assert read.seq == ledger.head().seq


def test_a_charge_without_a_time_gets_the_present_utc_second(ledger):
    form = "%Y-%m-%dT%H:%M:%SZ"
    before = time.strftime(form, time.gmtime())
    assert before <= charge(ledger).time <= time.strftime(form, time.gmtime())


def test_no_charges_have_cost_exactly_nothing(ledger):
    assert ledger.spent(1e-6).epsilon == 0.0
    left = ledger.remaining(CAP)
    assert (left.used, left.left, left.epsilon) == (0.0, left.budget, 0.0)
    assert ledger.spent_by("part", 1e-6) == {}


def test_spending_is_what_the_accountant_composes(ledger):
    happened = [
        SMALL,
        SMALL,
        Exponential(epsilon=0.1),
        SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.1, steps=5),
    ]
    for number, event in enumerate(happened):
        charge(ledger, question=f"q{number}", event=event, part="abb"[min(number, 2)])
    expected = accountant.epsilon(accountant.compose(happened), 1e-6)
    assert ledger.spent(1e-6).epsilon == pytest.approx(expected.epsilon, rel=1e-12)
    by_part = ledger.spent_by("part", 1e-6)
    first = accountant.epsilon(accountant.compose(happened[:1]), 1e-6).epsilon
    assert by_part["a"].epsilon == pytest.approx(first, rel=1e-12)
    assert set(by_part) == {"a", "b"}


def test_spending_is_told_apart_by_plan_run_and_scope(ledger):
    charge(ledger, question="a")
    charge(ledger, question="b", plan_sha256=OTHER_PLAN, run="r2", scope="local")
    assert set(ledger.spent_by("plan", 1e-6)) == {PLAN, OTHER_PLAN}
    assert set(ledger.spent_by("run", 1e-6)) == {"r1", "r2"}
    assert set(ledger.spent_by("scope", 1e-6)) == {"shared", "local"}
    with pytest.raises(ParameterError, match="by="):
        ledger.spent_by("week", 1e-6)


def test_the_total_continues_when_the_next_job_starts(path):
    Ledger.create(path, site="north").close()
    for job in range(3):
        with Ledger.open(path) as opened:
            assert opened.remaining(CAP).used == pytest.approx(job * budget.remaining([], CAP, None).order * 2e-4)
            charge(opened, run=f"job{job}")


# What is refused at the door

BAD_NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -1.0, 5e-324, True, "1", None]


@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_a_cap_that_is_no_positive_number_is_refused(value):
    with pytest.raises(ParameterError):
        Cap(epsilon=value, delta=1e-6)
    with pytest.raises(ParameterError):
        Cap(epsilon=1.0, delta=value)


@pytest.mark.parametrize("delta", [1.0, 1.5])
def test_a_delta_of_one_or_more_is_refused(delta):
    with pytest.raises(ParameterError):
        Cap(epsilon=1.0, delta=delta)


@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_an_event_whose_noise_is_no_positive_number_never_enters(ledger, value):
    event = object.__new__(DiscreteGaussian)  # past the event's own door: the ledger has one of its own
    for field, content in (("sigma", value), ("l2", 1.0), ("count", 1)):
        object.__setattr__(event, field, content)
    with pytest.raises((ParameterError, UnsupportedEventError, TypeError, LedgerError, ValueError)):
        charge(ledger, event=event)
    assert ledger.head().seq == 0


@pytest.mark.parametrize("event", [None, "gaussian", 1.0, {"kind": "discrete_gaussian"}])
def test_what_is_no_event_is_refused(ledger, event):
    with pytest.raises(UnsupportedEventError):
        charge(ledger, event=event)
    assert ledger.head().seq == 0


@pytest.mark.parametrize(
    "change",
    [
        {"plan_sha256": "a"}, {"plan_sha256": "A" * 64}, {"plan_sha256": None}, {"question_sha256": b"c" * 64},
        {"cohort_sha256": "g" * 64}, {"run": ""}, {"run": "a\nb"}, {"run": "a" * 129}, {"run": 1},
        {"question": "\x1b[2J"},
        {"question": " x"}, {"part": "é"}, {"scope": "both"}, {"time": "yesterday"}, {"time": "2031-13-01T00:00:00Z"},
        {"time": "2031-01-01T00:00:00"}, {"time": 5},
    ],
)  # fmt: skip
def test_fields_out_of_form_are_refused(ledger, change):
    with pytest.raises(ParameterError):
        charge(ledger, **change)
    assert ledger.head().seq == 0


def test_an_event_too_large_to_account_is_refused(ledger):
    for event in (DiscreteGaussian(sigma=1.0, l2=1.0, count=10**400), DiscreteGaussian(sigma=1e-300, l2=1e300)):
        with pytest.raises(PatevolveError):
            charge(ledger, event=event)
    assert ledger.head().seq == 0


# The cap


def test_the_cap_refuses_and_writes_nothing(ledger):
    accepted = charge_until_refused(ledger, BudgetError, "nothing was charged", DiscreteGaussian(sigma=40.0, l2=8.0))
    assert len(list(ledger.charges())) == accepted > 10
    assert ledger.head().seq == accepted + 1
    assert ledger.remaining(CAP).epsilon <= CAP.epsilon
    assert verify(ledger.path).charges == accepted


def test_a_first_charge_beyond_the_cap_leaves_no_trace(ledger):
    with pytest.raises(BudgetError):
        charge(ledger, event=DiscreteGaussian(sigma=1.0, l2=8.0))
    assert ledger.head().seq == 0
    assert verify(ledger.path).order is None


def test_small_charges_still_fit_after_a_large_one_was_refused(ledger):
    charge(ledger, question="a")
    with pytest.raises(BudgetError):
        charge(ledger, question="b", event=DiscreteGaussian(sigma=1.0, l2=8.0))
    charge(ledger, question="b")


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 20.0),
    st.floats(1e-10, 1e-2),
    st.lists(st.floats(0.3, 300.0), min_size=1, max_size=40),
)
def test_gaussian_plans_fit_the_filter_exactly_when_their_epsilon_fits_the_cap(epsilon, delta, sigmas):
    """The order chosen from the cap loses nothing for Gaussian noise, and never accepts more than the cap."""
    cap = Cap(epsilon=epsilon, delta=delta)
    try:
        order = budget.choose_order(cap)
    except BudgetError:
        order = None
    texts = [(budget_text(sigma), 1) for sigma in sigmas]
    reported = budget.epsilon_of(texts, delta).epsilon
    fits = order is not None and budget.used_at(texts, order) <= budget.budget_at(order, cap)
    if fits:
        assert reported <= epsilon * (1 + 1e-12)
    if 0.0 < reported < epsilon * (1 - 1e-9):
        assert fits


def budget_text(sigma):
    return json.dumps({"count": 1, "kind": "discrete_gaussian", "l2": 1.0, "sigma": sigma}, sort_keys=True)


def test_a_raised_cap_affords_more_at_the_same_order_and_a_lowered_one_less(ledger):
    charge(ledger)
    order = ledger.remaining(CAP).order
    raised, lowered = ledger.remaining(Cap(epsilon=9.0, delta=1e-6)), ledger.remaining(Cap(epsilon=7.0, delta=1e-6))
    assert raised.order == lowered.order == order
    assert raised.budget == pytest.approx(ledger.remaining(CAP).budget + 1.0)
    assert lowered.budget == pytest.approx(ledger.remaining(CAP).budget - 1.0)
    with pytest.raises(BudgetError):
        charge(ledger, question="q2", cap=Cap(epsilon=1e-3, delta=1e-6))
    charge(ledger, question="q2", cap=Cap(epsilon=9.0, delta=1e-6))
    assert verify(ledger.path).charges == 2


def test_affords_agrees_with_charge(ledger):
    one = DiscreteGaussian(sigma=40.0, l2=8.0)
    most = 1
    while ledger.affords([one] * (most + 1), CAP):
        most += 1
    for number in range(most):
        charge(ledger, question=f"q{number}", event=one)
    assert not ledger.affords([one], CAP)
    assert ledger.affords([], CAP)
    with pytest.raises(BudgetError):
        charge(ledger, question="last", event=one)


def test_the_cost_of_the_check_depends_on_distinct_events_only(ledger):
    steps = []
    for number in range(40):
        charge(ledger, question=f"q{number}", event=(SMALL, Exponential(epsilon=0.01))[number % 2])
        counted = [0]
        ledger._chain._connection.set_progress_handler(
            lambda counted=counted: counted.__setitem__(0, counted[0] + 1), 1
        )
        charge(ledger, question=f"p{number}")
        ledger._chain._connection.set_progress_handler(None, 0)
        steps.append(counted[0])
    assert max(steps[5:]) <= 1.2 * min(steps[5:])  # virtual machine steps of one whole charge


# Answers


def test_an_answer_is_replayed_without_a_new_charge(ledger):
    key = AnswerKey(**names())
    assert ledger.answer(key) is None
    paid = charge(ledger)
    assert [one.seq for one in ledger.unanswered()] == [paid.seq]
    ledger.store_answer(key, b"\x00noised\xff", paid.seq)
    assert ledger.answer(key) == b"\x00noised\xff"
    assert ledger.unanswered() == []
    head = ledger.head()
    ledger.store_answer(key, b"\x00noised\xff", paid.seq)
    assert ledger.head() == head


def test_an_empty_answer_is_an_answer(ledger):
    ledger.store_answer(AnswerKey(**names()), b"", charge(ledger).seq)
    assert ledger.answer(AnswerKey(**names())) == b""


def test_a_name_with_other_content_is_refused_whether_answered_or_not(ledger):
    paid = charge(ledger)
    other = AnswerKey(**names(question_sha256=OTHER_CONTENT))
    for step in range(2):
        with pytest.raises(MessageError, match="other content"):
            ledger.answer(other)
        with pytest.raises(MessageError):
            charge(ledger, question_sha256=OTHER_CONTENT)
        if step == 0:
            ledger.store_answer(AnswerKey(**names()), b"x", paid.seq)
    assert len(list(ledger.charges())) == 1


def test_the_same_question_in_another_run_or_plan_is_another_question(ledger):
    ledger.store_answer(AnswerKey(**names()), b"x", charge(ledger).seq)
    assert ledger.answer(AnswerKey(**names(run="r2", question_sha256=OTHER_CONTENT))) is None
    assert ledger.answer(AnswerKey(**names(plan_sha256=OTHER_PLAN, question_sha256=OTHER_CONTENT))) is None


def test_a_second_cohort_is_a_new_charge_and_a_new_answer(ledger):
    ledger.store_answer(AnswerKey(**names()), b"x", charge(ledger).seq)
    second = AnswerKey(**names(cohort_sha256=OTHER_COHORT))
    assert ledger.answer(second) is None
    ledger.store_answer(second, b"y", charge(ledger, cohort_sha256=OTHER_COHORT).seq)
    assert (ledger.answer(AnswerKey(**names())), ledger.answer(second)) == (b"x", b"y")


def test_an_answered_question_is_never_charged_or_answered_again(ledger):
    paid = charge(ledger)
    ledger.store_answer(AnswerKey(**names()), b"x", paid.seq)
    with pytest.raises(LedgerError, match="answered already"):
        charge(ledger)
    with pytest.raises(LedgerError, match="another stored answer"):
        ledger.store_answer(AnswerKey(**names()), b"y", paid.seq)
    assert ledger.answer(AnswerKey(**names())) == b"x"


def test_a_charge_whose_answer_was_lost_is_charged_again_and_stays_spent(ledger):
    charge(ledger)
    second = charge(ledger)
    ledger.store_answer(AnswerKey(**names()), b"x", second.seq)
    assert len(ledger.unanswered()) == 1
    twice = accountant.epsilon(accountant.compose([SMALL, SMALL]), 1e-6).epsilon
    assert ledger.spent(1e-6).epsilon == pytest.approx(twice, rel=1e-12)


@pytest.mark.parametrize("row", [0, 1, 99, -1, True, "2", None])
def test_an_answer_needs_its_own_charge(ledger, row):
    charge(ledger)
    with pytest.raises(LedgerError):
        ledger.store_answer(AnswerKey(**names()), b"x", row)
    other = charge(ledger, question="other")
    with pytest.raises(LedgerError):
        ledger.store_answer(AnswerKey(**names()), b"x", other.seq)
    assert ledger.answer(AnswerKey(**names())) is None


def test_only_bytes_are_answers(ledger):
    paid = charge(ledger)
    for data in ("text", None, 5, bytearray(b"x")):
        with pytest.raises(ParameterError):
            ledger.store_answer(AnswerKey(**names()), data, paid.seq)


# Files, locks, processes


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


# Views


def test_show_says_who_asked_what_when_under_which_plan_at_what_cost(ledger):
    paid = charge(ledger, time="2031-05-06T07:08:09Z")
    ledger.store_answer(AnswerKey(**names()), b"x", paid.seq)
    charge(ledger, question="neighbours/g4")
    found = json.loads(json.dumps(ledger_view.describe(ledger, CAP), allow_nan=False))
    assert [one["answered"] for one in found["charges"]] == [True, False]
    assert found["charges"][0]["event"]["kind"] == "discrete_gaussian"
    assert found["spent"]["epsilon"] == ledger.spent(CAP.delta).epsilon
    text = ledger_view.describe_text(ledger, CAP)
    for expected in ("north", "2 charges", "2031-05-06T07:08:09Z", PLAN[:12], "neighbours/g4", "sigma=400", "stored"):
        assert expected in text
    assert ledger_view.describe(ledger, CAP, last=1)["charges"][0]["question"] == "neighbours/g4"
    assert ledger_view.describe(ledger, CAP, last=0)["charges"] == []


def test_verify_says_what_it_could_not_show(ledger):
    charge(ledger)
    blind = verify(ledger.path)
    assert json.loads(json.dumps(ledger_view.verification(blind)))["sound"] is True
    assert "would look the same" in ledger_view.verification_text(blind)
    held = verify(ledger.path, trusted_heads=[ledger.head()])
    assert "1 signed heads" in ledger_view.verification_text(held)


def test_a_hundred_events_of_one_kind_show_the_cost_of_laplace_too(ledger):
    charge(ledger, event=DiscreteLaplace(scale=50.0, l1=1.0, count=100))
    assert ledger.spent(1e-6).epsilon <= 2.0
