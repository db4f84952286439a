"""The sanitised release of PATE's data-dependent cost: its charge, its confidence, its refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import sanitised
from patevolve.shared.noise.sanitised import SanitisedPlan, sanitise
from patevolve.shared.privacy import accountant, pate, pate_smooth
from patevolve.shared.privacy.site_only import SiteOnly
from patevolve.shared.randomness import SystemNoise

SIGMA, ORDER, DELTA = 40.0, 20.0, 1e-5
PLAN = SanitisedPlan(order=ORDER, smoothness=0.02, noise=10.0, log_noise=20.0, failure=0.1)


def run(counts: np.ndarray) -> tuple[SiteOnly, SiteOnly, float]:
    answered = np.ones(len(counts), dtype=bool)
    costs = pate_smooth.cost(pate.log_q_gaussian(counts, SIGMA), SIGMA, ORDER)
    total = pate_smooth.total_sensitivity(counts, answered, sigma=SIGMA, order=ORDER)
    return SiteOnly(float(costs.sum())), total, len(counts) * ORDER / SIGMA**2


def release(counts: np.ndarray, plan: SanitisedPlan = PLAN, **changes) -> sanitised.SanitisedCost:
    cost, levels, independent = RUN if counts is COUNTS else run(counts)
    settings = {"sigmas": (SIGMA,), "classes": counts.shape[1], "independent": independent, "delta": DELTA}
    return sanitise(cost, levels, plan, source=SystemNoise(), **(settings | changes))


COUNTS = np.array([[230, 10, 5, 3, 2], [200, 30, 10, 6, 4], [250, 0, 0, 0, 0]] * 5)
RUN = run(COUNTS)


def test_the_charge_is_the_two_events():
    gnss = pate_smooth.gnss_rdp(0.02, 10.0, ORDER)
    assert PLAN.rdp() == pytest.approx(gnss + ORDER / (2 * 20.0**2))
    assert release(COUNTS).release_rdp == PLAN.rdp()


def test_the_noise_is_the_smooth_sensitivity_times_the_plans(alpha):
    cost, levels, _ = run(COUNTS)
    smooth = pate_smooth.discounted_maximum(0.02, levels.open_at_site())
    draws = 8000
    noisy = np.array([release(COUNTS).noisy for _ in range(draws)])
    z = (noisy - cost.open_at_site()) / (smooth * 10.0)
    # Chi-square of 8,000: σ × 0.9 lies 12 standard errors away and is refused beyond 6, so it escapes below 1e-8.
    energy = float((z**2).sum())
    assert stats.chi2.sf(energy, draws) > alpha / 2
    assert stats.chi2.cdf(energy, draws) > alpha / 2
    assert stats.chi2.cdf(0.81 * energy, draws) < 1e-6


def test_the_upper_figure_is_too_low_at_most_as_often_as_stated(alpha):
    cost, _, independent = run(COUNTS)
    draws = 2000
    uppers = np.array([release(COUNTS).upper for _ in range(draws)])
    below = int((uppers < cost.open_at_site()).sum())
    assert stats.binom.sf(below - 1, draws, PLAN.failure) > alpha
    noisy = np.array([release(COUNTS).noisy for _ in range(draws)])
    naive = int((noisy < cost.open_at_site()).sum())  # the planted fault: the noisy cost taken for a bound
    assert stats.binom.sf(naive - 1, draws, PLAN.failure) < alpha
    assert uppers.max() <= independent


def test_epsilon_is_the_conversion_of_both_costs():
    figure = release(COUNTS)
    expected = accountant.epsilon(np.array([figure.upper + PLAN.rdp()]), DELTA, (ORDER,)).epsilon
    assert figure.epsilon == expected
    assert type(figure.epsilon) is float
    assert 0.0 <= figure.upper <= 15 * ORDER / SIGMA**2


def test_it_refuses_where_the_conditions_fail():
    with pytest.raises(ParameterError, match="C5 and C6"):
        release(COUNTS, sigmas=(SIGMA, 2.0))
    with pytest.raises(ParameterError):
        release(COUNTS, independent=math.nan)


@pytest.mark.parametrize(
    "bad",
    [
        {"order": 25.0},
        {"order": 1.0},
        {"order": math.nan},
        {"smoothness": 0.0},
        {"noise": math.inf},
        {"log_noise": -1.0},
        {"failure": 0.0},
        {"failure": 1.0},
    ],
)
def test_a_plan_outside_the_theorem_is_refused(bad):
    with pytest.raises(ParameterError):
        SanitisedPlan(**({"order": 20.0, "smoothness": 0.02, "noise": 10.0} | bad))
