"""How varied a release is, and how well it fits what was released before it: all of it from public values.

Distances are between public features. A class whose samples lie nearly on one another, or a population whose spread has
fallen, is on the way to a collapse; the release gate stops a complete one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

COLLAPSING = 0.5  # of the first generation's spread, under which the report warns
MOST = 500  # samples of a class that are looked at, evenly spaced
BINS = 12


def diversity(
    features: Floats, classes: Labels, names: Sequence[str], fit: tuple[Floats, Floats] | None
) -> dict[str, Any]:
    """Return coverage by class, and the distributions of nearest distances and of scores.

    features:  (n, d);  classes: (n,)
    fit:       (n, m) statistics of the samples and (classes, m) what was released of the classes, or None
    A sample's score is its distance from the nearest other class's released model less that from its own: positive if
    it looks like its own class.
    """
    rows, distances, scores = [], [], []
    for cls, name in enumerate(names):
        own = np.flatnonzero(classes == cls)
        looked = own[np.linspace(0, len(own) - 1, min(MOST, len(own))).astype(np.int64)] if own.size else own
        near = nearest_other(features[looked])
        margin = np.zeros(0) if fit is None else margins(fit[0][looked], fit[1], cls)
        distances.append(near)
        scores.append(margin)
        rows.append(
            {
                "class": str(name),
                "rows": int(own.size),
                "distinct": len(np.unique(features[own], axis=0)) if own.size else 0,
                "nearest": float(np.median(near)) if near.size else None,
                "own": float(np.mean(margin > 0.0)) if margin.size else None,
            }
        )
    return {
        "classes": rows,
        "similarity": histogram(np.concatenate(distances)) if distances else None,
        "scores": histogram(np.concatenate(scores)) if fit is not None and scores else None,
    }


def nearest_other(features: Floats) -> Floats:
    """Return each row's distance to the nearest other row, (n,); empty for fewer than two."""
    if len(features) < 2:
        return np.zeros(0)
    squares = np.einsum("nd,nd->n", features, features)
    apart = squares[:, None] + squares - 2.0 * features @ features.T
    np.fill_diagonal(apart, np.inf)
    near: Floats = np.sqrt(np.maximum(apart.min(axis=1), 0.0))
    return near


def margins(statistics: Floats, models: Floats, cls: int) -> Floats:
    """Return (n,) distances from the nearest other class's model less those from the model of ``cls``."""
    apart = np.stack([np.linalg.norm(statistics - model, axis=1) for model in models])
    others = np.delete(apart, cls, axis=0)
    return np.asarray((others.min(axis=0) if len(others) else np.zeros(len(statistics))) - apart[cls])


def histogram(values: Floats) -> dict[str, Any] | None:
    """Return shares over equal bins, with their labels; None without finite values."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    counts, edges = np.histogram(known, bins=BINS)
    return {"labels": [f"{edge:.3g}" for edge in edges[:-1]], "shares": (counts / known.size).tolist()}


def collapse(generations: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if the population's spread has fallen far below that of the first generation."""
    spreads = [row["spread"] for row in generations if isinstance(row.get("spread"), int | float)]
    if len(spreads) < 2 or not spreads[-1] < COLLAPSING * spreads[0]:
        return None
    return (
        f"the candidates are becoming alike: the population's spread fell to {100 * spreads[-1] / spreads[0]:.0f} % of "
        f"the first generation's"
    )
