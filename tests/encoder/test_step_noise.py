"""White-box audit of a training step: the noise of released sums is the planned one, within 1 %, and nothing less."""

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from patevolve.shared.encoder.train import Bank, Settings, Stretch, identity, train, units_of
from patevolve.shared.noise import subsampled
from patevolve.shared.noise.subsampled import SubsampledGaussianStep
from patevolve.shared.randomness import SystemNoise

D, STEPS, MULTIPLIER, CLIP, RATE = 128, 20, 1.3, 0.7, 0.5
VALUES = D * D * STEPS  # 327,680
WITHIN = 0.01  # of the planned standard deviation


class Audited:
    """An account that keeps, for each step, the released sum less the exact one."""

    def __init__(self):
        self.mechanism = SubsampledGaussianStep(noise_multiplier=MULTIPLIER, sample_rate=RATE, clip=CLIP)
        self.source, self.noise, self.sizes = SystemNoise(), [], []

    def stored(self, *_):
        return None

    def sample(self, _, units):
        return self.mechanism.sample(units, self.source)

    def release(self, _, total, units):
        noisy = self.mechanism.release_sum(total, units, self.source)
        self.noise.append(noisy - total)
        self.sizes.append(units)
        return noisy


def audit():
    """Return (residuals in planned standard deviations, sample sizes) of a training run on 40 units."""
    rng = np.random.default_rng(0)
    names = np.array([f"u{i}" for i in range(40)])
    units = units_of(rng.normal(size=(2, 40, D)), rng.integers(0, 2, 40), names, 2)
    bank = Bank(inputs=rng.normal(size=(64, D)), classes=np.arange(64) % 2)
    settings = Settings(
        stretches=(Stretch(steps=STEPS, batch=20, temperature=0.15),), clip=CLIP, rate=1e-3, supervised=0.5
    )
    account = Audited()
    assert train(identity(D), units, bank, settings, account).steps == STEPS
    return np.concatenate(account.noise) / (MULTIPLIER * CLIP), account.sizes


def test_the_noise_of_training_steps_is_the_planned_one(alpha):
    """The standard deviation of n values spreads by 1/√2n = 0.12 %: 1 % less the lattice's own 0.11 % is 7 of it.

    A correct build is refused with probability below 1e-12; noise off by 2 % is caught all but always.
    """
    residuals, sizes = audit()
    assert len(residuals) == VALUES
    assert abs(residuals.std() - 1.0) < WITHIN
    assert abs(residuals.mean()) < math.sqrt(2 * math.log(2 / alpha) / VALUES) * 1.01
    assert len(set(sizes)) > 1  # the sample's size varies, as Poisson samples do
    low, high = 0.5 * 40 * STEPS - 6.5 * math.sqrt(10 * STEPS), 0.5 * 40 * STEPS + 6.5 * math.sqrt(10 * STEPS)
    assert low < sum(sizes) < high


def test_planted_noise_of_seven_tenths_is_caught(monkeypatch):
    real = subsampled.sample
    monkeypatch.setattr(subsampled, "sample", lambda sigma, count, source: real(0.7 * sigma, count, source))
    residuals, _ = audit()
    assert abs(residuals.std() - 1.0) >= WITHIN
    assert residuals.std() == pytest.approx(0.7, abs=0.01)


def test_two_runs_draw_other_noise():
    """The same seed of public streams never means the same noise."""
    first, second = audit()[0], audit()[0]
    assert abs(np.corrcoef(first[:4096], second[:4096])[0, 1]) < 0.12
