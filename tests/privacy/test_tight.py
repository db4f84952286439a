import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant, masses, tight
from patevolve.shared.privacy.events import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Exponential,
    Skellam,
    SubsampledGaussian,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text())
PLD_RTOL = 1e-4


def by_id(rows):
    return [pytest.param(row, id=row.get("id") or f"{row['sens'][:4]}-s{row['sigma']}-q{row['q']}") for row in rows]


def width(row):
    return math.sqrt(2.0) if row["sens"].startswith("vote") else 1.0


@pytest.mark.parametrize("row", by_id(VECTORS["conversion"]))
def test_exact_gaussian_of_a_rho(row):
    multiplier = math.sqrt(1 / (2 * row["rho"]))
    assert tight.gaussian_epsilon(multiplier, row["delta"]) == pytest.approx(row["exact_gaussian"], rel=1e-6)


@pytest.mark.parametrize("row", by_id(VECTORS["eps_table_delta_1e5"]))
def test_exact_gaussian_of_the_table(row):
    figure = tight.figure([DiscreteGaussian(sigma=row["sigma"], l2=width(row), count=row["q"])], 1e-5)
    assert figure.accountant == "gaussian"
    assert figure.epsilon == pytest.approx(row["gauss_exact"], rel=1e-6)


PLD_ROWS = [row for row in VECTORS["eps_table_delta_1e5"] if "skellam_pld" in row]


@pytest.mark.parametrize("row", by_id(PLD_ROWS))
def test_pld_of_the_true_discrete_noise(row):
    pytest.importorskip("dp_accounting")
    times = row["q"] * round(width(row) ** 2)
    radius = 14 * row["sigma"] + 60
    skellam = tight.pld_of_masses(masses.skellam(row["sigma"] ** 2, radius), 1, row["disc"])
    found = skellam.self_compose(times).get_epsilon_for_delta(1e-5)
    assert found == pytest.approx(row["skellam_pld"], rel=PLD_RTOL)
    share = row["sigma"] / math.sqrt(10)
    shares = (
        masses.gaussian_sum(share, 10, radius) if row["sigma"] < 10 else masses.discrete_gaussian(row["sigma"], radius)
    )
    found = tight.pld_of_masses(shares, 1, row["disc"]).self_compose(times).get_epsilon_for_delta(1e-5)
    assert found == pytest.approx(row["ddg10_pld"], rel=PLD_RTOL)


@pytest.mark.parametrize("row", by_id([row for row in VECTORS["dpsgd"] if row["steps"] > 1]))
def test_pld_of_dpsgd(row):
    pytest.importorskip("dp_accounting")
    event = SubsampledGaussian(
        noise_multiplier=row["noise_multiplier"], sample_rate=row["sample_rate"], steps=row["steps"]
    )
    figure = tight.figure([event], row["delta"])
    assert figure.epsilon == pytest.approx(row["dp_accounting_pld"], rel=PLD_RTOL)
    assert (figure.accountant, figure.version) == ("pld", "dp-accounting 0.6.0 pld")
    assert figure.epsilon > row["opacus_gdp_UNSOUND"] * 1.1


def test_exact_of_one_gaussian_step():
    row = next(row for row in VECTORS["dpsgd"] if row["steps"] == 1)
    event = SubsampledGaussian(noise_multiplier=row["noise_multiplier"], sample_rate=1.0, steps=1)
    assert tight.figure([event], row["delta"]).epsilon == pytest.approx(row["exact"], rel=1e-6)
    # Add/remove neighbours with σ/Δ that we compute; never the library's replace-one.
    assert tight.figure([event], row["delta"]).epsilon < row["dp_accounting_pld_REPLACE_ONE"] / 2


def test_golden_tight_figures():
    pytest.importorskip("dp_accounting")
    sampled = tight.figure([SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=10)], 1e-5)
    whole = tight.figure([SubsampledGaussian(noise_multiplier=1.0, sample_rate=1.0, steps=10)], 1e-5)
    assert sampled.epsilon == pytest.approx(2.8545, abs=1e-4)
    assert whole.epsilon == pytest.approx(17.8566, abs=1e-4)


@pytest.mark.parametrize("row", [pytest.param(r, id=f"s{r['sigma']}-e{r['budget']}") for r in VECTORS["q_max"]])
def test_how_many_gaussian_queries_fit_exactly(row):
    assert tight.gaussian_q_max(row["sigma"], math.sqrt(2), row["budget"], row["delta"]) == row["exact"]


