"""Smooth sensitivity of PATE's data-dependent cost against published values, brute force and its own conditions."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import pate, pate_smooth
from patevolve.shared.privacy.site_only import SiteOnly

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text(encoding="utf-8"))["pate"]
RTOL = 1e-6


def rows(prefix: str) -> list:
    found = [row for row in VECTORS if row["id"].startswith(prefix)]
    assert found, prefix
    return [pytest.param(row, id=row["id"]) for row in found]


@pytest.mark.parametrize("row", rows("smoothsens"))
def test_smooth_sensitivity_rows(row):
    sigma, order, classes = row["sigma"], row["order"], len(row["counts"])
    assert pate.log_q_gaussian(row["counts"], sigma)[0] == pytest.approx(row["logq"], rel=RTOL)
    assert pate_smooth.log_q0(sigma, order) == pytest.approx(row["logq0"], rel=RTOL)
    assert pate_smooth.log_q1(sigma, order, classes) == pytest.approx(row["logq1"], rel=RTOL)
    assert list(pate_smooth.conditions_hold(sigma, classes, order)) == row["conditions_C5_C6"]
    levels = pate_smooth.gnmax_sensitivity(row["counts"], sigma, order)
    np.testing.assert_allclose(levels[row["ls_d"]], row["ls"], rtol=RTOL, atol=1e-15)
    assert levels.max() == pytest.approx(row["ls_max"], rel=RTOL)
    assert int(levels.argmax()) == row["argmax_d"]
    for smoothness, expected in row["smooth"].items():
        assert pate_smooth.discounted_maximum(float(smoothness), levels) == pytest.approx(expected, rel=RTOL)


@pytest.mark.parametrize("row", rows("gnss_rdp"))
def test_gnss_rows(row):
    # the name carries the first parameter
    assert re.search(r"_b([\d.]+)_", row["id"])[1] == f"{row['beta']:g}"
    assert pate_smooth.gnss_rdp(row["beta"], row["sigma"], row["order"]) == pytest.approx(row["rdp"], rel=RTOL)


@pytest.mark.parametrize("row", rows("ls_threshold"))
def test_threshold_sensitivity_row(row):
    levels = pate_smooth.threshold_sensitivity(row["counts"], row["T"], row["sigma1"], row["order"])
    np.testing.assert_allclose(levels, row["ls"], rtol=RTOL, atol=1e-15)


def test_every_published_pate_row_has_a_test():
    prefixes = ("gnmax_", "threshold", "lnmax", "compose", "confident", "smoothsens", "gnss_rdp", "ls_threshold")
    assert all(row["id"].startswith(prefixes) for row in VECTORS)
    assert len(VECTORS) == 40


@settings(max_examples=40, deadline=None, derandomize=True)
@given(counts=st.lists(st.integers(0, 90), min_size=2, max_size=5).filter(lambda c: sum(c) > 10))
def test_one_moved_vote_changes_the_cost_by_at_most_the_local_sensitivity(counts):
    sigma, order = 20.0, 8.0
    assert pate_smooth.conditions_hold(sigma, len(counts), order) == (True, True)
    level = pate_smooth.gnmax_sensitivity(counts, sigma, order)[0]

    def cost(votes: np.ndarray) -> float:
        return float(pate_smooth.cost(pate.log_q_gaussian(votes, sigma), sigma, order)[0])

    here = cost(np.array(counts))
    for i in range(len(counts)):
        for j in range(len(counts)):
            if i != j and counts[i] > 0:
                moved = np.array(counts)
                moved[i] -= 1
                moved[j] += 1
                assert abs(cost(moved) - here) <= level * (1 + 1e-9) + 1e-15


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=4).filter(lambda c: sum(c) > 10), st.data())
def test_the_smooth_sensitivity_is_smooth(counts, data):
    sigma, order, b = 20.0, 8.0, 0.03
    i = data.draw(st.sampled_from([k for k, c in enumerate(counts) if c > 0]))
    j = data.draw(st.sampled_from([k for k in range(len(counts)) if k != i]))
    moved = list(counts)
    moved[i] -= 1
    moved[j] += 1
    here, there = (
        pate_smooth.discounted_maximum(b, pate_smooth.gnmax_sensitivity(c, sigma, order)) for c in (counts, moved)
    )
    assert abs(math.log(here / there)) <= b * (1 + 1e-9)


def test_the_unchecked_cost_agrees_with_the_bound_below_q0():
    sigma, order = 40.0, 20.0
    logs = pate_smooth.log_q0(sigma, order) - np.logspace(-3, 2, 50)
    np.testing.assert_allclose(
        pate_smooth.cost(logs, sigma, order), pate.gnmax_bound(logs, sigma, [order])[:, 0], rtol=1e-9
    )


def test_conditions_are_refused_where_they_fail():
    assert pate_smooth.conditions_hold(40.0, 10, 20.0) == (True, True)
    assert pate_smooth.conditions_hold(2.0, 10, 5.0)[1] is False  # too little noise for this order
    assert pate_smooth.conditions_hold(10.0, 10, 20.0)[1] is False


@pytest.mark.parametrize("order", [1.0, 25.0, 30.0, math.nan, math.inf])
def test_gnss_refuses_orders_outside_its_theorem(order):
    with pytest.raises(ParameterError):
        pate_smooth.gnss_rdp(0.02, 4.0, order)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, True])
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ParameterError):
        pate_smooth.gnss_rdp(bad, 4.0, 2.0)
    with pytest.raises(ParameterError):
        pate_smooth.gnss_rdp(0.02, bad, 2.0)
    with pytest.raises(ParameterError):
        pate_smooth.log_q0(bad, 8.0)
    with pytest.raises(ParameterError):
        pate_smooth.discounted_maximum(bad, [1.0])


def test_totals_add_up_and_stay_at_the_site():
    counts = np.array([[60, 30, 10], [80, 15, 5], [34, 33, 33]])
    answered = [True, True, False]
    plain = pate_smooth.total_sensitivity(counts, answered, sigma=20.0, order=8.0)
    assert isinstance(plain, SiteOnly)
    expected = sum(pate_smooth.gnmax_sensitivity(c, 20.0, 8.0) for c in counts[:2])
    np.testing.assert_allclose(plain.open_at_site(), expected)
    tested = pate_smooth.total_sensitivity(
        counts, answered, sigma=20.0, order=8.0, threshold=60.0, sigma_threshold=30.0
    )
    tests = sum(pate_smooth.threshold_sensitivity(c, 60.0, 30.0, 8.0) for c in counts)
    np.testing.assert_allclose(tested.open_at_site(), expected + tests)
    with pytest.raises(ParameterError):
        pate_smooth.total_sensitivity([[60, 30], [10, 10]], [True, True], sigma=20.0, order=8.0)
