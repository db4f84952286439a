"""Students: small models trained on released samples alone, so they cost nothing beyond the release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import InputError


class Classifier(Protocol):
    """What the students have in common with scikit-learn's estimators."""

    classes_: NDArray[Any]

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Any:
        """Train on (n, d) features and (n,) classes."""

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return (n,) classes."""


def logistic() -> Classifier:
    """Return an untrained multinomial logistic regression."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - an extra: the voting path needs no scikit-learn

    model: Classifier = LogisticRegression(C=0.1, max_iter=500)
    return model


def boosted() -> Classifier:
    """Return untrained boosted trees, small and regularised: public settings, not tuned on private data."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - an extra

    model: Classifier = HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_iter=100,
        max_leaf_nodes=6,
        min_samples_leaf=20,
        l2_regularization=5.0,
        early_stopping=False,
        random_state=0,
    )
    return model


def svm() -> Classifier:
    """Return an untrained support vector machine with a Gaussian kernel."""
    from sklearn.svm import SVC  # noqa: PLC0415 - an extra

    model: Classifier = SVC(C=5.0)
    return model


def linear_student(features: NDArray[np.float64], classes: NDArray[np.int64], count: int) -> dict[str, NDArray[Any]]:
    """Return ``weights`` (d, classes) and ``bias`` (classes,) of a logistic student: arrays that a site can apply.

    Raises InputError if scikit-learn is not installed.
    """
    try:
        model: Any = logistic().fit(features, classes)
    except ImportError as reason:
        raise InputError("students need scikit-learn; install it with: pip install 'patevolve[demo]'") from reason
    weights, bias = np.zeros((features.shape[1], count)), np.full(count, -1e9)  # a class never seen is never chosen
    if len(model.classes_) == 2:  # scikit-learn keeps one row for two classes
        weights[:, model.classes_[1]], bias[model.classes_] = model.coef_[0], [0.0, float(model.intercept_[0])]
    else:
        weights[:, model.classes_], bias[model.classes_] = model.coef_.T, model.intercept_
    return {"weights": weights, "bias": bias}


STUDENTS: dict[str, Callable[[], Classifier]] = {"logistic": logistic, "boosted": boosted, "svm": svm}
