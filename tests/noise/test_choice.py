"""Several choices as one answer: its form, its cost, and what it refuses."""

import numpy as np
import pytest

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise.choice import ChoiceMechanism
from patevolve.shared.noise.exponential import ExponentialMechanism
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import Exponential
from patevolve.shared.privacy.viewers import scaled
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.tally import ExactTally


def tally(values, linf=1.0):
    return ExactTally(values=np.asarray(values, np.int64), l1=99.0, l2=99.0, linf=linf)


def test_every_group_costs_a_choice():
    mechanism = ChoiceMechanism(epsilon=0.3, change=1.0, groups=(2, 3))
    assert mechanism.event(count=4) == Exponential(epsilon=0.3, count=8)
    assert mechanism.std == 0.0
    assert not mechanism.unsafe
    assert mechanism.delta(5) == ExponentialMechanism(epsilon=0.3, change=1.0).delta(5)


def test_choices_are_counted_over_many_draws(alpha):
    """One of two scores an ε apart, 4,000 times: within what a binomial of the exact probability allows."""
    mechanism = ChoiceMechanism(epsilon=2.0, change=1.0, groups=(2, 1))
    hits = sum(mechanism.release(tally([1, 0, 5]), SystemNoise()).values[0] for _ in range(4000))
    share = np.e / (1 + np.e)
    bound = np.sqrt(np.log(2 / alpha) / 2 / 4000)  # Hoeffding
    assert abs(hits / 4000 - share) < bound


@pytest.mark.parametrize(
    "call",
    [
        lambda: ChoiceMechanism(epsilon=0.0, change=1.0, groups=(2,)),
        lambda: ChoiceMechanism(epsilon=1.0, change=1.0, groups=()),
        lambda: ChoiceMechanism(epsilon=1.0, change=1.0, groups=(2, 0)),
        lambda: ChoiceMechanism(epsilon=1.0, change=1.0, groups=(2,)).release(tally([1, 2, 3]), SystemNoise()),
        lambda: ChoiceMechanism(epsilon=1.0, change=1.0, groups=(2,)).release(tally([1, 2], 1.5), SystemNoise()),
        lambda: ChoiceMechanism(epsilon=1.0, change=1.0, groups=(2,)).release(tally([1, 2], np.nan), SystemNoise()),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(call):
    with pytest.raises(ParameterError):
        call()


def test_a_group_of_units_costs_a_range_as_many_times_as_wide():
    event = Exponential(epsilon=0.1, count=3)
    assert scaled(event, 4) == Exponential(epsilon=0.4, count=3)
    assert accountant.compose([scaled(event, 2)])[0] == pytest.approx(4 * accountant.compose([event])[0])
