"""Charge, commit, then draw; store, then send; a retry replays bytes."""

import contextlib
import itertools
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from patevolve.client.guard import Guard
from patevolve.client.policy import draft
from patevolve.shared.errors import BudgetError, LedgerError, MessageError
from patevolve.shared.messages import decode_answer, digest
from patevolve.shared.privacy.ledger import Ledger, verify
from patevolve.shared.privacy.signing import head_from_json
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.schedule import find

QUESTIONS = ["counts", "prototypes", "neighbours/1", "neighbours/2", "labels", "score"]


def in_order(log):
    """Return whether one answer was charged, then drawn, then stored, then returned, each in its place."""
    steps = [step for step, _ in itertools.groupby(log)]
    return steps == ["charge", "read", "store_answer", "returned"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_charge_then_draw_then_store_then_send(open_desk, agreed, name):
    desk = open_desk(agreed)
    answer = decode_answer(desk.handle(desk.question(name)))
    assert in_order(desk.log), desk.log
    ask = find(desk.asks, name)
    assert answer.values.shape == (ask.bounds.size,)
    assert answer.std == ask.mechanism.std
    assert answer.question == digest(desk.question(name))
    assert (answer.site, answer.full) == ("s", True)


def planted(step):
    """Return a Guard.release with one step out of its place."""

    def release(self, question, ask, key, exact):
        def charge():
            return self.ledger.charge(
                key, part=ask.part, event=ask.event, cap=self.policy.budget,
            )  # fmt: skip

        def draw():
            return ask.mechanism.release(exact, self.noise(self.policy.site, key.question_sha256))

        if step == "draw first":
            noisy = draw()
            charged = charge()
        else:
            charged = charge()
            noisy = draw()
        if step != "not stored":
            self.ledger.store_answer(key, noisy.values.tobytes(), charged.seq)
        return noisy.values.tobytes()

    return release


@pytest.mark.parametrize("step", ["draw first", "not stored"])
def test_a_planted_wrong_order_is_seen(open_desk, agreed, monkeypatch, step):
    monkeypatch.setattr(Guard, "release", planted(step))
    desk = open_desk(agreed)
    desk.handle(desk.question("counts"))
    assert not in_order(desk.log)


READ = "import sqlite3, sys; print([k for k, in sqlite3.connect(sys.argv[1]).execute('SELECT kind FROM chain')])"


def test_the_charge_is_on_the_disk_when_the_first_byte_is_drawn(open_desk, agreed):
    """Another process reads the ledger's file at the moment of the draw and finds the charge, but no answer yet."""
    seen = []

    class Source:
        def read(self, count):
            command = [sys.executable, "-c", READ, str(desk.ledger.path)]
            seen.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            return SystemNoise().read(count)

    desk = open_desk(agreed, noise=lambda *_: Source())
    desk.handle(desk.question("counts"))
    assert set(seen) == {"['genesis', 'filter', 'charge']\n"}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_retry_replays_the_bytes_at_no_cost(open_desk, agreed, name):
    desk = open_desk(agreed)
    first = desk.handle(desk.question(name))
    desk.log.clear()
    spent = desk.ledger.spent(1e-5)
    assert [desk.handle(desk.question(name)) for _ in range(3)] == [first] * 3
    assert desk.log == ["returned"] * 3  # no charge, no byte of noise, nothing stored
    assert desk.ledger.spent(1e-5) == spent


def test_a_restarted_site_replays_the_bytes(open_desk, agreed):
    desk = open_desk(agreed)
    first = desk.handle(desk.question("counts"))
    desk.ledger.close()
    again = open_desk(agreed)
    assert again.handle(again.question("counts")) == first
    assert again.log == ["returned"]


def test_another_question_under_the_same_name_is_refused(open_desk, agreed):
    desk = open_desk(agreed)
    desk.handle(desk.question("neighbours/1"))
    desk.log.clear()
    other = {"genomes": np.ones((12, 2)), "classes": np.arange(12) % 2}
    with pytest.raises(MessageError, match="asked before with other content"):
        desk.handle(desk.question("neighbours/1", arrays=other))
    assert desk.log == []
    assert desk.charges() == 1


def test_another_run_and_another_cohort_are_charged_anew(open_desk, agreed):
    desk = open_desk(agreed, policy=draft("s", agreed, reserve=4.0))
    first = desk.handle(desk.question("counts"))
    second = desk.handle(desk.question("counts", run="r2"))
    assert first != second
    desk.ledger.close()
    elsewhere = open_desk(agreed, cohort="d" * 64)
    third = elsewhere.handle(elsewhere.question("counts"))
    assert third not in (first, second)
    assert elsewhere.charges() == 3


def test_a_crash_between_charge_and_draw_costs_the_charge_again(open_desk, agreed):
    class CrashError(Exception):
        pass

    class Broken:
        def read(self, _):
            raise CrashError

    desk = open_desk(agreed, policy=draft("s", agreed, reserve=3.0), noise=lambda *_: Broken())
    with pytest.raises(CrashError):
        desk.handle(desk.question("counts"))
    assert desk.charges() == 1
    desk.ledger.close()
    again = open_desk(agreed)
    again.handle(again.question("counts"))
    assert again.charges() == 2
    assert len(again.ledger.unanswered()) == 1


def test_a_budget_that_is_spent_refuses_and_draws_nothing(open_desk, agreed):
    policy = draft("s", agreed).replace("epsilon = 3.0", "epsilon = 1.0")
    desk = open_desk(agreed, policy=policy)
    refused = []
    for name in QUESTIONS:
        desk.log.clear()
        before = desk.charges()
        with contextlib.suppress(BudgetError):
            desk.handle(desk.question(name))
        if desk.charges() == before:
            refused.append(name)
            assert desk.log == []
    assert refused
    assert desk.charges() == len(QUESTIONS) - len(refused)
    assert desk.ledger.spent(1e-5).epsilon <= 1.0
    for name in refused:
        with pytest.raises(BudgetError):
            desk.handle(desk.question(name))


def test_a_whole_plan_fits_a_cap_of_its_own_epsilon(open_desk, agreed):
    desk = open_desk(agreed)
    for name in QUESTIONS:
        desk.handle(desk.question(name))
    assert 0.99 * 3.0 < desk.ledger.spent(1e-5).epsilon <= 3.0


def test_a_full_ledger_draws_nothing(open_desk, agreed, monkeypatch):
    def full(*_, **__):
        raise LedgerError("no space left")

    desk = open_desk(agreed)
    monkeypatch.setattr(Ledger, "charge", full)
    with pytest.raises(LedgerError):
        desk.handle(desk.question("counts"))
    assert desk.log == []


def test_the_answer_carries_a_signed_head_with_the_charge_in_it(open_desk, agreed):
    desk = open_desk(agreed)
    answer = decode_answer(desk.handle(desk.question("counts")))
    signed = head_from_json(answer.head)
    charge = next(iter(desk.ledger.charges()))
    assert signed.head.site == "s"
    assert signed.head.seq == charge.seq
    verify(desk.ledger.path, trusted_heads=[signed.head])


def test_noise_is_asked_for_by_site_and_question(open_desk, agreed):
    """Each answer has a source of its own: the guard never hands one source to two questions."""
    asked = []

    def noise(site, question_sha256):
        asked.append((site, question_sha256))
        return SystemNoise()

    desk = open_desk(agreed, noise=noise)
    for name in QUESTIONS[:3]:
        desk.handle(desk.question(name))
    assert asked == [("s", digest(desk.question(name))) for name in QUESTIONS[:3]]


def test_a_stored_answer_that_was_altered_is_not_sent(open_desk, agreed):
    desk = open_desk(agreed)
    data = desk.handle(desk.question("counts"))
    with contextlib.closing(sqlite3.connect(desk.ledger.path)) as file, file:
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            file.execute(f"DROP TRIGGER {name}")
        file.execute("UPDATE answers SET data = ?", (data[:-1] + b"!",))
    desk.log.clear()
    with pytest.raises(LedgerError):
        desk.handle(desk.question("counts"))
    assert desk.log == []