@settings(deadline=None, max_examples=60)
@given(multiplier=st.floats(0.05, 1e4), delta=st.floats(1e-12, 0.1))
def test_the_exact_figure_is_at_most_the_rdp_one_and_meets_its_delta(multiplier, delta):
    exact = tight.gaussian_epsilon(multiplier, delta)
    event = DiscreteGaussian(sigma=multiplier, l2=1.0)
    assert exact <= accountant.epsilon(accountant.rdp(event), delta).epsilon * (1 + 1e-12)
    assert tight.gaussian_delta(multiplier, exact) <= delta
    assert tight.gaussian_delta(multiplier, exact * (1 - 1e-6)) >= delta * (1 - 1e-4) or exact == 0.0


@settings(deadline=None, max_examples=60)
@given(multiplier=st.floats(0.05, 1e4), factor=st.floats(1.001, 10.0))
def test_the_exact_figure_falls_as_noise_grows(multiplier, factor):
    assert tight.gaussian_epsilon(multiplier * factor, 1e-5) <= tight.gaussian_epsilon(multiplier, 1e-5)


def test_the_gaussian_figure_agrees_with_high_precision():
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        for multiplier in (0.1, 0.5, 3.0, 50.0):
            for budget in (0.0, 0.5, 7.0, 80.0):
                mu, e = 1 / mpmath.mpf(multiplier), mpmath.mpf(budget)
                exact = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
                assert tight.gaussian_delta(multiplier, budget) == pytest.approx(float(exact), rel=1e-9, abs=1e-15)


def test_no_events_cost_exactly_nothing():
    assert tight.figure([], 1e-5).epsilon == 0.0


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([SubsampledGaussian(noise_multiplier=0.01, sample_rate=0.1, steps=10)], "bounded in time"),
        ([SubsampledGaussian(noise_multiplier=50.0, sample_rate=0.001, steps=10**6)], "compositions"),
        ([Skellam(variance=1e8, l1=1.0, l2=1.0)], "no privacy loss distribution"),
        ([Skellam(variance=100.0, l1=5.0, l2=3.0)], "no privacy loss distribution"),
        ([Exponential(epsilon=0.1)], "no privacy loss distribution"),
    ],
)
def test_where_a_pld_would_not_end_the_rdp_figure_says_so(events, why, monkeypatch):
    def never(*_):
        raise AssertionError("a privacy loss distribution was begun")

    monkeypatch.setattr(tight, "_pld_epsilon", never)
    figure = tight.figure(events, 1e-5)
    assert (figure.accountant, figure.version) == ("rdp", accountant.CONVERSION)
    assert figure.epsilon == accountant.epsilon(accountant.compose(events), 1e-5).epsilon
    assert why in figure.reason


def test_without_dp_accounting_the_rdp_figure_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld.privacy_loss_distribution", None)
    figure = tight.figure([SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=10)], 1e-5)
    assert figure.accountant == "rdp"
    assert "patevolve[accounting]" in figure.reason


def test_the_clt_approximation_is_refused():
    with pytest.raises(ParameterError, match="below the true"):
        tight.gaussian_approximation([SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=1000)], 1e-5)


def test_a_pld_lies_below_rdp_for_sums_and_mixtures():
    pytest.importorskip("dp_accounting")
    share = DiscreteGaussianSum(share_sigma=4.0, shares=4, l1=1.0, l2=1.0, dimension=50, count=20)
    mixture = [share, DiscreteGaussian(sigma=10.0, l2=1.0), Skellam(variance=64.0, l1=2.0, l2=math.sqrt(2))]
    for events in ([share], mixture):
        figure = tight.figure(events, 1e-5)
        rdp = accountant.epsilon(accountant.compose(events), 1e-5).epsilon
        assert figure.accountant == "pld"
        assert bool(figure.reason) is (
            events is mixture
        )  # the one that holds a discrete Gaussian says what it leaves out
        assert 0.8 * rdp < figure.epsilon < rdp


def test_a_pld_of_coordinates_that_move_by_more_is_not_attempted():
    assert tight._unit_shifts(Skellam(variance=64.0, l1=3.0, l2=math.sqrt(3))) == 3
    assert tight._unit_shifts(Skellam(variance=64.0, l1=4.0, l2=2.0)) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 1.0, True, "1"], ids=repr)
def test_a_delta_outside_its_domain_is_refused(bad):
    for call in (lambda: tight.figure([], bad), lambda: tight.gaussian_epsilon(1.0, bad)):
        with pytest.raises(ParameterError):
            call()
