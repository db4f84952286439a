import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError, UnsupportedEventError
from patevolve.shared.privacy import accountant, filters
from patevolve.shared.privacy.accountant import ORDERS
from patevolve.shared.privacy.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    SmoothSensitivityRelease,
    SubsampledGaussian,
)
from patevolve.shared.privacy.filters import FixedOrderFilter, ZcdpFilter

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text())
EPSILONS = st.floats(0.01, 50.0)
DELTAS = st.floats(1e-10, 0.01)
CHARGES = st.lists(
    st.one_of(
        st.builds(DiscreteGaussian, sigma=st.floats(1.0, 100.0), l2=st.floats(0.1, 5.0), count=st.integers(1, 5)),
        st.builds(Exponential, epsilon=st.floats(0.01, 1.0)),
        st.builds(DiscreteLaplace, scale=st.floats(1.0, 50.0), l1=st.floats(0.5, 3.0)),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=100)
@given(epsilon=EPSILONS, delta=DELTAS, charges=CHARGES)
def test_what_a_filter_admits_stays_within_its_guarantee(epsilon, delta, charges):
    guard = FixedOrderFilter(epsilon=epsilon, delta=delta)
    spent, admitted = 0.0, []
    for charge in charges:
        if guard.allows(spent, charge):
            spent = guard.spend(spent, charge)
            admitted.append(charge)
    curve = accountant.compose(admitted, [guard.order])
    assert accountant.epsilon(curve, delta, [guard.order]).epsilon <= epsilon
    assert accountant.epsilon(accountant.compose(admitted), delta).epsilon <= epsilon


@settings(deadline=None, max_examples=100)
@given(epsilon=EPSILONS, delta=DELTAS)
def test_the_order_depends_on_the_cap_alone_and_affords_the_largest_rho(epsilon, delta):
    guard = FixedOrderFilter(epsilon=epsilon, delta=delta)
    assert guard == FixedOrderFilter(epsilon=epsilon, delta=delta)
    affordable = guard.budget / guard.order
    assert affordable == pytest.approx(filters.zcdp_filter(epsilon, delta).budget, rel=1e-9)
    assert guard.order in ORDERS


def test_a_filter_wastes_no_gaussian_budget():
    guard = FixedOrderFilter(epsilon=1.0, delta=1e-5)
    event = DiscreteGaussian(sigma=40.0, l2=math.sqrt(2))
    spent, admitted = 0.0, 0
    while guard.allows(spent, event):
        spent, admitted = guard.spend(spent, event), admitted + 1
    assert admitted == 48  # as many as a plan fixed beforehand may ask (test_calibrate, sigma 40, budget 1)


@pytest.mark.parametrize("spent", [math.nan, math.inf])
def test_nan_and_infinity_mean_stop(spent):
    event = DiscreteGaussian(sigma=1e6, l2=1.0)
    assert not FixedOrderFilter(epsilon=1.0, delta=1e-5).allows(spent, event)
    assert not ZcdpFilter(budget=1.0).allows(spent, event)


def test_nothing_is_refunded():
    event = DiscreteGaussian(sigma=40.0, l2=1.0)
    for guard in (FixedOrderFilter(epsilon=1.0, delta=1e-5), ZcdpFilter(budget=1.0)):
        with pytest.raises(ParameterError, match="refunded"):
            guard.allows(-1e-9, event)


def test_a_release_whose_bound_does_not_reach_the_order_never_fits():
    guard = FixedOrderFilter(epsilon=1.0, delta=1e-5)
    assert not guard.allows(0.0, SmoothSensitivityRelease(beta=0.4, sigma=1e6))


def test_opendp_admits_as_many():
    row = next(row for row in VECTORS["opendp"] if row["id"] == "filter_rho0.01_sigma40")
    guard, event = ZcdpFilter(budget=0.01), DiscreteGaussian(sigma=40.0, l2=math.sqrt(2))
    spent, admitted = 0.0, 0
    while guard.allows(spent, event):
        spent, admitted = guard.spend(spent, event), admitted + 1
    assert admitted == row["accepted"]


def test_events_without_a_rho_are_not_priced_by_guesswork():
    for event in (
        DiscreteLaplace(scale=1.0, l1=1.0),
        SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.5, steps=1),
    ):
        with pytest.raises(UnsupportedEventError):
            ZcdpFilter(budget=1.0).allows(0.0, event)


@pytest.mark.parametrize("event", [DiscreteGaussian(sigma=3.0, l2=2.0, count=4), Exponential(epsilon=0.3, count=2)])
def test_a_rho_bounds_the_whole_curve(event):
    line = filters.rho(event) * np.array(ORDERS)
    assert np.all(accountant.rdp(event) <= line * (1 + 1e-12))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1", None], ids=repr)
def test_caps_outside_their_domain_are_refused(bad):
    for call in (
        lambda: FixedOrderFilter(epsilon=bad, delta=1e-5),
        lambda: FixedOrderFilter(epsilon=1.0, delta=bad),
        lambda: ZcdpFilter(budget=bad),
    ):
        with pytest.raises(ParameterError):
            call()


def test_a_delta_of_one_is_refused():
    with pytest.raises(ParameterError):
        FixedOrderFilter(epsilon=1.0, delta=1.0)
