import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise.exponential import ExponentialMechanism
from patevolve.shared.privacy.events import Exponential
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.tally import ExactTally

TOTAL = 1 << 128


class Word:
    """A source of one 128-bit number."""

    def __init__(self, value):
        self.value = value

    def read(self, count):
        return self.value.to_bytes(count, "little")


def tally(values, bound=1.0):
    return ExactTally(values=np.asarray(values, dtype=np.int64), l1=bound, l2=bound)


def law(mechanism, scores):
    """Return the exact probabilities of each index, by bisection over the 2^128 equally likely draws."""
    borders = []
    for index in range(len(scores) - 1):
        low, high = 0, TOTAL  # the first draw that chooses an index beyond ``index``
        while low < high:
            middle = (low + high) // 2
            beyond = middle < TOTAL and mechanism.choose(tally(scores), Word(middle)) > index
            low, high = (low, middle) if beyond else (middle + 1, high)
        borders.append(min(low, TOTAL))
    ends = [0, *borders, TOTAL]
    return [Fraction(b - a, TOTAL) for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize(("monotone", "halves"), [(False, 2), (True, 1)])
def test_the_law_is_the_exponential_of_the_scores(monotone, halves):
    scores = [10, 7, 12, 12, -40]
    mechanism = ExponentialMechanism(epsilon=0.8, change=2.0, monotone=monotone)
    weights = np.exp(0.8 / 2.0 / halves * np.array(scores, dtype=float))
    assert [float(p) for p in law(mechanism, scores)] == pytest.approx((weights / weights.sum()).tolist(), rel=1e-12)


@settings(deadline=None, max_examples=15)
@given(
    scores=st.lists(st.integers(-30, 30), min_size=2, max_size=4),
    moves=st.lists(st.integers(-1, 1), min_size=4, max_size=4),
    epsilon=st.floats(0.05, 3.0),
)
def test_neighbours_differ_by_a_range_of_at_most_epsilon(scores, moves, epsilon):
    mechanism = ExponentialMechanism(epsilon=epsilon)
    other = [score + move for score, move in zip(scores, moves, strict=False)]
    pairs = [(p, q) for p, q in zip(law(mechanism, scores), law(mechanism, other), strict=True) if p and q]
    losses = [math.log(p / q) for p, q in pairs]
    # Probabilities are rounded to 2⁻¹²⁶ of the whole; what that adds to the loss of a rare choice is charged to δ.
    rounding = 2.0**-124 / float(min(min(pair) for pair in pairs))
    assert max(losses) - min(losses) <= epsilon + 1e-9 + rounding
    assert max(map(abs, losses)) <= epsilon + 1e-9 + rounding


@settings(deadline=None, max_examples=15)
@given(
    scores=st.lists(st.integers(0, 30), min_size=2, max_size=4),
    moves=st.lists(st.integers(0, 1), min_size=4, max_size=4),
)
def test_monotone_scores_spend_the_range_without_the_factor_two(scores, moves):
    mechanism = ExponentialMechanism(epsilon=1.0, monotone=True)
    other = [score + move for score, move in zip(scores, moves, strict=False)]
    losses = [math.log(p / q) for p, q in zip(law(mechanism, scores), law(mechanism, other), strict=True)]
    assert max(losses) - min(losses) <= 1.0 + 1e-9


def test_a_forgotten_factor_two_is_seen():
    """The planted twin: scores that move both ways under the monotone exponent exceed their range."""
    mechanism = ExponentialMechanism(epsilon=1.0, monotone=True)
    losses = [math.log(p / q) for p, q in zip(law(mechanism, [5, 5]), law(mechanism, [6, 4]), strict=True)]
    assert max(losses) - min(losses) > 1.9


def test_choices_without_replacement_differ():
    mechanism = ExponentialMechanism(epsilon=5.0)
    chosen = mechanism.choose_many(tally([100, 0, 50, 80]), 4, SystemNoise())
    assert sorted(chosen.tolist()) == [0, 1, 2, 3]
    assert chosen.tolist()[0] == 0
    assert mechanism.event(count=4) == Exponential(epsilon=5.0, count=4)


def test_hopeless_scores_are_charged_to_delta():
    mechanism = ExponentialMechanism(epsilon=2.0)
    assert mechanism.choose(tally([0, 10**6]), Word(0)) == 1
    assert 0.0 < mechanism.delta(1000) < 1e-9


@pytest.mark.parametrize(
    "call",
    [
        lambda: ExponentialMechanism(epsilon=math.nan),
        lambda: ExponentialMechanism(epsilon=0.0),
        lambda: ExponentialMechanism(epsilon=True),
        lambda: ExponentialMechanism(epsilon=1.0, change=math.inf),
        lambda: ExponentialMechanism(epsilon=1.0, monotone=1),
        lambda: ExponentialMechanism(epsilon=1.0).choose(tally([]), SystemNoise()),
        lambda: ExponentialMechanism(epsilon=1.0).choose(tally([1, 2], bound=1.5), SystemNoise()),
        lambda: ExponentialMechanism(epsilon=1.0).choose(tally([1, 2], bound=math.nan), SystemNoise()),
        lambda: ExponentialMechanism(epsilon=1.0).choose_many(tally([1, 2]), 3, SystemNoise()),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(call):
    with pytest.raises(ParameterError):
        call()
