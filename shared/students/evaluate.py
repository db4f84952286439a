"""How well a student does on real held-out records: for research on public data, or at a site that keeps the figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.students.train import STUDENTS


def auroc(model: Any, features: NDArray[np.float64], classes: NDArray[np.int64]) -> float:
    """Return the area under the ROC curve of class 1 against class 0; chance is 0.5."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - an extra: the voting path needs no scikit-learn

    return float(roc_auc_score(classes, model.predict_proba(features)[:, 1]))


def accuracy(model: Any, features: NDArray[np.float64], classes: NDArray[np.int64]) -> float:
    """Return the share of right classes; chance is the share of the largest class."""
    return float(np.mean(model.predict(features) == classes))


METRICS = {"AUROC": auroc, "accuracy": accuracy}


def evaluate(
    train: tuple[NDArray[np.float64], NDArray[np.int64]],
    test: tuple[NDArray[np.float64], NDArray[np.int64]],
    *,
    student: str,
    metric: str,
) -> float:
    """Return the metric of a student trained on ``train`` and tested on ``test``; NaN if ``train`` has one class."""
    features, classes = train
    if len(np.unique(classes)) < 2:
        return float("nan")
    return METRICS[metric](STUDENTS[student]().fit(features, classes), *test)
