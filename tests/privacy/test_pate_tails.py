"""The tail functions against scipy and mpmath, and the discrete differences against brute force."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import special

from patevolve.shared.privacy import tails


def test_log_erfc_against_scipy():
    x = np.concatenate([np.linspace(-6, 30, 4001), np.linspace(30, 1e5, 1001), [19.999999, 20.0, 20.000001]])
    right = np.log(special.erfcx(np.maximum(x, 0))) - x * x
    expected = np.where(x > 0, right, np.log(special.erfc(np.minimum(x, 0))))
    assert np.max(np.abs(tails.log_erfc(x) - expected) / np.maximum(1, np.abs(expected))) < 1e-12


@pytest.mark.parametrize("x", [-3.0, 0.0, 0.5, 5.0, 19.9, 20.1, 26.0, 27.0, 150.0])
def test_log_erfc_against_mpmath(x):
    with mpmath.workdps(60):
        expected = float(mpmath.log(mpmath.erfc(mpmath.mpf(x))))
    assert float(tails.log_erfc(x)) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_log_normal_sf_keeps_its_relative_accuracy_at_both_ends():
    z = np.linspace(-30, 60, 3001)
    np.testing.assert_allclose(tails.log_normal_sf(z), special.log_ndtr(-z), rtol=1e-12)
    assert np.isnan(tails.log_normal_sf(math.nan))


def test_the_inverse_is_the_inverse():
    log_p = -np.concatenate([[0.0], np.logspace(-12, 4, 500)])
    x = tails.inverse_log_erfc(log_p)
    np.testing.assert_allclose(tails.log_erfc(x), log_p, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(tails.inverse_log_erfc(math.log(0.3)), special.erfcinv(0.3), rtol=1e-13)


def test_log1mexp():
    x = -np.logspace(-15, 2, 400)
    with mpmath.workdps(60):
        expected = [float(mpmath.log(-mpmath.expm1(mpmath.mpf(v)))) for v in x]
    np.testing.assert_allclose(tails.log1mexp(x), expected, rtol=1e-13)
    assert tails.log1mexp(0.0) == -math.inf
    assert np.isnan(tails.log1mexp([0.1, math.nan])).all()


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_discrete_gaussian_differences_against_brute_force(sigma):
    k = np.arange(-80, 81)
    pmf = np.exp(-(k**2) / (2 * sigma**2))
    pmf /= pmf.sum()
    table = tails.discrete_gaussian_difference(sigma, 12)
    for gap in range(13):
        brute = sum(pmf[i] * pmf[j] for i in range(k.size) for j in range(k.size) if k[i] - k[j] >= gap)
        assert math.exp(table[gap]) == pytest.approx(brute, rel=1e-10)


def test_discrete_laplace_differences_against_brute_force():
    k = np.arange(-150, 151)
    pmf = np.exp(-np.abs(k) / 1.5)
    pmf /= pmf.sum()
    table = tails.discrete_laplace_difference(1.5, 8)
    for gap in range(9):
        brute = float((pmf[:, None] * pmf[None, :])[k[:, None] - k[None, :] >= gap].sum())
        assert math.exp(table[gap]) == pytest.approx(brute, rel=1e-10)
