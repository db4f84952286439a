"""A linear discriminant whose second moments are public and whose class means are noisy."""

import numpy as np
import pytest

from patevolve.shared.evolution.discriminate import discriminant, refined, surest

CLASSES, WIDTH = 4, 12


def drawn(seed=0, count=3000):
    """Return embeddings of four overlapping clouds with their classes, the constant last."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, WIDTH - 1))
    classes = rng.integers(CLASSES, size=count)
    rows = centres[classes] + 0.9 * rng.normal(size=(count, WIDTH - 1))
    return np.hstack([rows, np.ones((count, 1))]), classes


def joint_of(rows, classes):
    return np.stack([rows[classes == cls].sum(axis=0) for cls in range(CLASSES)]) / len(rows)


def test_without_noise_it_is_least_squares_on_the_indicators():
    rows, classes = drawn()
    scores = discriminant(rows, joint_of(rows, classes), 0.0)
    expected = rows @ np.linalg.lstsq(rows, np.eye(CLASSES)[classes], rcond=None)[0]
    np.testing.assert_allclose(scores, expected, atol=1e-2)
    assert np.mean(scores.argmax(axis=1) == classes) > 0.9


def test_a_ridge_as_large_as_the_noise_and_a_refinement_both_help():
    rows, classes = drawn()
    right = {"bare": [], "ridge": [], "refined": []}
    for seed in range(20):
        noisy = joint_of(rows, classes) + 0.08 * np.random.default_rng(seed).normal(size=(CLASSES, WIDTH))
        bare, ridged = discriminant(rows, noisy, 0.0), discriminant(rows, noisy, 0.08)
        for name, scores in (("bare", bare), ("ridge", ridged), ("refined", refined(rows, ridged))):
            right[name].append(np.mean(scores.argmax(axis=1) == classes))
    means = {name: np.mean(values) for name, values in right.items()}
    assert means["bare"] < means["ridge"] < means["refined"]


def test_the_surest_of_each_class_come_first_and_no_class_stays_empty():
    scores = np.array([[0.9, 0.1, 0.0], [0.6, 0.5, 0.0], [0.1, 0.8, 0.0], [0.2, 0.1, 0.05]])
    found = surest(scores, [2, 5, 3])
    assert [own.tolist() for own in found] == [[0, 3], [2], [3]]


@pytest.mark.parametrize("count", [1, 2])
def test_no_class_gets_more_than_its_count(count):
    rows, classes = drawn(count=300)
    found = surest(discriminant(rows, joint_of(rows, classes), 0.0), [count] * CLASSES)
    assert [len(own) for own in found] == [count] * CLASSES
