"""Odds of noisy votes against known figures, Monte Carlo and planted mistakes."""

import math

import numpy as np
import pytest

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import odds, tight
from patevolve.shared.privacy.calibrate import gaussian_noise_multiplier, rho_for
from patevolve.shared.privacy.odds import Pool
from patevolve.shared.votes.ballots import rank_weights

EPSILON, DELTA = 4.0, 1e-5


def exact_multiplier(epsilon: float, delta: float) -> float:
    """Return the least σ/Δ₂ of one exact Gaussian; the known figures were calculated with it."""
    low, high = 0.1, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if tight.gaussian_epsilon(middle, delta) <= epsilon else (middle, high)
    return high


def refused(successes: int, trials: int, p: float, alpha: float) -> bool:
    """Return whether a binomial count contradicts ``p``; a true p is refused with probability <= alpha (Chernoff)."""
    q = successes / trials
    divergence = sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)
    return trials * divergence > math.log(2 / alpha)


# 10 unanimous teachers win 53 %, 50 win 98 % (ε = 4, 100 answers, 3 classes) with the exact Gaussian; by the RDP that a
# ledger charges there is 7 % more noise.
@pytest.mark.parametrize(("teachers", "exact", "charged"), [(10, 0.53, 0.517), (50, 0.98, 0.972)])
def test_known_figures_of_unanimous_teachers(teachers, exact, charged):
    assert odds.unanimous(teachers, exact_multiplier(EPSILON, DELTA) * math.sqrt(200), 3) == pytest.approx(
        exact, abs=0.005
    )
    rdp = gaussian_noise_multiplier(rho_for(EPSILON, DELTA)) * math.sqrt(200)
    assert odds.unanimous(teachers, rdp, 3) == pytest.approx(charged, abs=0.001)


@pytest.mark.parametrize(("votes", "std", "counts"), [(10, 16.37, (10, 0, 0)), (40, 9.0, (24, 16, 0, 0, 0))])
def test_win_probability_against_monte_carlo(votes, std, counts, alpha):
    """A wrong build is refused in all but 1e-8 of runs when its probability is off by .01, or its σ by 10 %."""
    trials = 400_000
    noisy = np.array(counts) + std * np.random.default_rng().normal(size=(trials, len(counts)))
    wins = int(np.sum(noisy.argmax(axis=1) == 0))
    leads = [(counts[0] - count, 1) for count in counts[1:]]
    p = odds.win_probability(leads, std)
    assert not refused(wins, trials, p, alpha)
    union = 1 - sum(0.5 * math.erfc(lead / (2 * std)) for lead, _ in leads)
    one_noise = math.prod(0.5 * math.erfc(-lead / (std * math.sqrt(2))) for lead, _ in leads)
    for broken in (union, one_noise, odds.win_probability(leads, 0.9 * std), p + 0.01):
        assert refused(wins, trials, min(max(broken, 1e-9), 1 - 1e-9), alpha)


def test_equal_votes_are_a_fair_draw():
    assert odds.win_probability([(0.0, 9)], 3.0) == pytest.approx(0.1, rel=1e-12)
    assert odds.unanimous(1e6, 1.0, 5) == pytest.approx(1.0, abs=1e-12)


def test_win_probability_grows_with_votes_and_falls_with_noise_and_rivals():
    base = odds.unanimous(10, 5.0, 3)
    assert odds.unanimous(11, 5.0, 3) > base > odds.unanimous(10, 6.0, 3)
    assert base > odds.unanimous(10, 5.0, 4)
    assert base > odds.sixty_forty(10, 5.0, 3) > 1 / 3


@pytest.mark.parametrize("contested", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_least_ratio_reaches_its_target_and_no_less_does(classes, contested):
    wins = odds.sixty_forty if contested else odds.unanimous
    ratio = odds.ratio_for(0.95, classes, contested=contested)
    assert wins(ratio, 1.0, classes) >= 0.95 - 1e-9
    assert wins(ratio * 0.999, 1.0, classes) < 0.95


@pytest.mark.parametrize("target", [0.0, 1.0, 0.5, math.nan])
def test_a_target_that_means_nothing_is_refused(target):
    with pytest.raises(ParameterError):
        odds.ratio_for(target, 2, contested=False)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, True])
