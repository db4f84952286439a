import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError, UnsupportedEventError
from patevolve.shared.privacy import accountant, divergences, masses
from patevolve.shared.privacy.accountant import ORDERS, compose, epsilon, epsilon_classic, rdp
from patevolve.shared.privacy.events import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    DiscreteLaplace,
    Exponential,
    LaplaceNoisyMax,
    Skellam,
    SmoothSensitivityRelease,
    SubsampledGaussian,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text())
GRID = np.array(ORDERS)
RTOL = 1e-6
BAD = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 1.5, 5e-324, True, "1e-5", None]


def by_id(rows):
    return [pytest.param(row, id=row.get("id") or f"{row['sens'][:4]}-s{row['sigma']}-q{row['q']}") for row in rows]


def lengths(row):
    return (2.0, math.sqrt(2.0)) if row["sens"].startswith("vote") else (1.0, 1.0)


def optimum(curve, delta=1e-5):
    return epsilon(curve, delta).epsilon


@pytest.mark.parametrize("row", by_id(VECTORS["conversion"]))
def test_conversion_of_zcdp(row):
    best = epsilon(GRID * row["rho"], row["delta"])
    assert best.epsilon == pytest.approx(row["bbghs_cks_grid"], rel=RTOL)
    assert best.order == row["order"]
    assert epsilon_classic(GRID * row["rho"], row["delta"]).epsilon == pytest.approx(row["classic_grid"], rel=RTOL)


@pytest.mark.parametrize("row", by_id(VECTORS["eps_table_delta_1e5"]))
def test_table_of_published_bounds(row):
    l1, l2 = lengths(row)
    sigma, q = row["sigma"], row["q"]
    gauss = rdp(DiscreteGaussian(sigma=sigma, l2=l2, count=q))
    skellam = rdp(Skellam(variance=sigma**2, l1=l1, l2=l2, count=q))
    assert optimum(gauss) == pytest.approx(row["gauss_rdp"][0], rel=RTOL)
    assert optimum(skellam) == pytest.approx(row["skellam_rdp_bound"][0], rel=RTOL)
    share = sigma / math.sqrt(10)
    assert divergences.kls_tau(share, 10) == pytest.approx(row["tau"], rel=RTOL, abs=1e-300)
    for dimension in (10, 1000):
        bound = divergences.gaussian_sum(GRID, share_sigma=share, shares=10, l2=l2, l1=l1, dimension=dimension)
        assert optimum(q * bound) == pytest.approx(row[f"ddg10_rdp_bound_d{dimension}"][0], rel=RTOL)


@pytest.mark.parametrize("row", by_id(VECTORS["eps_table_delta_1e5"]))
def test_table_of_exact_divergences(row):
    _, l2 = lengths(row)
    sigma, q = row["sigma"], row["q"]
    orders = [order for order in ORDERS if order <= 64]
    radius = 64 + 14 * sigma + 60
    repeats = q * round(l2**2)  # a vote moves by one in two coordinates
    skellam = masses.shift_divergence(masses.skellam(sigma**2, radius), 1, np.array(orders))
    assert epsilon(repeats * skellam, 1e-5, orders).epsilon == pytest.approx(row["skellam_rdp_exact"][0], rel=RTOL)
    if divergences.kls_tau(sigma / math.sqrt(10), 10) < 1e-30:
        logs = masses.discrete_gaussian(sigma, radius)
    else:
        logs = masses.gaussian_sum(sigma / math.sqrt(10), 10, radius)
    shares = masses.shift_divergence(logs, 1, np.array(orders))
    assert epsilon(repeats * shares, 1e-5, orders).epsilon == pytest.approx(row["ddg10_rdp_exact"][0], rel=RTOL)


@pytest.mark.parametrize("row", by_id(VECTORS["discrete_rdp"]))
def test_bounds_on_one_coordinate(row):
    sigma, shift, orders = float(row["sigma_total"]), float(row["shift"]), [float(a) for a in row["orders"]]
    gauss = rdp(DiscreteGaussian(sigma=sigma, l2=shift), orders)
    skellam = rdp(Skellam(variance=sigma**2, l1=shift, l2=shift), orders)
    event = DiscreteGaussianSum(share_sigma=sigma / math.sqrt(10), shares=10, l2=shift, l1=shift, dimension=1)
    assert gauss == pytest.approx(row["gaussian"], rel=RTOL)
    assert skellam == pytest.approx(row["skellam_bound"], rel=RTOL)
    assert rdp(event, orders) == pytest.approx(row["ddg10_kls_bound_d1"], rel=RTOL)
    # What is charged is never below what is exactly lost.
    assert np.all(skellam >= np.array(row["skellam_exact"]) * (1 - 1e-9))
    assert np.all(rdp(event, orders) >= np.array(row["ddg10_exact"]) * (1 - 1e-9))


