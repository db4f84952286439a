"""Whether a student's probabilities mean what they say, on real held-out records: for research on public data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 10


def probabilities(student: Mapping[str, NDArray[Any]], features: Floats) -> Floats:
    """Return (n, classes) probabilities of a linear student with ``weights`` (d, classes) and ``bias`` (classes,)."""
    logits = features @ student["weights"] + student["bias"]
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), dtype=np.float64)


def calibration(chances: Floats, classes: NDArray[np.int64]) -> dict[str, Any]:
    """Return how often the most likely class is right, by the probability that it was given, and the mean error.

    error: mean of |accuracy − confidence| over bins, weighed by their records (Naeini, Cooper and Hauskrecht 2015)
    brier: mean squared distance between the probabilities and the class (Brier 1950)
    """
    sure, right = chances.max(axis=1), chances.argmax(axis=1) == classes
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    rows, error = [], 0.0
    for number in range(BINS):
        own = place == number
        if not own.any():
            continue
        confidence, accuracy = float(sure[own].mean()), float(right[own].mean())
        error += float(own.mean()) * abs(accuracy - confidence)
        rows.append(
            {
                "from": number / BINS,
                "to": (number + 1) / BINS,
                "records": int(own.sum()),
                "confidence": confidence,
                "accuracy": accuracy,
            }
        )
    wanted = np.eye(chances.shape[1])[classes]
    return {"bins": rows, "error": error, "brier": float(np.mean(np.sum((chances - wanted) ** 2, axis=1)))}