def test_noise_outside_its_domain_is_refused(std):
    with pytest.raises(ParameterError):
        odds.win_probability([(1.0, 1)], std)


# Known shares of 10 good among 100 candidates recovered, 10 images a class and site, one of 5 questions at ε = 4.
KNOWN = {1: (0.20, 0.19), 5: (0.32, 0.61), 10: (0.43, 0.89), 20: (0.57, 1.00)}
SITE = Pool(units=10, candidates=100, good=10, nearest=1)


def test_known_figures_of_pooling():
    """Reproduced within .02 (rounding of the table and its own Monte-Carlo error) by the exact Gaussian noise."""
    rows = odds.pooling(exact_multiplier(EPSILON, DELTA) * math.sqrt(5), SITE)
    assert [row["sites"] for row in rows] == list(KNOWN)
    for row in rows:
        each, secure = KNOWN[row["sites"]]
        assert row["each_site"] == pytest.approx(each, abs=0.02)
        assert row["secure_sum"] == pytest.approx(secure, abs=0.02)


def test_pooling_by_the_charged_noise_recovers_a_little_less():
    rows = odds.pooling(gaussian_noise_multiplier(rho_for(EPSILON, DELTA) / 5), SITE)
    for row in rows:
        each, secure = KNOWN[row["sites"]]
        assert each - 0.05 < row["each_site"] <= each
        assert secure - 0.05 < row["secure_sum"] <= secure


@pytest.mark.parametrize("nearest", [1, 5, 20])
def test_recovered_against_monte_carlo(nearest, alpha):
    """Mean-field error is below .015 here; sampling adds sqrt(ln(2/α)/2n) (Hoeffding). σ/1.5 is caught."""
    trials, std, pool = 40_000, 6.0, Pool(units=60, candidates=100, good=10, nearest=nearest)
    rng, (good, other) = np.random.default_rng(), pool.chances
    votes = std * rng.normal(size=(trials, 100))
    for chance, columns in ((good, slice(0, 10)), (other, slice(10, 100))):
        for weight in rank_weights(nearest):
            votes[:, columns] += weight * rng.binomial(60, chance / nearest, size=votes[:, columns].shape)
    measured = float(np.mean(np.argpartition(-votes, 9, axis=1)[:, :10] < 10))
    allowed = 0.015 + math.sqrt(math.log(2 / alpha) / (2 * trials))
    assert abs(pool.recovered(std) - measured) < allowed
    assert abs(pool.recovered(std / 1.5) - measured) > allowed


def test_beats_against_monte_carlo(alpha):
    trials, std, pool = 400_000, 6.0, Pool(units=60, candidates=100, good=10, nearest=5)
    rng, (good, other) = np.random.default_rng(), pool.chances
    lead = np.zeros(trials)
    for weight in rank_weights(5):
        lead += weight * (rng.binomial(60, good / 5, trials) - rng.binomial(60, other / 5, trials))
    wins = int(np.sum(lead + std * math.sqrt(2) * rng.normal(size=trials) > 0))
    # Votes are taken as normal: allow .002 either way around the binomial's own refusal.
    assert not all(refused(wins, trials, pool.beats(std) + shift, alpha) for shift in (-0.002, 0.0, 0.002))
    assert refused(wins, trials, pool.beats(std / math.sqrt(2)), alpha)


def test_more_noise_recovers_less_down_to_the_share_of_good_ones():
    pool = Pool(units=50, candidates=100, good=10, nearest=1)
    shares = [pool.recovered(std) for std in (0.5, 2, 8, 32, 1e4)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(0.1, abs=0.001)


@pytest.mark.parametrize("nearest", [1, 2, 8, 30])
def test_the_pools_votes_weigh_what_ballots_weigh(nearest):
    pool = Pool(units=1, candidates=100, good=10, nearest=nearest)
    assert pool.weight == pytest.approx(rank_weights(nearest).mean())
    assert pool.weight**2 <= 1 / nearest * (1 + 1e-12)


def test_votes_for_every_candidate_say_nothing():
    pool = Pool(units=50, candidates=20, good=2, nearest=20)
    assert pool.gap == 0.0
    assert pool.beats(1.0) == pytest.approx(0.5)
    assert Pool(units=50, candidates=1, good=1, nearest=1).recovered(1.0) == pytest.approx(0.5, abs=0.5)
