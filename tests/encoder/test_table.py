"""Tables to vectors, and noisy sums of them back to level shares."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.encoder.table import TableEncoder, simplex
from patevolve.shared.protocols import Sums
from patevolve.shared.schema import Column

SCHEMA = (
    Column(name="a", kind="numeric", edges=(0.0, 1.0, 2.0, 3.0), missing=True),
    Column(name="b", kind="categorical", values=("x", "y")),
    Column(name="c", kind="categorical", values=("only",)),
)
ENCODER = TableEncoder(schema=SCHEMA)
LEVELS = [4, 2, 1]


def rows(seed, n):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(level, size=n) for level in LEVELS], axis=1)


@given(st.integers(0, 2**32), st.integers(0, 9))
def test_one_hot_rows(seed, n):
    values = rows(seed, n)
    found = ENCODER.encode(values)
    expected = np.array(
        [
            [float(code == level) for code, most in zip(row, LEVELS, strict=True) for level in range(most)]
            for row in values
        ]
    ).reshape(n, 7)
    assert np.array_equal(found, expected)


def test_every_embedding_has_norm_one():
    """Exactly 1, so that a unit's whole ballot is used; never above it, so that nothing is clipped."""
    every = np.array(list(itertools.product(*map(range, LEVELS))))
    norms = np.linalg.norm(ENCODER.embed(ENCODER.encode(every)), axis=1)
    assert np.allclose(norms, 1.0, atol=1e-12)


def sums(values, classes, count, noise=0.0, seed=0):
    embedded = ENCODER.embed(ENCODER.encode(values))
    total = np.stack([embedded[classes == cls].sum(axis=0) for cls in range(count)])
    noisy = total + np.random.default_rng(seed).normal(0, noise, total.shape) if noise else total
    counts = np.bincount(classes, minlength=count).astype(float)
    std = np.full(count, noise)
    return Sums(values=noisy, counts=counts, std=std, apart_std=std / counts * np.sqrt(1 - 1 / count))


def true_shares(values, classes, count):
    encoded = ENCODER.encode(values)
    return np.stack([encoded[classes == cls].mean(axis=0) for cls in range(count)])


def test_without_noise_the_model_is_the_truth_up_to_the_pseudo_count():
    """Half a unit is added to each of at most 4 levels of a column: shares move by less than 2/(n + 2)."""
    values, classes = rows(1, 4000), np.arange(4000) % 2
    values[classes == 1, 0] = values[classes == 1, 0] % 2
    error = np.abs(ENCODER.model(sums(values, classes, 2)) - true_shares(values, classes, 2))
    assert error.max() < 2 / 2002


@given(st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 30.0, 1e4]))
def test_a_model_is_a_positive_distribution_of_every_column_whatever_the_noise(seed, noise):
    values, classes = rows(seed, 60), np.arange(60) % 3
    model = ENCODER.model(sums(values, classes, 3, noise, seed))
    assert (model > 0).all()
    starts = np.cumsum([0, *LEVELS])
    for start, end in itertools.pairwise(starts):
        assert np.allclose(model[:, start:end].sum(axis=1), 1.0)


def test_classes_that_differ_by_noise_alone_are_drawn_together():
    """With noise as large as the classes, their difference is shrunk: closer to the truth than without shrinking."""
    values, classes = rows(2, 400), np.arange(400) % 2
    errors = {"shrunk": [], "plain": []}
    for seed in range(20):
        noisy = sums(values, classes, 2, 60.0, seed)
        blind = Sums(values=noisy.values, counts=noisy.counts, std=noisy.std, apart_std=np.zeros(2))
        truth = true_shares(values, classes, 2)
        errors["shrunk"].append(np.abs(ENCODER.model(noisy) - truth).mean())
        errors["plain"].append(np.abs(ENCODER.model(blind) - truth).mean())
    assert np.mean(errors["shrunk"]) < 0.9 * np.mean(errors["plain"])


@given(st.integers(0, 2**32))
def test_the_likelihood_is_the_product_over_columns(seed):
    values = rows(seed, 20)
    model = ENCODER.model(sums(values, np.arange(20) % 2, 2, 1.0, seed))[0]
    starts = np.cumsum([0, *LEVELS[:-1]])
    expected = [np.prod([model[start + code] for start, code in zip(starts, row, strict=True)]) for row in values]
    assert np.allclose(np.exp(ENCODER.log_likelihood(ENCODER.encode(values), model)), expected)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.integers(0, 2**32))
def test_simplex_is_the_nearest_distribution(point, seed):
    """No distribution out of 300 random ones, and none of the corners, lies nearer; the result is one itself."""
    found = simplex(np.array(point))
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0).all()
    others = np.random.default_rng(seed).dirichlet(np.full(len(point), 0.5), 300)
    for other in (*others, *np.eye(len(point))):
        assert np.sum((found - point) ** 2) <= np.sum((other - point) ** 2) + 1e-9


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_a_distribution_is_its_own_nearest(weights):
    point = np.array(weights) / sum(weights)
    assert np.allclose(simplex(point), point)
