"""PATE's bounds against published values, against the exact divergence of the argmax, and on users' faults."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant, pate
from patevolve.shared.privacy.site_only import SiteOnly

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text(encoding="utf-8"))
RTOL = 1e-6
# The grid that the published composition rows name.
PUBLISHED_ORDERS = np.concatenate((np.arange(2, 101, 0.5), np.logspace(2, math.log10(500), 100)))


def rows(prefix: str) -> list:
    found = [row for row in VECTORS["pate"] if row["id"].startswith(prefix)]
    assert found, prefix
    return [pytest.param(row, id=row["id"]) for row in found]


@pytest.mark.parametrize("row", rows("gnmax_dataind"))
def test_gnmax_independent_rows(row):
    np.testing.assert_allclose(pate.gnmax_independent(row["sigma"], row["orders"]), row["rdp"], rtol=RTOL)


@pytest.mark.parametrize("row", rows("gnmax_h") + rows("gnmax_5000t") + rows("gnmax_20t"))
def test_gnmax_dependent_rows(row):
    log_q = pate.log_q_gaussian(row["counts"], row["sigma"])
    assert log_q[0] == pytest.approx(row["logq"], rel=RTOL)
    np.testing.assert_allclose(pate.gnmax_bound(log_q, row["sigma"], row["orders"])[0], row["rdp"], rtol=RTOL)
    if "rdp_dataind" in row:
        np.testing.assert_allclose(pate.gnmax_independent(row["sigma"], row["orders"]), row["rdp_dataind"], rtol=RTOL)


@pytest.mark.parametrize("row", rows("threshold"))
def test_threshold_rows(row):
    log_pr = pate.log_answered(row["counts"], row["T"], row["sigma1"])
    assert log_pr[0] == pytest.approx(row["log_pr_answered"], rel=RTOL)
    np.testing.assert_allclose(pate.threshold_bound(log_pr, row["sigma1"], row["orders"])[0], row["rdp"], rtol=RTOL)
    independent = pate.threshold_independent(row["sigma1"], row["orders"])
    np.testing.assert_allclose(independent, row["rdp_dataind"], rtol=RTOL)


@pytest.mark.parametrize("row", rows("lnmax"))
def test_lnmax_rows(row):
    scale = row["laplace_scale"]
    assert pate.lnmax_epsilon(scale) == pytest.approx(row["pure_eps"], rel=RTOL)
    log_q = pate.log_q_laplace(row["counts"], scale)
    assert log_q[0] == pytest.approx(row["logq"], rel=RTOL)
    np.testing.assert_allclose(pate.pure_bound(log_q, row["pure_eps"], row["orders"])[0], row["rdp"], rtol=RTOL)
    np.testing.assert_allclose(pate.lnmax_independent(scale, row["orders"]), row["rdp_dataind"], rtol=RTOL)


@pytest.mark.parametrize("row", rows("compose"))
def test_composition_rows_by_the_classic_conversion(row):
    if "counts" in row:
        log_q = pate.log_q_gaussian(row["counts"], row["sigma"])
        curve = pate.gnmax_bound(log_q, row["sigma"], PUBLISHED_ORDERS)[0]
    else:
        curve = pate.gnmax_independent(row["sigma"], PUBLISHED_ORDERS)
    result = accountant.epsilon_classic(row["queries"] * curve, row["delta"], PUBLISHED_ORDERS)
    assert result.epsilon == pytest.approx(row["eps"], rel=RTOL)
    assert result.order == pytest.approx(row["opt_order"], rel=RTOL)
    assert accountant.epsilon(row["queries"] * curve, row["delta"], PUBLISHED_ORDERS).epsilon < result.epsilon


@pytest.mark.parametrize("row", rows("confident"))
def test_confident_row(row):
    log_pr = pate.log_answered(row["counts"], row["T"], row["sigma1"])
    assert math.exp(log_pr[0]) == pytest.approx(row["pr_answered"], rel=RTOL)
    tests = pate.threshold_bound(log_pr, row["sigma1"], PUBLISHED_ORDERS)[0]
    log_q = pate.log_q_gaussian(row["counts"], row["sigma2"])
    answers = pate.gnmax_bound(log_q, row["sigma2"], PUBLISHED_ORDERS)[0]
    for share, eps, order in (
        (row["pr_answered"], row["eps_expected_cost"], row["order_expected"]),
        (1.0, row["eps_all_answered"], row["order_all"]),
    ):
        curve = row["queries"] * (tests + share * answers)
        result = accountant.epsilon_classic(curve, row["delta"], PUBLISHED_ORDERS)
        assert result.epsilon == pytest.approx(eps, rel=RTOL)
        assert result.order == pytest.approx(order, rel=RTOL)


def log_winners(counts: np.ndarray, sigma: float) -> np.ndarray:
    """Return log Pr[argmax(counts + N(0, σ²)) = j] by the trapezoid rule, which is spectrally exact for Gaussians."""
    c = np.asarray(counts, dtype=np.float64)
    x = np.linspace(c.min() - 12 * sigma, c.max() + 12 * sigma, 1600)[:, None]
    below = special.log_ndtr((x - c) / sigma)
    density = -0.5 * ((x - c) / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi))
    others = below.sum(axis=1, keepdims=True) - below
    return special.logsumexp(density + others, axis=0) + math.log(float(x[1, 0] - x[0, 0]))


def exact_divergences(counts: list[int], sigma: float, orders: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return max over neighbours of D(P‖P') and of D(P'‖P), one per order."""
    here, alphas = log_winners(np.array(counts), sigma), np.array(orders)[:, None]
    forth, back = np.zeros(len(orders)), np.zeros(len(orders))
    for i in range(len(counts)):
        for j in range(len(counts)):
            if i != j and counts[i] > 0:
                moved = np.array(counts)
                moved[i] -= 1
                moved[j] += 1
                there = log_winners(moved, sigma)
                for worst, a, b in ((forth, here, there), (back, there, here)):
                    value = special.logsumexp(alphas * a - (alphas - 1) * b, axis=1) / (alphas[:, 0] - 1)
                    np.maximum(worst, value, out=worst)
    return forth, back


