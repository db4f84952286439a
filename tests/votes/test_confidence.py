"""The seed article's fitness: what one unit can change, and why its Laplace(1/ε) does not cover it."""

import math
import zlib

import numpy as np
import pytest

from patevolve.shared.data.shard import teacher_of
from patevolve.shared.votes.confidence import STEPS, confidence, confidence_bounds

CANDIDATES, TEACHERS, SECRET = 30, 4, b"k" * 32
BOUNDS = confidence_bounds(CANDIDATES)


def memorising(features, shards):
    """Classifiers that react to everything that they saw, and are sure of a candidate or of none."""
    found = np.zeros((TEACHERS, CANDIDATES))
    for teacher in range(TEACHERS):
        seen = zlib.crc32(features[shards == teacher].tobytes())
        found[teacher] = np.random.default_rng(seen).integers(0, 2, CANDIDATES)
    return found


def changes(assign):
    rng = np.random.default_rng(1)
    units = np.array([f"u{i // 2}" for i in range(40)])
    features = rng.normal(size=(40, 3))
    whole = confidence(memorising(features, assign(units)), BOUNDS).values
    for unit in set(units.tolist()):
        keep = units != unit
        yield whole - confidence(memorising(features[keep], assign(units[keep])), BOUNDS).values


def keyed(units):
    return teacher_of(SECRET, units, TEACHERS)


def contiguous(units):
    return np.arange(len(units)) * TEACHERS // len(units)


def within(change, l1):
    return np.abs(change).sum() <= l1 + 1e-9 and np.linalg.norm(change) <= l1 / math.sqrt(CANDIDATES) + 1e-9


def test_a_unit_changes_one_classifier():
    assert pytest.approx(CANDIDATES * STEPS) == BOUNDS.lattice_l1
    assert pytest.approx(math.sqrt(CANDIDATES) * STEPS) == BOUNDS.lattice_l2
    assert all(within(change, BOUNDS.lattice_l1) for change in changes(keyed))


def test_planted_contiguous_shards_are_caught():
    assert not all(within(change, BOUNDS.lattice_l1) for change in changes(contiguous))


def test_planted_sensitivity_of_one_is_caught():
    """The article's bound, one confidence of one candidate: a single unit moves about half of all of them."""
    assert not all(within(change, STEPS) for change in changes(keyed))


@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf, 1e300, -5.0])
def test_what_a_classifier_says_is_clipped(hostile):
    tally = confidence(np.full((TEACHERS, CANDIDATES), hostile), BOUNDS)
    assert ((tally.values >= 0) & (tally.values <= TEACHERS * STEPS)).all()


def test_the_scale_is_whole_steps():
    assert BOUNDS.scale == STEPS
    assert confidence(np.full((2, CANDIDATES), 0.5), BOUNDS).values.tolist() == [STEPS] * CANDIDATES