@pytest.mark.parametrize("row", by_id(VECTORS["dpsgd"]))
def test_dpsgd(row):
    event = SubsampledGaussian(
        noise_multiplier=row["noise_multiplier"], sample_rate=row["sample_rate"], steps=row["steps"]
    )
    assert optimum(rdp(event), row["delta"]) == pytest.approx(row["dp_accounting_rdp"], rel=RTOL)


def test_golden_dpsgd_figures():
    sampled = optimum(rdp(SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=10)))
    # dp-accounting adds up the absolute values of an alternating series at fractional orders: 3.4416 is an upper
    # bound that the quadrature undercuts by 8e-5 (checked against an independent integration below).
    assert 3.4416 * (1 - 2e-4) < sampled <= 3.4416
    assert optimum(rdp(SubsampledGaussian(noise_multiplier=1.0, sample_rate=1.0, steps=10))) == pytest.approx(
        19.0536, abs=5e-5
    )


def test_opendp_zcdp_conversion():
    row = next(row for row in VECTORS["opendp"] if row["id"] == "zcdp_sigma40_sqrt2")
    curve = rdp(DiscreteGaussian(sigma=40.0, l2=math.sqrt(2)))
    assert curve == pytest.approx(row["rho"] * GRID, rel=1e-12)
    # OpenDP minimises over every real order; a fine grid about its optimum finds the same.
    orders = np.linspace(100.0, 250.0, 30_001)
    found = epsilon(row["rho"] * orders, 1e-5, orders.tolist()).epsilon
    assert found == pytest.approx(row["eps_1e5"], rel=RTOL)
    assert found <= optimum(curve) <= found * 1.001


def test_opendp_noisy_max():
    row = next(row for row in VECTORS["opendp"] if row["id"] == "noisy_max_gumbel_scale20")
    curve = rdp(Exponential(epsilon=row["pure_eps"]))
    assert curve[:60] == pytest.approx(row["rho"] * GRID[:60], rel=RTOL)
    assert curve.max() == row["pure_eps"]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["id"]) for row in VECTORS["pate"] if row["id"].startswith("gnss_rdp")]
)
def test_smooth_sensitivity_release(row):
    event = SmoothSensitivityRelease(beta=row["beta"], sigma=row["sigma"])
    assert rdp(event, [row["order"]])[0] == pytest.approx(row["rdp"], rel=RTOL)
    assert rdp(event, [1.01 / (2 * row["beta"])])[0] == math.inf


# ---- conversion and composition -------------------------------------------------------------------------------------


def test_no_events_cost_exactly_nothing():
    curve = compose([])
    assert not curve.any()
    assert epsilon(curve, 1e-5).epsilon == 0.0
    assert accountant.delta(curve, 0.0) == 0.0


def test_a_forgotten_root_of_two_shows():
    curve = rdp(DiscreteGaussian(sigma=40.0, l2=math.sqrt(2), count=1000))
    assert optimum(curve) == pytest.approx(5.378, abs=5e-4)
    forgotten = rdp(DiscreteGaussian(sigma=40.0, l2=1.0, count=1000))
    assert optimum(forgotten) == pytest.approx(3.617, abs=5e-4)


def test_a_large_delta_is_clamped_and_never_refunds():
    assert epsilon(rdp(DiscreteGaussian(sigma=40.0, l2=1.0)), 0.5).epsilon == 0.0
    assert epsilon_classic(np.zeros(len(ORDERS)), 0.5).epsilon > 0.0


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_delta_outside_its_domain_is_refused(bad):
    curve = rdp(DiscreteGaussian(sigma=40.0, l2=1.0))
    for convert in (epsilon, epsilon_classic):
        with pytest.raises(ParameterError):
            convert(curve, bad)


@pytest.mark.parametrize(
    "orders", [[], [1], [1.0, 2.0], [math.inf], [math.nan], [0.5], [-2.0], [True], ["2"], [2, None]]
)
def test_orders_without_meaning_are_refused(orders):
    event = DiscreteGaussian(sigma=40.0, l2=1.0)
    for call in (lambda: rdp(event, orders), lambda: compose([event], orders), lambda: compose([], orders)):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(ParameterError):
        epsilon(np.zeros(len(orders)), 1e-5, orders)


