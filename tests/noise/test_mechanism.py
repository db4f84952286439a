import logging
import math

import numpy as np
import pytest

from patevolve.shared.errors import ParameterError, UnsupportedEventError
from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.noise.discrete_laplace import DiscreteLaplaceMechanism
from patevolve.shared.noise.distributed import DiscreteGaussianShare
from patevolve.shared.noise.mechanism import UnsafeNoNoise, add_noise, delta_from_distance
from patevolve.shared.noise.skellam import SkellamMechanism
from patevolve.shared.privacy import accountant, events
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.tally import ExactTally, NoisyTally

MECHANISMS = [
    DiscreteGaussianMechanism(sigma=40.0, l2=2.0),
    DiscreteLaplaceMechanism(scale=20.0, l1=3.0),
    SkellamMechanism(variance=1600.0, l1=3.0, l2=2.0),
    DiscreteGaussianShare(total_sigma=40.0, sites=6, dropouts=1, colluders=1, l1=3.0, l2=2.0, dimension=1000),
]
BAD = [math.nan, math.inf, -1.0, 0.0, 5e-324, True, "1", None]


def tally(values, l1=1.0, l2=1.0):
    return ExactTally(values=np.asarray(values, dtype=np.int64), l1=l1, l2=l2)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_a_release_adds_noise_and_leaves_the_exact_tally_alone(mechanism):
    exact = tally(np.arange(1000))
    noisy = mechanism.release(exact, SystemNoise())
    assert isinstance(noisy, NoisyTally)
    assert noisy.values.dtype == np.int64
    assert noisy.values.shape == (1000,)
    assert np.array_equal(exact.values, np.arange(1000))
    assert not np.shares_memory(noisy.values, exact.values)
    assert noisy.std == mechanism.std > 0
    assert np.count_nonzero(noisy.values - exact.values) > 900
    assert not mechanism.unsafe


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_an_event_is_known_to_the_ledger_and_counts_releases(mechanism):
    event = mechanism.event(count=3)
    assert events.from_record(events.to_record(event)) == event
    assert accountant.rdp(event) == pytest.approx(3 * accountant.rdp(mechanism.event()), rel=1e-12)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_the_bias_charged_to_delta_is_positive_and_negligible(mechanism):
    assert 0.0 < mechanism.delta(1) < mechanism.delta(1000) < 1e-9
    assert mechanism.delta(1000, 1.0) == pytest.approx(mechanism.delta(1000, 0.0) * (1 + math.e) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("mechanism", "l1", "l2"),
    [
        (MECHANISMS[0], 1.0, 2.0001),
        (MECHANISMS[1], 3.0001, 1.0),
        (MECHANISMS[2], 3.0001, 1.0),
        (MECHANISMS[2], 1.0, 2.0001),
        (MECHANISMS[3], 3.0001, 1.0),
        (MECHANISMS[3], 1.0, 2.0001),
        *((mechanism, 1.0, math.nan) for mechanism in MECHANISMS),
        *((mechanism, math.nan, 1.0) for mechanism in MECHANISMS),
        *((mechanism, -1.0, 1.0) for mechanism in MECHANISMS),
    ],
)
def test_a_tally_beyond_the_assumed_sensitivity_is_refused(mechanism, l1, l2):
    with pytest.raises(ParameterError):
        mechanism.release(tally([1, 2], l1=l1, l2=l2), SystemNoise())


def test_each_mechanism_ignores_the_bound_that_it_does_not_use():
    MECHANISMS[0].release(tally([1], l1=1e9, l2=2.0), SystemNoise())
    MECHANISMS[1].release(tally([1], l1=3.0, l2=1e9), SystemNoise())


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, dtype=np.float64),
        np.zeros(3, dtype=np.float16),
        np.zeros(3, dtype=np.int32),
        np.zeros(3, dtype=np.uint64),
        np.zeros((3, 2), dtype=np.int64),
        np.array([2**62], dtype=np.int64),
        np.array([-(2**63)], dtype=np.int64),
    ],
    ids=lambda v: f"{v.dtype}-{v.shape}",
)
def test_values_that_would_lose_noise_or_wrap_are_refused(values):
    for mechanism in MECHANISMS:
        with pytest.raises(ParameterError):
            mechanism.release(ExactTally(values=values, l1=1.0, l2=1.0), SystemNoise())


def test_noise_of_another_shape_or_size_is_refused():
    with pytest.raises(ParameterError):
        add_noise(tally([1, 2, 3]), np.zeros(1, dtype=np.int64), 1.0)
    with pytest.raises(ParameterError):
        add_noise(tally([1]), np.array([2**62], dtype=np.int64), 1.0)


def test_an_empty_tally_is_an_empty_release():
    assert MECHANISMS[0].release(tally([]), SystemNoise()).values.shape == (0,)


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize(
    "build",
    [
        lambda bad: DiscreteGaussianMechanism(sigma=bad, l2=1.0),
        lambda bad: DiscreteGaussianMechanism(sigma=40.0, l2=bad),
        lambda bad: DiscreteLaplaceMechanism(scale=bad, l1=1.0),
        lambda bad: DiscreteLaplaceMechanism(scale=20.0, l1=bad),
        lambda bad: SkellamMechanism(variance=bad, l1=1.0, l2=1.0),
        lambda bad: SkellamMechanism(variance=1600.0, l1=bad, l2=1.0),
        lambda bad: SkellamMechanism(variance=1600.0, l1=1.0, l2=bad),
    ],
)
def test_parameters_outside_their_domain_are_refused_before_anything_is_charged(build, bad):
    with pytest.raises(ParameterError):
        build(bad)


def test_no_noise_says_so(caplog):
    mechanism = UnsafeNoNoise()
    with caplog.at_level(logging.WARNING):
        noisy = mechanism.release(tally([5, 6], l1=1e9, l2=1e9), SystemNoise())
    assert noisy.values.tolist() == [5, 6]
    assert noisy.std == 0.0
    assert "nobody is protected" in caplog.text
    assert "5" not in caplog.text
    assert mechanism.unsafe
    assert mechanism.delta(1) == 1.0
    with pytest.raises(UnsupportedEventError):
        mechanism.event()
    with pytest.raises(UnsupportedEventError):
        accountant.compose([mechanism])


def test_delta_of_a_distance():
    assert delta_from_distance(1e-30, 0.0) == 2e-30
    assert delta_from_distance(1e-30, 100.0) == 1.0  # (1 + e^100)·1e-30 is more
    assert delta_from_distance(1e-30, 3000.0) == 1.0
    assert delta_from_distance(0.0, 3000.0) == 0.0
    with pytest.raises(ParameterError):
        delta_from_distance(1e-30, math.nan)
