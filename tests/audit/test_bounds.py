"""Bounds hold their confidence, by enumeration where it can be done, and attacks are judged as by brute force."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from patevolve.shared.audit import bounds, canaries
from patevolve.shared.audit.bounds import Interval
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import tight


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.93])
@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_interval_covers_the_rate_as_promised(p: float, n: int) -> None:
    intervals = [bounds.rate(k, n, 0.95) for k in range(n + 1)]
    weight = binom.pmf(np.arange(n + 1), n, p)
    assert sum(w for w, i in zip(weight, intervals, strict=True) if not i.low <= p) <= 0.025 + 1e-12
    assert sum(w for w, i in zip(weight, intervals, strict=True) if not i.high >= p) <= 0.025 + 1e-12


def test_known_intervals() -> None:
    assert bounds.rate(0, 100, 0.95).high == pytest.approx(1 - 0.025 ** (1 / 100), rel=1e-12)
    assert bounds.rate(10, 10, 0.9).low == pytest.approx(0.05 ** (1 / 10), rel=1e-12)
    assert (bounds.rate(0, 5).low, bounds.rate(5, 5).high) == (0.0, 1.0)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_a_lower_bound_exceeds_the_truth_as_rarely_as_promised(epsilon: float) -> None:
    """Randomised response reaches ε with equality, so every excess is an error of the bound."""
    n, true = 30, math.exp(epsilon) / (1 + math.exp(epsilon))
    inside, outside = binom.pmf(np.arange(n + 1), n, true), binom.pmf(np.arange(n + 1), n, 1 - true)
    wrong = 0.0
    for hits, false in itertools.product(range(n + 1), repeat=2):
        found = canaries.judged(hits, false, n, ledger=epsilon, delta=1e-5, confidence=0.9)
        wrong += inside[hits] * outside[false] * (found.lower > epsilon)
    assert wrong <= 0.1


def test_the_gaussian_bound_is_right_in_the_limit_and_tighter() -> None:
    from scipy.special import ndtr

    mu, delta = 0.8, 1e-5
    hit, false = (Interval(value=v, low=v, high=v) for v in (float(ndtr(mu / 2)), float(ndtr(-mu / 2))))
    found = bounds.gaussian_epsilon_lower(hit, false, delta)
    assert found == pytest.approx(tight.gaussian_epsilon(1 / mu, delta), rel=1e-9)
    assert bounds.epsilon_lower(hit, false, delta) < found


def test_honest_gaussian_worlds_never_exceed_the_ledger_in_twenty_of_twenty() -> None:
    random, mu, delta = np.random.default_rng(1), 0.27, 1e-5
    ledger = tight.gaussian_epsilon(1 / mu, delta)
    findings = [
        canaries.two_worlds(
            lambda present, _: random.normal(mu if present else 0.0), trials=400, ledger=ledger, delta=delta,
            confidence=0.999,
        )
        for _ in range(20)
    ]  # fmt: skip
    assert not any(finding.alarm for finding in findings)
    # The planted twin: the same noise where the record counts four times.
    assert canaries.two_worlds(
        lambda present, _: random.normal(8 * mu if present else 0.0), trials=400, ledger=ledger, delta=delta,
        confidence=0.999,
    ).alarm  # fmt: skip


def test_a_constant_offset_does_not_hide_missing_noise() -> None:
    found = canaries.two_worlds(
        lambda present, _: 1e9 + (0.1 if present else 0.0), trials=200, ledger=1.0, delta=1e-5, confidence=0.999
    )
    assert found.alarm
    assert found.lower > 2.5


def test_noise_check_knows_right_half_and_no_noise() -> None:
    random = np.random.default_rng(2)
    assert bounds.noise_check(np.zeros(50)).p == 0.0
    assert bounds.noise_check(0.5 * random.normal(size=100)).p < 1e-6
    rejected = np.mean([bounds.noise_check(random.normal(size=100)).p < 0.05 for _ in range(2000)])
    # 5 % ± 5.7 standard errors: the suite's 1e-8
    assert abs(rejected - 0.05) < 5.7 * math.sqrt(0.05 * 0.95 / 2000)
    power = np.mean([bounds.noise_check(0.8 * random.normal(size=100)).p < 0.05 for _ in range(2000)])
    assert abs(power - bounds.noise_power(100, 0.8, 0.05)) < 5.7 * 0.5 / math.sqrt(2000)


def test_auc_is_the_share_of_ordered_pairs() -> None:
    random = np.random.default_rng(3)
    members, others = random.integers(0, 6, 40).astype(float), random.integers(0, 5, 30).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in members for b in others]
    found = bounds.auc(members, others)
    assert found.value == pytest.approx(np.mean(pairs), rel=1e-12)
    assert found.low < found.value < found.high


def test_the_intervals_of_auc_cover() -> None:
    random = np.random.default_rng(4)
    covered = 0
    for _ in range(1000):
        found = bounds.auc(random.normal(0.5, size=80), random.normal(size=60))
        covered += found.low <= 0.6381631950841 <= found.high  # Φ(0.5/√2)
    assert covered > 900  # 95 % nominal; 900 of 1,000 has probability below 1e-9


def test_few_others_cannot_tell_low_rates_and_say_so() -> None:
    members, others = np.arange(10.0), np.arange(50.0)
    assert bounds.tpr_at(members, others, 0.01).real == 0.0
    found = bounds.tpr_at(np.array([98.5, 99.5, 97.0]), np.arange(100.0), 0.01)
    assert (found.real, found.tpr.value) == (0.01, pytest.approx(2 / 3))


def test_bad_input_is_refused() -> None:
    for residuals in (np.zeros(0), np.array([np.nan])):
        with pytest.raises(ParameterError):
            bounds.noise_check(residuals)
    with pytest.raises(ParameterError):
        bounds.auc(np.zeros(1), np.zeros(5))
    with pytest.raises(ParameterError):
        bounds.rate(5, 4)


@pytest.mark.parametrize(("counted", "reach", "gaussian"), [(24, 0.99, 5.5), (150, 2.96, 18.9)])
def test_the_reach_of_the_two_worlds_is_what_the_docs_say(counted: int, reach: float, gaussian: float) -> None:
    """With perfect separation at confidence 0.999: the most ε that so many runs a world can ever show."""
    best = canaries.judged(counted, 0, counted, ledger=1.0, delta=1e-5, confidence=0.999)
    assert best.lower == pytest.approx(reach, abs=0.005)
    assert best.lower_gaussian == pytest.approx(gaussian, abs=0.05)
    docs = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert f"{reach:g} (n = {counted}" in docs