@pytest.mark.parametrize("value", [math.nan, -1e-9, -math.inf])
def test_a_curve_with_nan_or_negative_values_stops(value):
    curve = rdp(DiscreteGaussian(sigma=40.0, l2=1.0)).copy()
    curve[7] = value
    for call in (
        lambda: epsilon(curve, 1e-5),
        lambda: epsilon_classic(curve, 1e-5),
        lambda: accountant.delta(curve, 1.0),
    ):
        with pytest.raises(ParameterError):
            call()


def test_a_curve_of_another_grid_is_refused():
    with pytest.raises(ParameterError):
        epsilon(np.zeros(3), 1e-5)


def test_an_infinite_curve_is_an_infinite_epsilon():
    assert epsilon(np.full(len(ORDERS), math.inf), 1e-5).epsilon == math.inf


def test_anything_that_is_no_event_is_refused_before_the_sum():
    with pytest.raises(UnsupportedEventError):
        compose([DiscreteGaussian(sigma=40.0, l2=1.0), {"kind": "discrete_gaussian"}])


def test_conversion_agrees_with_dp_accounting():
    library = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    for rho in (1e-8, 1e-4, 0.01, 0.3, 2.0, 50.0):
        for target in (1e-9, 1e-5, 1e-2, 0.3):
            theirs, _ = library.compute_epsilon(list(ORDERS), (rho * GRID).tolist(), target)
            assert epsilon(rho * GRID, target).epsilon == pytest.approx(theirs, rel=1e-12, abs=1e-12)
            for budget in (0.0, 0.1, 3.0):
                ours = accountant.delta(rho * GRID, budget)
                assert ours == pytest.approx(
                    library.compute_delta(list(ORDERS), (rho * GRID).tolist(), budget)[0], rel=1e-9
                )


def test_the_cost_of_composition_is_linear_in_distinct_events():
    """Ten thousand repetitions of two events take no more curve evaluations than two."""
    accountant._unit_curve.cache_clear()
    compose([DiscreteGaussian(sigma=40.0, l2=1.0), Exponential(epsilon=0.1)] * 5000)
    assert accountant._unit_curve.cache_info().misses == 2
    assert accountant._unit_curve.cache_info().hits == 0


def test_a_million_steps_and_tiny_noise_end():
    """A loop over a billion steps, or over 1/σ grid cells, would not end within the hour; each of these is instant."""
    for event in (
        SubsampledGaussian(noise_multiplier=0.01, sample_rate=0.1, steps=10),
        SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=10**6),
        SubsampledGaussian(noise_multiplier=1e-3, sample_rate=0.999, steps=10**9),
        SubsampledGaussian(noise_multiplier=1e4, sample_rate=1e-9, steps=1),
    ):
        curve = rdp(event)
        assert np.all(curve >= 0.0)
        assert np.isfinite(epsilon(curve, 1e-5).epsilon)


# ---- properties -----------------------------------------------------------------------------------------------------

SIGMAS = st.floats(min_value=0.3, max_value=1e5)
FAMILIES = [
    lambda scale, count: DiscreteGaussian(sigma=scale, l2=1.5, count=count),
    lambda scale, count: DiscreteGaussianSum(
        share_sigma=scale + 0.5, shares=5, l2=1.5, l1=2.0, dimension=8, count=count
    ),
    lambda scale, count: Skellam(variance=scale**2, l1=2.0, l2=1.5, count=count),
    lambda scale, count: DiscreteLaplace(scale=scale, l1=2.0, count=count),
    lambda scale, count: LaplaceNoisyMax(scale=scale, count=count),
    lambda scale, count: Exponential(epsilon=1 / scale, count=count),
    lambda scale, count: SubsampledGaussian(noise_multiplier=scale, sample_rate=0.03, steps=3, count=count),
    lambda scale, count: SmoothSensitivityRelease(beta=0.01, sigma=scale, count=count),
]


@settings(deadline=None, max_examples=40)
@given(scale=SIGMAS, factor=st.floats(1.001, 100.0), count=st.integers(1, 10**6), family=st.sampled_from(FAMILIES))
def test_epsilon_falls_as_noise_grows_and_rises_with_repetition(scale, factor, count, family):
    base, quieter = rdp(family(scale, count)), rdp(family(scale * factor, count))
    tolerance = 1e-9 * base[np.isfinite(base)]
    assert np.all(quieter[np.isfinite(base)] <= base[np.isfinite(base)] + tolerance)
    assert np.all(rdp(family(scale, count + 1)) >= base)
    assert optimum(quieter) <= optimum(base) * (1 + 1e-9)
    assert optimum(rdp(family(scale, count + 1))) >= optimum(base)