@pytest.mark.parametrize("row", VECTORS["exact_argmax_rdp"], ids=lambda row: str(row["counts"]))
def test_exact_argmax_rows(row):
    forth, back = exact_divergences(row["counts"], row["sigma"], row["orders"])
    exact = np.maximum(forth, back)
    np.testing.assert_allclose(exact, row["exact"], rtol=5e-3)  # the rows carry three digits
    dependent = pate.gnmax_bound(pate.log_q_gaussian(row["counts"], row["sigma"]), row["sigma"], row["orders"])[0]
    independent = pate.gnmax_independent(row["sigma"], row["orders"])
    np.testing.assert_allclose(dependent, row["datadep"], rtol=5e-3)
    np.testing.assert_allclose(independent, row["dataind"], rtol=5e-3)
    assert np.all(exact <= dependent)
    assert np.all(dependent <= independent)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 80), min_size=2, max_size=4).filter(lambda c: sum(c) > 0),
    sigma=st.sampled_from([2.0, 5.0, 12.0, 40.0]),
)
def test_dependent_lies_between_the_exact_divergence_and_the_independent_bound(counts, sigma):
    orders = [1.5, 2.0, 4.0, 8.0, 16.0]
    forth, back = exact_divergences(counts, sigma, orders)
    independent = pate.gnmax_independent(sigma, orders)
    slack = 1e-11  # of the quadrature
    for log_q in (pate.log_q_gaussian(counts, sigma), pate.log_q_discrete_gaussian(counts, sigma)):
        dependent = pate.gnmax_bound(log_q, sigma, orders)[0]
        assert np.all(dependent <= independent)
        assert np.all(forth <= dependent + slack)  # Theorem 6 bounds D(M(D) ‖ M(D'))
    assert np.all(back <= independent + slack)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 60), min_size=2, max_size=10),
    scale=st.floats(0.3, 20.0),
)
def test_integer_noise_flips_at_least_as_often_as_the_continuous_noise(counts, scale):
    independent = pate.lnmax_independent(scale, [2.0, 16.0])
    for log_q in (pate.log_q_laplace(counts, scale), pate.log_q_discrete_laplace(counts, scale)):
        assert log_q[0] <= math.log1p(-1 / len(counts))
        bound = pate.pure_bound(log_q, 2 / scale, [2.0, 16.0])[0]
        assert np.all((bound >= 0) & (bound <= independent))
    if scale >= 1.0:
        assert pate.log_q_discrete_laplace(counts, scale)[0] >= pate.log_q_laplace(counts, scale)[0] - 1e-9


