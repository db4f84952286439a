"""Parameters stay short whatever learning rate a plan names: long ones would let rounding tie units together."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from patevolve.shared.encoder.dpsgd import GhostClipping, load_flat  # noqa: E402
from patevolve.shared.encoder.fitted import LARGEST as LARGEST_STATISTIC  # noqa: E402
from patevolve.shared.encoder.train import (  # noqa: E402
    REACH,
    WIDEST,
    Bank,
    Settings,
    Stretch,
    identity,
    objective_at,
    train,
    units_of,
)
from patevolve.shared.noise.subsampled import SLACK  # noqa: E402

D, UNITS, CLIP = 64, 32, 0.1
STEEP = Settings(stretches=(Stretch(steps=3, batch=10, temperature=0.05),), clip=CLIP)


def bank():
    rng = np.random.default_rng(1)
    return Bank(inputs=rng.normal(size=(200, D)) / 8, classes=np.repeat(np.arange(2), 100))


def between(weights):
    """Return units whose long features lie, nearly, where the weights map to nothing: rounding is all that is left."""
    rng, length = np.random.default_rng(0), np.linalg.norm(weights)
    null = np.linalg.svd(weights)[2][-1]
    views = 10.0 * np.tile(null, (2, UNITS, 1)) * np.array([1.0, -1.0])[:, None, None]
    views += rng.normal(size=views.shape) * 1e-3 / length
    return units_of(views, np.zeros(UNITS, int), np.arange(UNITS).astype(str), 2)


def flattened(length):
    """Return weights of this length without an inverse."""
    left, _, right = np.linalg.svd(np.random.default_rng(2).normal(size=(D, D)))
    sizes = np.full(D, length / D**0.5)
    sizes[-1] = 0.0
    return left @ np.diag(sizes) @ right


def company(length):
    """Return by how much of a clip the others' sum moves when they are taken together and not one by one."""
    weights, network = flattened(length), identity(D)
    load_flat(network, weights.ravel())
    objective = objective_at(network, between(weights), bank(), settings=STEEP, step=0, device="cpu")
    own = GhostClipping(network, CLIP)
    alone = sum(own.sums(objective, np.array([unit])) for unit in range(UNITS))
    moved = float(np.linalg.norm(own.sums(objective, np.arange(UNITS)) - alone)) / CLIP
    own.close()
    return moved


def test_at_the_greatest_length_company_stays_far_inside_the_slack():
    assert company(WIDEST * D**0.5) < SLACK / 1000


def test_the_planted_long_weights_pass_the_slack():
    assert company(1e13) > SLACK


class Noisy:
    """An account whose noisy sums are noise alone, as a private plan's nearly are."""

    def __init__(self):
        self.rng = np.random.default_rng(3)

    def stored(self, _):
        return None

    def sample(self, _, units):
        return np.ones(units, bool)

    def release(self, _, total, __):
        return total + self.rng.normal(size=total.shape)


@pytest.mark.parametrize("rate", [1e3, 1e12, 1e200])
def test_no_learning_rate_makes_parameters_longer_than_stated(rate):
    network, units = identity(D), between(flattened(1.0))
    done = train(network, units, bank(), dataclasses.replace(STEEP, rate=rate), Noisy())
    assert np.linalg.norm(network.weight.detach().numpy()) <= WIDEST * D**0.5 * (1 + 1e-9)
    assert np.linalg.norm(done.vector) <= WIDEST * D**0.5 * (1 + 1e-9)


def test_a_moderate_rate_is_left_as_it_is():
    found = [train(identity(D), between(flattened(1.0)), bank(), STEEP, Noisy()).vector for _ in range(2)]
    assert np.array_equal(*found)
    assert np.linalg.norm(found[0]) < WIDEST * D**0.5


def test_no_feature_that_public_files_can_make_keeps_a_site_from_training():
    """The largest float32 times the largest statistics: a site that refused would tell that it has such a record."""
    views = np.ones((2, 3, D))
    views[:, 1] = float(np.finfo(np.float32).max) * LARGEST_STATISTIC * 16_384
    units = units_of(views, np.zeros(3, int), np.array(list("abc")), 2)
    assert np.linalg.norm(units.views, axis=-1).max() <= REACH * (1 + 1e-12)
