"""The tables against the laws they stand for, entry by entry, in high precision."""

import importlib
import math

import numpy as np
import pytest

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import discrete_gaussian, discrete_laplace, skellam, tables
from patevolve.shared.randomness import RecordedNoise, SystemNoise

WHOLE = 1 << tables.MASS_BITS


def masses_of(table):
    capacity = 1 << (tables.MASS_BITS - table.bits)
    found = [0] * len(table.alias)
    for column, (high, low, alias) in enumerate(zip(table.high, table.low, table.alias, strict=True)):
        threshold = (int(high) << 64) | int(low)
        found[column] += threshold
        found[int(alias)] += capacity - threshold
    return found


def distance_from(table, weight):
    """Total variation between a table and the law proportional to ``weight(k)`` on all integers, in high precision."""
    mpmath = importlib.import_module("mpmath")
    with mpmath.workdps(90):
        masses = masses_of(table)
        support = range(table.offset, table.offset + len(masses))
        weights = [weight(mpmath, k) for k in support]
        total = mpmath.fsum(weights)
        return mpmath.fsum(abs(mpmath.mpf(m) / WHOLE - w / total) for m, w in zip(masses, weights, strict=True)) / 2


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0, 2.0, 40.0, 137.31])
def test_the_discrete_gaussian_is_within_its_stated_distance(sigma):
    pytest.importorskip("mpmath")
    table = discrete_gaussian.sampler(sigma).fine
    found = distance_from(table, lambda mp, k: mp.exp(-(mp.mpf(k) ** 2) / (2 * mp.mpf(sigma) ** 2)))
    assert found <= table.distance < 1e-33


@pytest.mark.parametrize("scale", [0.05, 1.0, 3.3, 60.0])
def test_the_discrete_laplace_is_within_its_stated_distance(scale):
    pytest.importorskip("mpmath")
    table = discrete_laplace.sampler(scale).fine
    found = distance_from(table, lambda mp, k: mp.exp(-abs(k) / mp.mpf(scale)))
    assert found <= table.distance < 1e-33


@pytest.mark.parametrize("variance", [0.25, 4.0, 400.0])
def test_the_skellam_law_is_within_its_stated_distance(variance):
    pytest.importorskip("mpmath")
    table = skellam.sampler(variance)
    cache = {}

    def weight(mp, k):
        if abs(k) not in cache:
            cache[abs(k)] = mp.besseli(abs(k), mp.mpf(variance)) * mp.exp(-mp.mpf(variance))
        return cache[abs(k)]

    assert distance_from(table, weight) <= table.distance < 1e-32


def floats(table):
    return np.array([mass / WHOLE for mass in masses_of(table)])


@pytest.mark.parametrize("sigma", [200.5, 333.3, 1000.0])
def test_two_small_gaussians_make_a_large_one(sigma):
    made = discrete_gaussian.sampler(sigma)
    fine, coarse = floats(made.fine), floats(made.coarse)
    spread = np.zeros(made.stretch * (coarse.size - 1) + 1)
    spread[:: made.stretch] = coarse
    law = np.convolve(spread, fine)
    k = np.arange(law.size) + made.fine.offset + made.stretch * made.coarse.offset
    exact = np.exp(-((k / sigma) ** 2) / 2)
    exact /= exact.sum()
    centre = np.abs(k) < 9 * sigma
    assert law[centre] == pytest.approx(exact[centre], rel=1e-10)
    assert made.distance < 1e-33


def test_a_stretch_too_wide_is_seen():
    """The planted twin: a fine part narrower than the stretch leaves a comb, and the check above would see it."""
    wide, narrow = discrete_gaussian.sampler(25.0), discrete_gaussian.sampler(2.0)
    fine, coarse = floats(narrow.fine), floats(wide.fine)
    spread = np.zeros(8 * (coarse.size - 1) + 1)
    spread[::8] = coarse
    law = np.convolve(spread, fine)
    k = np.arange(law.size) + narrow.fine.offset + 8 * wide.fine.offset
    sigma = math.sqrt(64 * 625 + 4)
    exact = np.exp(-((k / sigma) ** 2) / 2)
    assert law.max() > 1.5 * (exact / exact.sum()).max()


@pytest.mark.parametrize("scale", [64.5, 1000.0])
def test_two_digits_make_a_geometric_and_two_geometrics_a_laplace(scale):
    made = discrete_laplace.sampler(scale)
    fine, coarse = floats(made.fine)[: made.stretch], floats(made.coarse)
    geometric = np.outer(coarse, fine).ravel()
    ratio = math.exp(-1 / scale)
    exact = (1 - ratio) * ratio ** np.arange(geometric.size)
    seen = exact > 1e-25
    assert geometric[seen] == pytest.approx(exact[seen], rel=1e-10)
    assert made.distance < 1e-33


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 1e-3, 1e300, True, "4", None], ids=repr)
def test_parameters_outside_the_samplers_are_refused(bad):
    for sampler in (discrete_gaussian.sampler, discrete_laplace.sampler, skellam.sampler):
        with pytest.raises((ParameterError, TypeError)):
            sampler(bad)


@pytest.mark.parametrize(
    "sample",
    [
        lambda source: discrete_gaussian.sample(40.0, 50_000, source),
        lambda source: discrete_gaussian.sample(4e4, 50_000, source),
        lambda source: discrete_laplace.sample(900.0, 50_000, source),
        lambda source: skellam.sample(1600.0, 50_000, source),
    ],
)
def test_the_same_bytes_give_the_same_noise_and_the_system_never_repeats(sample, recorded_noise):
    assert np.array_equal(sample(RecordedNoise("a")), sample(RecordedNoise("a")))
    assert not np.array_equal(sample(RecordedNoise("a")), sample(RecordedNoise("b")))
    assert not np.array_equal(sample(SystemNoise()), sample(SystemNoise()))
