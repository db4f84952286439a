"""One step of DP-SGD: its sample, its clipping on hostile rows, its noise, and planted faults that must be caught."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import subsampled
from patevolve.shared.noise.subsampled import LATTICE, SubsampledGaussianStep
from patevolve.shared.privacy import accountant
from patevolve.shared.randomness import SystemNoise

STEP = SubsampledGaussianStep(noise_multiplier=1.0, sample_rate=0.1, clip=2.0)


class Silence:
    """A source whose every word is zero: the same sample and, below, no noise."""

    def read(self, count: int) -> bytes:
        return bytes(count)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsampled, "sample", lambda *arguments: np.zeros(arguments[1], np.int64))


@given(
    rows=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6),
        elements=st.floats(allow_nan=True, allow_infinity=True),
    )
)
@pytest.mark.usefixtures("no_noise")
def test_no_row_moves_the_sum_by_more_than_the_lattice(rows: np.ndarray) -> None:
    room = LATTICE - 1 - math.sqrt(rows.shape[1]) / 2
    with_it, without = STEP.release(rows, Silence()), STEP.release(rows[1:], Silence())
    moved = np.rint((with_it - without) * room / STEP.clip)
    assert np.linalg.norm(moved) <= LATTICE
    assert np.isfinite(with_it).all()


@pytest.mark.usefixtures("no_noise")
def test_a_short_row_is_kept_and_a_long_one_is_clipped() -> None:
    assert STEP.release(np.array([[0.6, 0.8]]), Silence()) == pytest.approx([0.6, 0.8], abs=1e-5)
    assert STEP.release(np.array([[300.0, 400.0]]), Silence()) == pytest.approx([1.2, 1.6], abs=1e-5)


def test_an_empty_sample_is_a_legal_step_of_noise() -> None:
    released = STEP.release(np.zeros((0, 1000)), SystemNoise())
    assert released.std() > 1.0


def test_the_noise_has_the_promised_spread(alpha: float) -> None:
    # 10^6 draws: the sample variance of n normals lies within 2·sqrt(ln(2/α)/n) + 2·ln(2/α)/n of 1 (Laurent and Massart
    # 2000), here 0.9 %; a noise 2 % too small has its variance 4 % off, beyond twice the limit.
    n = 1_000_000
    values = STEP.release(np.zeros((0, n)), SystemNoise()) / STEP.std
    slack = 2 * math.sqrt(math.log(2 / alpha) / n) + 2 * math.log(2 / alpha) / n
    assert abs(values @ values / n - 1) < slack
    too_small = 0.98 * values
    assert abs(too_small @ too_small / n - 1) > slack  # the planted fault


def test_each_unit_enters_with_the_stated_rate(alpha: float) -> None:
    # Hoeffding: a share of n fair indicators lies within sqrt(ln(2/α)/2n) of its rate.
    n = 1_000_000
    share = STEP.sample(n, SystemNoise()).mean()
    slack = math.sqrt(math.log(2 / alpha) / (2 * n))
    assert abs(share - STEP.sample_rate) < slack
    assert abs(share - 1.1 * STEP.sample_rate) > slack  # a rate 10 % off is caught


def test_every_unit_enters_at_rate_one_and_none_of_none() -> None:
    whole = SubsampledGaussianStep(noise_multiplier=1.0, sample_rate=1.0, clip=1.0)
    assert whole.sample(100, SystemNoise()).all()
    assert STEP.sample(0, SystemNoise()).size == 0


def test_ten_steps_cost_what_the_published_accountants_say() -> None:
    # σ = 1, q = .1, T = 10, δ = 1e-5: RDP 3.4416 (opacus, dp-accounting) less what their fractional orders overstate.
    cost = accountant.epsilon(accountant.rdp(STEP.event(count=10)), 1e-5).epsilon
    assert cost == pytest.approx(3.4416, abs=1e-3)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True, "1"])
@pytest.mark.parametrize("name", ["noise_multiplier", "sample_rate", "clip"])
def test_parameters_outside_their_domain_are_refused(name: str, bad: object) -> None:
    good = {"noise_multiplier": 1.0, "sample_rate": 0.1, "clip": 1.0}
    with pytest.raises(ParameterError):
        SubsampledGaussianStep(**{**good, name: bad})


def test_a_rate_above_one_and_vectors_without_rows_are_refused() -> None:
    with pytest.raises(ParameterError):
        SubsampledGaussianStep(noise_multiplier=1.0, sample_rate=1.5, clip=1.0)
    with pytest.raises(ParameterError):
        STEP.release(np.zeros(3), SystemNoise())


@given(d=st.integers(1, 9), units=st.integers(0, 50), seed=st.integers(0, 2**32 - 1))
@pytest.mark.usefixtures("no_noise")
def test_a_unit_moves_a_sum_by_at_most_the_lattice(d: int, units: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(units + 1, d))
    rows *= STEP.clip * (1 + subsampled.SLACK) / np.linalg.norm(rows, axis=1, keepdims=True)
    room = (LATTICE - 1 - math.sqrt(d)) / (1 + subsampled.SLACK)
    with_it = STEP.release_sum(rows.sum(axis=0), units + 1, Silence())
    without = STEP.release_sum(rows[1:].sum(axis=0), units, Silence())
    assert np.linalg.norm(np.rint((with_it - without) * room / STEP.clip)) <= LATTICE
    assert with_it == pytest.approx(rows.sum(axis=0), abs=1e-5)


@pytest.mark.parametrize(
    ("total", "units"),
    [
        (np.array([5.0, 0.0]), 2),
        (np.array([math.nan]), 2),
        (np.array([math.inf]), 2),
        (np.ones(2), 0),
        (np.zeros((2, 2)), 1),
        (np.zeros(0), 1),
        (np.zeros(2), -1),
        (np.zeros(2), True),
    ],
)
def test_a_sum_that_no_clipped_vectors_have_is_refused_before_noise(total: np.ndarray, units: int) -> None:
    class Untouched:
        def read(self, _: int) -> bytes:
            raise AssertionError("noise was drawn")

    with pytest.raises(ParameterError):
        STEP.release_sum(total, units, Untouched())


def test_an_empty_sum_is_a_legal_step_of_noise() -> None:
    assert STEP.release_sum(np.zeros(1000), 0, SystemNoise()).std() > 1.0