@settings(deadline=None, max_examples=40)
@given(scale=SIGMAS, family=st.sampled_from(FAMILIES[:-1]))
def test_a_divergence_never_falls_with_its_order(scale, family):
    # All but the smooth-sensitivity bound, which is loose, and so not monotone, near order 1.
    curve = rdp(family(scale, 1))
    finite = curve[np.isfinite(curve)]
    assert np.all(np.diff(finite) >= -1e-9 * finite[:-1])


@settings(deadline=None, max_examples=30)
@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=6), sigma=SIGMAS)
def test_repetition_equals_count(counts, sigma):
    apart = compose([DiscreteGaussian(sigma=sigma, l2=1.0, count=count) for count in counts])
    assert apart == pytest.approx(rdp(DiscreteGaussian(sigma=sigma, l2=1.0, count=sum(counts))), rel=1e-12)


@settings(deadline=None, max_examples=25)
@given(scale=st.floats(0.3, 30.0), shift=st.integers(1, 4), order=st.floats(1.05, 20.0))
def test_discrete_laplace_equals_the_brute_force_sum(scale, shift, order):
    k = np.arange(-4000, 4001)
    logs = -np.abs(k) / scale
    logs = logs - np.logaddexp.reduce(logs)
    exact = masses.shift_divergence(logs, shift, np.array([order]))[0]
    assert rdp(DiscreteLaplace(scale=scale, l1=float(shift)), [order])[0] == pytest.approx(exact, rel=1e-7, abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(scale=st.floats(0.3, 30.0), first=st.integers(1, 4), second=st.integers(1, 4))
def test_discrete_laplace_is_worst_on_one_coordinate(scale, first, second):
    apart = rdp(DiscreteLaplace(scale=scale, l1=float(first))) + rdp(DiscreteLaplace(scale=scale, l1=float(second)))
    assert np.all(apart <= rdp(DiscreteLaplace(scale=scale, l1=float(first + second))) * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize(
    ("sigma", "rate", "order"),
    [
        (0.3, 0.1, 4.6),
        (0.3, 1e-4, 1.7),
        (1.0, 0.1, 4.6),
        (1.0, 0.7, 1.0625),
        (1.0, 1e-4, 16.0),
        (5.0, 0.7, 9.9),
        (5.0, 1e-4, 1.0625),
    ],
)
def test_subsampled_gaussian_equals_an_independent_integration(sigma, rate, order):
    """A_α - 1 = E[(1+u)^α - 1 - αu] by 40-digit quadrature."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        s, q, a = mpmath.mpf(sigma), mpmath.mpf(rate), mpmath.mpf(order)

        def excess(z):
            u = q * mpmath.expm1((2 * z - 1) / (2 * s**2))
            return mpmath.npdf(z, 0, s) * ((1 + u) ** a - 1 - a * u)

        points = [-14 * s, -4 * s, 0, 4 * s, a, a + 5 * s, a + 14 * s]
        reference = mpmath.log1p(mpmath.quad(excess, sorted(points))) / (a - 1)
    ours = rdp(SubsampledGaussian(noise_multiplier=sigma, sample_rate=rate, steps=1), [order])[0]
    assert ours == pytest.approx(float(reference), rel=1e-7)


def test_sampling_amplifies_and_meets_the_gaussian():
    full = rdp(SubsampledGaussian(noise_multiplier=2.0, sample_rate=1.0, steps=1))
    nearly = rdp(SubsampledGaussian(noise_multiplier=2.0, sample_rate=1 - 1e-9, steps=1))
    assert np.all(nearly <= full * (1 + 1e-6))
    assert nearly == pytest.approx(full, rel=1e-6)
    assert np.all(rdp(SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.1, steps=1)) < full)


def test_fractional_orders_outside_the_quadrature_are_bounded_from_above():
    event = SubsampledGaussian(noise_multiplier=0.3, sample_rate=0.1, steps=1)
    low, middle, high = rdp(event, [12.0, 12.5, 13.0])
    assert low <= middle <= high
    assert 11.5 * middle == pytest.approx((11 * low + 12 * high) / 2, rel=1e-12)
