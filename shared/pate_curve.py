"""Measure what PATE's noise costs in accuracy: labels and student against ε, over seeds, on a small public data set."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.data import shard
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise.noisy_max import GNMax
from patevolve.shared.privacy import accountant
from patevolve.shared.randomness import SystemNoise, stream
from patevolve.shared.tally import ExactTally

FloatMatrix = NDArray[np.float64]
IntVector = NDArray[np.int64]

DATA_SETS = ("digits", "article")
SIGMAS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def load(name: str) -> tuple[FloatMatrix, IntVector]:
    """Return rows and classes of a named set. Needs scikit-learn. Raises ParameterError for another name."""
    from sklearn import datasets  # noqa: PLC0415 - only this command needs it; the voting path is numpy alone

    if name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        return np.asarray(x, dtype=np.float64) / 16.0, np.asarray(y, dtype=np.int64)
    if name == "article":
        x, y = datasets.make_classification(n_samples=6000, n_features=8, n_classes=4, n_informative=6, random_state=0)
        return np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.int64)
    raise ParameterError(f"data set {name!r} found; expected one of {', '.join(DATA_SETS)}.")


def accuracy_curve(
    name: str,
    *,
    teachers: int = 25,
    queries: int = 200,
    sigmas: Sequence[float] = SIGMAS,
    seeds: int = 3,
    delta: float = 1e-5,
) -> dict[str, Any]:
    """Return {points, baselines} of GNMax labels and a student on a data set, mean and sd over seeds; JSON-able.

    Half of the rows are private, a quarter is public (its first ``queries`` rows are asked), a quarter judges.
    Teachers and student are logistic regressions; a unit is a row, sharded by its keyed hash.
    """
    checks.integer(seeds=seeds, at_least=2)
    checks.integer(teachers=teachers, at_least=1)
    x, y = load(name)
    if checks.integer(queries=queries, at_least=1) > len(y) // 4:
        raise ParameterError(f"queries={queries} found; expected at most {len(y) // 4}, the public quarter of {name}.")
    runs = [_one_seed(x, y, teachers, queries, sigmas, seed) for seed in range(seeds)]
    points = []
    for place, sigma in enumerate(sigmas):
        event = GNMax(sigma=sigma, classes=int(y.max()) + 1).event(queries)
        label, label_sd = _mean_sd([run["labels"][place] for run in runs])
        student, student_sd = _mean_sd([run["students"][place] for run in runs])
        points.append(
            {
                "sigma": float(sigma),
                "epsilon": accountant.epsilon(accountant.compose([event]), delta).epsilon,
                "label_accuracy": label,
                "label_sd": label_sd,
                "student_accuracy": student,
                "student_sd": student_sd,
            }
        )
    names = (
        "no privacy, all private rows",
        "student without noise (ε = ∞)",
        "single teacher",
        "chance (largest class)",
    )
    baselines = {key: _mean_sd([run["baselines"][i] for run in runs]) for i, key in enumerate(names)}
    return {
        "data_set": name,
        "teachers": teachers,
        "queries": queries,
        "seeds": seeds,
        "delta": delta,
        "points": points,
        "baselines": {key: list(value) for key, value in baselines.items()},
    }


def _mean_sd(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1))


def _one_seed(  # noqa: PLR0917 - private, called once
    x: FloatMatrix, y: IntVector, teachers: int, queries: int, sigmas: Sequence[float], seed: int
) -> dict[str, list[float]]:
    order = stream(seed, "pate-curve", "split").permutation(len(y))
    private, public, judged = np.split(order, [len(y) // 2, 3 * len(y) // 4])
    asked = public[:queries]
    secret = hashlib.sha256(f"demonstration secret {seed}".encode()).digest()
    models = train_teachers(x[private], y[private], shard.teacher_of(secret, private.astype(str), teachers), teachers)
    classes = int(y.max()) + 1
    votes = count_votes([model.predict(x[asked]) for model in models], classes)
    source = SystemNoise()
    tally = ExactTally(values=votes.ravel(), l1=2.0 * queries, l2=math.sqrt(2.0 * queries))
    labels = [GNMax(sigma=sigma, classes=classes).release(tally, source) for sigma in sigmas]
    judge = (x[judged], y[judged])
    return {
        "labels": [float((given == y[asked]).mean()) for given in labels],
        "students": [_student(x[asked], given, judge) for given in labels],
        "baselines": [
            _student(x[private], y[private], judge),
            _student(x[asked], votes.argmax(axis=1), judge),
            float(np.mean([model.score(*judge) for model in models])),
            float(np.bincount(y[judged]).max() / judged.size),
        ],
    }


def train_teachers(x: FloatMatrix, y: IntVector, teacher: IntVector, teachers: int) -> list[Any]:
    """Return one logistic regression per shard. Raises ParameterError where a shard has fewer than two classes."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - optional, see ``load``

    models = []
    for k in range(teachers):
        rows = teacher == k
        if np.unique(y[rows]).size < 2:
            raise ParameterError(f"teachers={teachers} found; a shard is left with fewer than two classes. Use fewer.")
        models.append(LogisticRegression(max_iter=500).fit(x[rows], y[rows]))
    return models


def count_votes(predictions: Sequence[IntVector], classes: int) -> IntVector:
    """Return the votes of all teachers per query, (queries, classes) int64."""
    stacked = np.stack(predictions)
    return np.stack([(stacked == c).sum(axis=0) for c in range(classes)], axis=1).astype(np.int64)


def _student(x: FloatMatrix, labels: IntVector, judge: tuple[FloatMatrix, IntVector]) -> float:
    """Return the accuracy of a logistic regression trained on these labels; one class alone predicts that class."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - optional, see ``load``

    if np.unique(labels).size < 2:
        return float((judge[1] == labels[0]).mean())
    return float(LogisticRegression(max_iter=500).fit(x, labels).score(*judge))