def test_the_total_is_the_sum_of_the_bounds():
    counts = np.random.default_rng(3).multinomial(250, np.random.default_rng(4).dirichlet(np.full(10, 0.2), size=3000))
    orders = np.arange(1.5, 40, 0.5)
    log_q = pate.log_q_gaussian(counts, 40.0)
    table = pate.gnmax_bound(log_q, 40.0, orders)
    np.testing.assert_allclose(pate.gnmax_total(log_q, 40.0, orders), table.sum(axis=0), rtol=1e-12)
    alone = np.stack([pate.gnmax_bound(one, 40.0, orders)[0] for one in log_q[:200]])
    np.testing.assert_allclose(table[:200], alone, rtol=1e-12)  # neither order nor company changes a bound
    np.testing.assert_allclose(pate.log_q_gaussian(counts[:, ::-1], 40.0), log_q, rtol=1e-12)


# Faults that users met (synthcity 276, mlforhealthlabpub 38, smartnoise 596).


@pytest.mark.parametrize("counts", [[125, 125], [50, 50, 50, 50], [1, 1], [0, 0, 0], [0, 0]])
def test_an_even_split_costs_the_independent_bound(counts):
    for sigma in (1.0, 40.0):
        bound = pate.gnmax_bound(pate.log_q_gaussian(counts, sigma), sigma, [1.5, 8.0, 64.0])[0]
        assert bound == pytest.approx(pate.gnmax_independent(sigma, [1.5, 8.0, 64.0]))
    scale, bounds = 10.0, pate.lnmax_independent(10.0, [2.0, 8.0])
    assert np.all(pate.pure_bound(pate.log_q_laplace(counts, scale), 0.2, [2.0, 8.0])[0] <= bounds)


@pytest.mark.parametrize("log_q", [math.nan, 0.0, -1e-300, -1e-9, 0.5, math.inf])
def test_where_the_theorem_fails_the_independent_bound_stands(log_q):
    orders = [1.5, 2.0, 32.0]
    assert pate.gnmax_bound(log_q, 40.0, orders)[0] == pytest.approx(pate.gnmax_independent(40.0, orders))
    assert pate.gnmax_total([log_q, log_q], 40.0, orders) == pytest.approx(2 * pate.gnmax_independent(40.0, orders))
    assert pate.pure_bound(log_q, 0.2, orders)[0] == pytest.approx(pate.lnmax_independent(10.0, orders))


@pytest.mark.parametrize("log_pr", [math.nan, 0.5, math.inf, math.log(0.5)])
def test_a_threshold_test_of_unknown_or_even_odds_costs_the_independent_bound(log_pr):
    orders = [1.5, 2.0, 32.0]
    assert pate.threshold_bound(log_pr, 40.0, orders)[0] == pytest.approx(pate.threshold_independent(40.0, orders))


def test_a_nan_query_changes_no_other_query():
    orders = [2.0, 8.0]
    clean = pate.gnmax_bound([-6.0, -9.0], 40.0, orders)
    mixed = pate.gnmax_bound([-6.0, math.nan, -9.0], 40.0, orders)
    assert np.array_equal(mixed[[0, 2]], clean)
    assert not np.isnan(pate.gnmax_total([-6.0, math.nan], 40.0, orders)).any()


def test_the_brackets_of_the_exponent_matter():
    # B^(α−1) with B = e^ε₁ / q^(1/(μ₁−1)): an implementation that reads it as e^(ε₁/q)… is off by many orders here
    log_q, sigma, order = math.log(1e-4), 40.0, 8.0
    mu2 = sigma * math.sqrt(-log_q)
    q, eps1, eps2 = 1e-4, (mu2 + 1) / sigma**2, mu2 / sigma**2
    a = (1 - q) / (1 - (q * math.exp(eps2)) ** ((mu2 - 1) / mu2))
    b = math.exp(eps1) / q ** (1 / mu2)
    expected = math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
    assert pate.gnmax_bound(log_q, sigma, [order])[0, 0] == pytest.approx(expected, rel=1e-9)


