"""The site's ledger: what it accepts, refuses, keeps and shows."""

from __future__ import annotations

import json
import math
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
