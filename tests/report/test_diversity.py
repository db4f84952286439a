"""Variety, fit and calibration agree with a count by hand, and a falling spread is told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from patevolve.shared.report import diversity
from patevolve.shared.students.calibrate import calibration, probabilities


def test_nearest_other_is_that_of_a_count_by_hand() -> None:
    rows = np.random.default_rng(1).normal(size=(40, 3))
    by_hand = [min(math.dist(a, b) for j, b in enumerate(rows) if i != j) for i, a in enumerate(rows)]
    assert diversity.nearest_other(rows) == pytest.approx(by_hand, rel=1e-6)
    assert diversity.nearest_other(rows[:1]).size == 0


def test_copies_and_fit_are_counted_by_class() -> None:
    features = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [5.0, 5.0], [0.0, 0.1]])
    models = np.array([[0.0, 0.0], [5.0, 5.0]])
    found = diversity.diversity(features, np.array([0, 0, 0, 1, 1]), ["a", "b", "none"], (features, models[[0, 1, 1]]))
    a, b, none = found["classes"]
    assert (a["rows"], a["distinct"], a["nearest"], a["own"]) == (3, 2, 0.0, 1.0)
    assert (b["rows"], b["own"]) == (2, 0.0)  # the third model is the second again, so nothing is nearer to its own
    assert (none["rows"], none["distinct"], none["nearest"], none["own"]) == (0, 0, None, None)
    assert sum(found["similarity"]["shares"]) == pytest.approx(1.0)


def test_without_a_released_model_there_is_no_score() -> None:
    found = diversity.diversity(np.eye(3), np.zeros(3, np.int64), ["a"], None)
    assert found["scores"] is None
    assert found["classes"][0]["own"] is None


@pytest.mark.parametrize(("last", "warned"), [(1.0, False), (0.51, False), (0.49, True), (0.0, True), (None, False)])
def test_a_falling_spread_is_told(last: float | None, warned: bool) -> None:
    rows = [{"spread": 1.0}, {"spread": 0.8}, {"spread": last}]
    assert (diversity.collapse(rows) is not None) is warned
    assert diversity.collapse([]) is None


def test_a_calibrated_student_has_no_error_and_a_boastful_one_has() -> None:
    random = np.random.default_rng(2)
    sure = random.uniform(0.5, 1.0, 20_000)
    right = random.random(20_000) < sure
    classes = np.where(right, 1, 0)
    honest = calibration(np.stack([1 - sure, sure], axis=1), classes)
    assert honest["error"] < 0.03  # 5 bins of 4,000: a standard error of at most 0.008 each
    boastful = calibration(np.stack([0 * sure, 1 + 0 * sure], axis=1), classes)
    assert boastful["error"] == pytest.approx(1 - right.mean())
    assert boastful["brier"] == pytest.approx(2 * (1 - right.mean()))
    assert sum(row["records"] for row in honest["bins"]) == 20_000


def test_probabilities_are_those_of_the_linear_student() -> None:
    student = {"weights": np.array([[1.0, -1.0]]), "bias": np.array([0.0, 0.5])}
    found = probabilities(student, np.array([[0.3], [2000.0]]))
    assert found.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert found[0, 0] == pytest.approx(1 / (1 + math.exp(-0.6 + 0.5)))