def test_a_certain_outcome_costs_nothing():
    assert pate.gnmax_bound(-math.inf, 40.0, [2.0, 8.0])[0].tolist() == [0.0, 0.0]


def test_a_wider_margin_never_costs_more():
    counts = np.array([[125 + m, 125 - m] for m in range(126)])
    table = pate.gnmax_bound(pate.log_q_gaussian(counts, 20.0), 20.0, [2.0, 8.0, 32.0])
    assert np.all(np.diff(table, axis=0) <= 1e-18)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 1e-310, True, "40"])
def test_bad_noise_is_refused(bad):
    for call in (
        lambda: pate.gnmax_independent(bad, [2.0]),
        lambda: pate.lnmax_independent(bad, [2.0]),
        lambda: pate.threshold_independent(bad, [2.0]),
        lambda: pate.gnmax_bound(-5.0, bad, [2.0]),
        lambda: pate.threshold_bound(-5.0, bad, [2.0]),
        lambda: pate.pure_bound(-5.0, bad, [2.0]),
        lambda: pate.log_q_gaussian([3, 1], bad),
        lambda: pate.log_q_laplace([3, 1], bad),
        lambda: pate.log_answered([3, 1], 1.0, bad),
    ):
        with pytest.raises(ParameterError):
            call()


@pytest.mark.parametrize("orders", [[], [1.0], [math.inf], [math.nan], [0.5, 2.0]])
def test_bad_orders_are_refused(orders):
    with pytest.raises(ParameterError):
        pate.gnmax_independent(40.0, orders)


@pytest.mark.parametrize("counts", [[1.5, 2.0], [math.nan, 1.0], ["a", "b"], [5], [True, False]])
def test_counts_that_are_no_histogram_are_refused(counts):
    with pytest.raises(ParameterError):
        pate.log_q_gaussian(counts, 40.0)


def test_curves_of_a_run_are_for_the_site_alone():
    counts = [[200, 30, 20], [90, 85, 75]]
    orders = (2.0, 8.0)
    run = {"threshold": 150.0, "sigma_threshold": 100.0, "sigma": 40.0, "orders": orders}
    for curve in (
        pate.gnmax_dependent(counts, 40.0, orders),
        pate.lnmax_dependent(counts, 20.0, orders),
        pate.confident_dependent(counts, [True, False], **run),
    ):
        assert isinstance(curve, SiteOnly)
        private = str(curve.open_at_site()[0])
        assert private not in f"{curve} {curve!r} {curve:>10}"
        for leak in (pickle.dumps, json.dumps, copy.copy, copy.deepcopy, hash, float):
            with pytest.raises(TypeError):
                leak(curve)
        with pytest.raises(TypeError):
            _ = curve == curve  # noqa: PLR0124 - even this comparison must refuse


def test_a_record_that_holds_a_site_only_figure_cannot_be_unwrapped():
    @dataclasses.dataclass
    class Report:
        figure: SiteOnly[float]

    with pytest.raises(TypeError):
        dataclasses.asdict(Report(figure=SiteOnly(0.25)))


def test_the_run_of_confident_gnmax_costs_at_most_its_independent_curve():
    rng = np.random.default_rng(8)
    counts = rng.multinomial(250, rng.dirichlet(np.full(10, 0.1), size=100))
    answered = counts.max(axis=1) > 150
    orders = np.array(accountant.ORDERS[5:80])
    run = {"sigma_threshold": 100.0, "sigma": 40.0, "orders": orders}
    dependent = pate.confident_dependent(counts, answered, threshold=150.0, **run).open_at_site()
    independent = pate.confident_independent(tests=100, answers=int(answered.sum()), **run)
    assert np.all(dependent <= independent * (1 + 1e-12))
    assert np.all(dependent[:20] < 0.9 * independent[:20])
    nothing = pate.confident_dependent(counts, np.zeros(100, dtype=bool), threshold=150.0, **run).open_at_site()
    assert np.all(nothing <= 100 * pate.threshold_independent(100.0, orders) * (1 + 1e-12))
    with pytest.raises(ParameterError):
        pate.confident_dependent(counts, answered[:3], threshold=150.0, **run)
