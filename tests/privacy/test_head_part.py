"""What a head may spend: never more than the plan, nor than a ledger whose cap is the plan's ε would pay."""

import math

import numpy as np
import pytest

from patevolve.shared.errors import PlanError
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.budget import Cap
from patevolve.shared.privacy.head_part import head_events, head_part
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.schedule import schedule


@pytest.fixture(scope="module")
def agreed(two_digits):
    return vary(two_digits, {"encoder.head.share": 0.6, "questions.counts.share": 0.1})


def composed(plan):
    events = [*(ask.event for ask in schedule(plan, 100)), *head_events(plan)]
    return accountant.epsilon(accountant.compose(events), plan.privacy.delta).epsilon


def test_epsilon_is_never_above_the_plan_and_the_ledger_pays_for_every_step(agreed, tmp_path):
    """Over 50 random (units, batches, steps, ε, share)."""
    rng = np.random.default_rng(20261130)
    for number in range(50):
        units, steps = int(rng.integers(1, 2000)), int(rng.integers(1, 40))
        batches = rng.integers(1, 2 * units + 1, size=int(rng.integers(0, min(3, steps) + 1))).tolist()
        changes = {
            "privacy.epsilon": float(np.exp(rng.uniform(np.log(0.2), np.log(10)))),
            "sites.expected_units": units,
            "encoder.head.share": round(float(rng.uniform(0.05, 0.6)), 2),
            "encoder.head.steps": steps,
            "encoder.head.batch": batches,
        }
        plan = vary(agreed, changes).plan
        assert composed(plan) <= plan.privacy.epsilon
        part = head_part(plan)
        cap = Cap(epsilon=plan.privacy.epsilon, delta=plan.privacy.delta)
        events = [*(ask.event for ask in schedule(plan, 100)), *part.charges]
        assert len(part.charges) == steps
        with Ledger.create(tmp_path / f"{number}.sqlite", site="a") as ledger:
            assert ledger.affords(events, cap), changes


def test_without_sampling_the_head_gets_exactly_its_share(agreed):
    part = head_part(agreed.plan)
    from patevolve.shared.privacy.calibrate import rho_for

    rho = rho_for(4.0, 1e-6)
    assert part.rates == (1.0,) * 10
    assert 10 / (2 * part.noise_multiplier**2) == pytest.approx(0.6 * rho, rel=1e-5)
    assert composed(agreed.plan) == pytest.approx(4.0, rel=1e-4)


def test_smaller_batches_need_less_noise_for_each_step(agreed):
    whole = head_part(agreed.plan).noise_multiplier
    small = head_part(vary(agreed, {"encoder.head.batch": [30]}).plan)
    assert small.rates == (0.1,) * 10
    assert small.noise_multiplier < 0.7 * whole


def test_schedules_hold_for_equal_stretches(agreed):
    plan = vary(agreed, {"encoder.head.batch": [30, 60], "encoder.head.steps": 4}).plan
    part = head_part(plan)
    assert part.batches == pytest.approx((30, 30, 60, 60))
    assert [event.steps for event in part.events] == [2, 2]


def test_a_plan_without_a_head_has_no_part(two_digits):
    assert head_part(two_digits.plan) is None
    assert head_events(two_digits.plan) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder.head.share": 0.7}, "add up to 1.1"),
        ({"encoder.head.share": 1.0}, "below 1"),
        ({"encoder.head.share": -0.1}, "share"),
        ({"encoder.head.share": math.nan}, "share"),
        ({"encoder.head.share": 0.0, "encoder.head.steps": 3}, "without a share"),
        ({"encoder.head.steps": 0}, "steps"),
        ({"encoder.head.batch": [0]}, "batch"),
        ({"encoder.head.clip": 0.0}, "clip"),
        ({"encoder.head.clip": 0.05}, "0.1 or more"),
        ({"encoder.head.temperature": [0.01]}, "0.05 to 10"),
        ({"encoder.head.rate": math.inf}, "rate"),
        ({"encoder.head.supervised": 1.5}, "weight from 0 to 1"),
        ({"encoder.head.views": 1}, "views"),
        ({"encoder.head.steps": 1, "encoder.head.batch": [3, 4]}, "longer than its 1 steps"),
        ({"encoder.head.learning": 1.0}, "unknown key 'learning'"),
        ({"questions.neighbours": None}, "nothing would use it"),
        ({"generator.kind": "pool", "generator.asset": "a" * 64}, "draws without any"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(agreed, changes, words):
    with pytest.raises(PlanError, match=words):
        vary(agreed, changes)
