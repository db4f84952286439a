"""A classifier from noisy gradients: it finds what least squares of the loss would, and noise keeps it short."""

import numpy as np
import pytest

from patevolve.shared.evolution.descend import (
    CURVATURE,
    RATE,
    WANDER,
    averaged,
    classified,
    preconditioner,
    stepped,
)

RNG = np.random.default_rng(0)
CLASSES, SIZE = 3, 6
CENTRES = RNG.normal(size=(CLASSES, SIZE))


def records(count, rng):
    classes = rng.integers(0, CLASSES, count)
    rows = CENTRES[classes] + 0.4 * rng.normal(size=(count, SIZE))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), classes


def descended(noise, steps=40, seed=1):
    """Return the accuracy on other records after steps whose mean gradients carry noise of this size."""
    rng = np.random.default_rng(seed)
    (rows, classes), (others, theirs) = records(3000, rng), records(3000, rng)
    inverse, weights, path = preconditioner(records(500, rng)[0], noise), np.zeros((CLASSES, SIZE)), []
    for _ in range(steps):
        odds = np.exp(rows @ weights.T)
        residuals = odds / odds.sum(axis=1, keepdims=True) - np.eye(CLASSES)[classes]
        gradient = residuals.T @ rows / len(rows) + noise * rng.normal(size=weights.shape)
        weights = stepped(weights, gradient, inverse)
        path.append(weights)
    found = averaged(path)
    return np.mean(classified(others, found) == theirs), float(np.abs(found).max())


def test_without_noise_it_tells_the_classes_apart():
    accuracy, _ = descended(0.0)
    assert accuracy > 0.95


def test_noise_costs_accuracy_but_never_the_size_of_the_weights():
    (clear, _), (noisy, size), (drowned, length) = descended(0.0), descended(0.02), descended(10.0)
    assert clear >= noisy - 0.01
    assert noisy > drowned
    assert size < 100
    assert length < 10


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0, 100.0])
def test_the_noise_of_a_step_moves_logits_as_little_as_promised(noise):
    """Measured over 400 steps of noise alone; and less of a ridge would break the promise."""
    rows, _ = records(500, np.random.default_rng(2))
    inverse, rng = preconditioner(rows, noise), np.random.default_rng(3)
    moved = [rows @ (RATE * noise * rng.normal(size=(1, SIZE)) @ inverse).T for _ in range(400)]
    found = np.sqrt(np.mean(np.square(moved)))
    assert found <= 1.1 * WANDER
    if noise >= 1e-2:  # less of it lets every direction have its whole step
        assert found >= 0.9 * WANDER


def test_without_noise_steps_are_those_of_newton_with_a_fixed_curvature():
    rows, _ = records(500, np.random.default_rng(2))
    inverse = preconditioner(rows, 0.0)
    assert np.allclose(inverse @ (CURVATURE * rows.T @ rows / len(rows)), np.eye(SIZE), atol=1e-3)


def test_weights_travel_as_they_are():
    """Single precision holds them, so that a question is half as long and the sites see what the coordinator has."""
    weights = stepped(np.zeros((2, 2)), np.full((2, 2), 0.1), np.eye(2))
    assert np.array_equal(weights, weights.astype(np.float32))
    assert averaged([np.zeros((1, 1)), np.full((1, 1), 2.0), np.full((1, 1), 4.0)]).item() == 3.0
