"""Rényi divergences of the mechanisms: one function per theorem, each vectorised over the orders (all > 1).

Each returns float64 nats, one value per order; infinity where the theorem does not apply. Parameters are checked by
the events that carry them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]

# Where quadrature of fractional orders is quick and cannot overflow: exponents stay below 260.
_QUADRATURE_ORDER = 12.0
_QUADRATURE_SIGMA = 0.25


def kls_tau(share_sigma: float, shares: int) -> float:
    """Return τ = 10 Σ_{k=1}^{n-1} exp(-2π² σ² k/(k+1)) of Kairouz-Liu-Steinke 2021, Proposition 14.

    τ/2 bounds, in nats, how far the log-mass of the sum of n discrete Gaussians is from one of variance nσ².
    """
    ranks = np.arange(1, shares, dtype=np.float64)
    return 10.0 * float(np.sum(np.exp(-2.0 * math.pi**2 * share_sigma**2 * ranks / (ranks + 1.0))))


def gaussian_sum(orders: Curve, *, share_sigma: float, shares: int, l2: float, l1: float, dimension: int) -> Curve:
    """Return the least of the forms of Kairouz-Liu-Steinke 2021, Proposition 14, for a sum of discrete Gaussians."""
    tau = kls_tau(share_sigma, shares)
    total = share_sigma * math.sqrt(shares)
    # Sub-Gaussian tilting of the sum, and a factor exp(τ) in the likelihood ratio of each coordinate.
    additive = orders * (l2 / total) ** 2 / 2 + tau * dimension
    spread = min(l1, math.sqrt(dimension) * l2)
    concentrated = orders / 2 * ((l2 / total) ** 2 + 2 * spread / total * tau + tau**2 * dimension)
    return np.minimum(additive, concentrated)


def skellam(orders: Curve, *, variance: float, l1: float, l2: float) -> Curve:
    """Return the bound of Agarwal-Kairouz-Liu 2021 (the Skellam mechanism) for symmetric Skellam noise.

    It is proven for whole orders; a divergence grows with its order, so other orders take the next whole one.
    """
    whole = np.ceil(orders)
    gaussian = whole * l2**2 / (2 * variance)
    first = ((2 * whole - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    return gaussian + np.minimum(first, 3 * l1 / (2 * variance))


def discrete_laplace(orders: Curve, *, scale: float, l1: float) -> Curve:
    """Return the exact divergence of discrete Laplace noise for the worst integer shift of L1 norm ``l1``.

    With q = exp(-1/scale), Σ_k P(k-Δ)^α P(k)^(1-α) = c₁ q^((1-α)Δ) + c₂ q^(αΔ), c₁, c₂ >= 0, c₁ + c₂ = 1. Its logarithm
    is convex in Δ and 0 at 0, hence superadditive: all of the shift in one coordinate is the worst case.
    """
    mass = math.tanh(0.5 / scale)  # P(0) = (1-q)/(1+q)
    with np.errstate(over="ignore", divide="ignore"):
        ratio = np.expm1((2 * orders - 1) / scale)  # q^(1-2α) - 1; infinite for small scales, where 1/ratio is 0
        up = mass * (1.0 / -math.expm1(-1.0 / scale) + 1.0 / ratio)
        down = np.maximum(0.0, 1.0 - up)
        tilted = np.logaddexp(np.log(up) + (orders - 1) * l1 / scale, np.log(down) - orders * l1 / scale)
    return np.clip(tilted / (orders - 1), 0.0, l1 / scale)


def pure(orders: Curve, *, pure_epsilon: float) -> Curve:
    """Return min(ε, αε²/2) of a pure ε-DP mechanism (Bun-Steinke 2016, Proposition 3.3)."""
    return np.minimum(pure_epsilon, orders * pure_epsilon**2 / 2)


def bounded_range(orders: Curve, *, range_epsilon: float) -> Curve:
    """Return min(ε, αε²/8) of an ε-bounded-range mechanism (Cesar-Rogers 2021; Dong-Durfee-Rogers 2020)."""
    return np.minimum(range_epsilon, orders * range_epsilon**2 / 8)


def smooth_sensitivity(orders: Curve, *, beta: float, sigma: float) -> Curve:
    """Return the divergence of Gaussian noise on β-smooth sensitivity (Papernot 2018, Theorem 23).

    Infinite at orders of at least 1/(2β), where the theorem does not hold.
    """
    valid = 2 * orders * beta < 1
    inside = np.where(valid, orders, 1.5)
    scaled = inside * math.exp(2 * beta) / sigma**2
    with np.errstate(divide="ignore", invalid="ignore"):
        drift = (-0.5 * np.log1p(-2 * inside * beta) + beta * inside) / (inside - 1)
    return np.where(valid, scaled + drift, np.inf)


def subsampled_gaussian(orders: Curve, *, noise_multiplier: float, sample_rate: float) -> Curve:
    """Return the divergence of one Poisson-subsampled Gaussian step (Mironov-Talwar-Zhang 2019, Section 3.3).

    Add/remove neighbours. Whole orders by the binomial sum, others by quadrature; both accumulate A_α - 1, all of
    whose terms are positive, so small rates lose no digits. Where quadrature would be slow, an upper bound.
    """
    if sample_rate == 1.0:
        return orders / (2 * noise_multiplier**2)
    below = np.floor(orders)
    whole = orders == below
    quadrature = ~whole & (orders <= _QUADRATURE_ORDER) & (noise_multiplier >= _QUADRATURE_SIGMA)
    logs = np.empty_like(orders)
    logs[whole] = _log_moments_whole(orders[whole].astype(np.int64), noise_multiplier, sample_rate)
    logs[quadrature] = _log_moments_any(orders[quadrature], noise_multiplier, sample_rate)
    rest = ~whole & ~quadrature
    low = below[rest].astype(np.int64)
    # log A_α is convex in α and 0 at 1, so the chord between whole orders bounds it from above.
    ends = [_log_moments_whole(end, noise_multiplier, sample_rate) for end in (low, low + 1)]
    logs[rest] = ends[0] + (orders[rest] - below[rest]) * (ends[1] - ends[0])
    return logs / (orders - 1)


def _log_moments_whole(orders: NDArray[np.int64], sigma: float, rate: float) -> Curve:
    """Return log A_α = log(1 + Σ_{k>=2} C(α,k) q^k (1-q)^(α-k) (exp(k(k-1)/2σ²) - 1)) for whole orders."""
    top = int(orders.max(initial=2))
    k = np.arange(top + 1, dtype=np.float64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    exponent = k * (k - 1) / (2 * sigma**2)
    with np.errstate(divide="ignore"):
        # log(exp(x) - 1), stable at both ends; k = 0, 1 give -inf: they carry no excess.
        log_excess = np.where(exponent > 30, exponent + np.log1p(-np.exp(-exponent)), -np.inf)
        small = exponent <= 30
        log_excess[small] = np.log(np.expm1(exponent[small]))
    weight = log_excess - log_factorial + k * math.log(rate)
    results = []
    for order in orders.tolist():
        if order == 1:
            results.append(0.0)
            continue
        terms = weight[: order + 1] + log_factorial[order] - log_factorial[order::-1]
        terms = terms + (order - k[: order + 1]) * math.log1p(-rate)
        peak = float(terms.max())
        log_sum = peak + math.log(float(np.sum(np.exp(terms - peak))))
        results.append(np.logaddexp(0.0, log_sum) if log_sum > -30 else math.log1p(math.exp(log_sum)))
    return np.asarray(results, dtype=np.float64)


def _log_moments_any(orders: Curve, sigma: float, rate: float) -> Curve:
    """Return log A_α = log E[(1 + u)^α], u = q (exp((2z-1)/2σ²) - 1), z ~ N(0, σ²), by the trapezoidal rule.

    The integrand is analytic within πσ² of the real line, so the rule's error falls as exp(-2π · πσ²/h): with
    h = min(σ/32, σ²/8) it is below 1e-60; cutting 13 standard deviations beyond both peaks (z = 0 and z = α) leaves
    less than 1e-36 of the mass.
    """
    results = []
    for order in orders.tolist():
        step = min(sigma / 32, sigma**2 / 8)
        z = np.arange(-13 * sigma, order + 13 * sigma, step)
        log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * sigma**2))
        log_density = -((z / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(step)
        u = rate * np.expm1((2 * z - 1) / (2 * sigma**2))
        near = np.abs(u) * (order + 1) < 1e-2
        # (1+u)^α - 1 - αu, by its Taylor series near 0: E[u] = 0, so this is the whole excess and it is >= 0.
        series = np.where(near, _excess_series(np.where(near, u, 0.0), order), 0.0)
        excess = float(np.sum(np.exp(log_density[near]) * series[near]))
        far = ~near
        peak = float(np.max(order * log_ratio[far] + log_density[far], initial=0.0))
        powers = np.exp(order * log_ratio[far] + log_density[far] - peak)
        linear = (1 + order * u[far]) * np.exp(log_density[far] - peak)
        rest = float(np.sum(powers - linear))
        total = rest + excess * math.exp(-peak)
        results.append(float(np.logaddexp(0.0, math.log(max(total, 1e-300)) + peak)))
    return np.asarray(results, dtype=np.float64)


def _excess_series(u: Curve, order: float) -> Curve:
    """Return Σ_{k=2}^{8} C(α,k) u^k; with |u|(α+1) < 1e-2 the rest is below 1e-13 of the first term."""
    total = np.zeros_like(u)
    coefficient, power = order, u
    for k in range(2, 9):
        coefficient = coefficient * (order - k + 1) / k
        power = power * u
        total = total + coefficient * power
    return total
