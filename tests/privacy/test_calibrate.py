import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant, calibrate
from patevolve.shared.privacy.accountant import ORDERS
from patevolve.shared.privacy.events import DiscreteGaussian, SubsampledGaussian

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text())
EPSILONS = st.floats(1e-3, 100.0)
DELTAS = st.floats(1e-12, 0.1)


@pytest.mark.parametrize("row", [pytest.param(r, id=f"s{r['sigma']}-e{r['budget']}") for r in VECTORS["q_max"]])
def test_how_many_queries_fit(row):
    event = DiscreteGaussian(sigma=row["sigma"], l2=math.sqrt(2))
    assert calibrate.q_max(event, row["budget"], row["delta"]) == row["rdp"]
    assert calibrate.q_max_naive(event, row["budget"], row["delta"]) == row["naive"]


@settings(deadline=None, max_examples=200)
@given(epsilon=EPSILONS, delta=DELTAS)
def test_rho_never_exceeds_the_budget_and_wastes_none(epsilon, delta):
    rho = calibrate.rho_for(epsilon, delta)
    assert rho > 0.0
    assert accountant.epsilon(np.array(ORDERS) * rho, delta).epsilon <= epsilon
    assert accountant.epsilon(np.array(ORDERS) * rho * (1 + 1e-9), delta).epsilon > epsilon


@settings(deadline=None, max_examples=100)
@given(epsilon=EPSILONS, delta=DELTAS, l2=st.floats(0.1, 1e6), count=st.integers(1, 10**6))
def test_sigma_never_exceeds_the_budget_and_wastes_none(epsilon, delta, l2, count):
    sigma = calibrate.sigma_for(epsilon, delta, l2, count)
    curve = accountant.rdp(DiscreteGaussian(sigma=sigma, l2=l2, count=count))
    assert accountant.epsilon(curve, delta).epsilon <= epsilon
    less = accountant.rdp(DiscreteGaussian(sigma=sigma * (1 - 1e-9), l2=l2, count=count))
    assert accountant.epsilon(less, delta).epsilon > epsilon


@settings(deadline=None, max_examples=50)
@given(rho=st.floats(1e-9, 1e6))
def test_a_noise_multiplier_costs_at_most_its_rho(rho):
    multiplier = calibrate.gaussian_noise_multiplier(rho)
    assert 1 / (2 * multiplier**2) <= rho
    assert multiplier == pytest.approx(math.sqrt(1 / (2 * rho)), rel=1e-12)


def test_more_budget_buys_less_noise():
    sigmas = [calibrate.sigma_for(epsilon, 1e-5, 1.0) for epsilon in (0.1, 0.5, 1.0, 2.0, 8.0)]
    assert sigmas == sorted(sigmas, reverse=True)


def test_no_query_fits_a_budget_that_one_exceeds():
    assert calibrate.q_max(SubsampledGaussian(noise_multiplier=0.3, sample_rate=1.0, steps=1), 0.5, 1e-5) == 0


def test_an_unbounded_count_is_refused():
    with pytest.raises(ParameterError):
        calibrate.q_max(DiscreteGaussian(sigma=1e12, l2=1.0), 1.0, 1e-5)
    with pytest.raises(ParameterError):
        calibrate.q_max_naive(DiscreteGaussian(sigma=1e12, l2=1.0), 1.0, 1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 5e-324, True, "1", None], ids=repr)
def test_parameters_outside_their_domain_are_refused(bad):
    for call in (
        lambda: calibrate.rho_for(bad, 1e-5),
        lambda: calibrate.rho_for(1.0, bad),
        lambda: calibrate.gaussian_noise_multiplier(bad),
        lambda: calibrate.sigma_for(1.0, 1e-5, bad),
        lambda: calibrate.sigma_for(1.0, 1e-5, 1.0, bad),
        lambda: calibrate.q_max(DiscreteGaussian(sigma=1.0, l2=1.0), bad, 1e-5),
    ):
        with pytest.raises(ParameterError):
            call()
