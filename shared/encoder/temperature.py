"""The loss's temperature, searched coarse then fine on public data alone: that is free, and anyone can repeat it."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.train import Bank, Settings, Stretch, embed, identity, train, units_of

COARSE = (0.05, 0.1, 0.2, 0.5)
FINE = (0.7, 1.0, 1.4)  # times the best of the coarse grid
Floats = NDArray[np.float64]


class PublicAccount:
    """Steps on public records: nothing is charged, sampled or noised."""

    def stored(self, step: int) -> None:
        """Return None: nothing is kept."""

    def sample(self, step: int, units: int) -> NDArray[np.bool_]:
        """Return that every unit enters."""
        del step
        return np.ones(units, bool)

    def release(self, step: int, total: Floats, units: int) -> Floats:
        """Return the sum itself."""
        del step, units
        return total


def search_temperature(views: Floats, classes: NDArray[np.int64], settings: Settings) -> float:
    """Return the temperature whose head, trained without noise on half of the public records, serves the rest best.

    views:  (v, n, d) of public records under changes of view, and their (n,) classes: half of them, every second one,
            stand in for private records, a quarter for the queue, and the last quarter is scored
    Score: share of the 5 nearest queue records that have the scored record's class; the earlier of equals wins.
    """
    scores: dict[float, float] = {}

    def score(value: float) -> float:
        return scores.setdefault(value, _score(views, classes, settings, value))

    best = max(COARSE, key=score)
    return max((best, *(max(COARSE[0], best * factor) for factor in FINE)), key=score)


def _score(views: Floats, classes: NDArray[np.int64], settings: Settings, temperature: float) -> float:
    place = np.arange(views.shape[1])
    trained, queue, scored = (place[place % 4 == k] for k in (0, 1, 3))
    trained = np.concatenate([trained, place[place % 4 == 2]])
    units = units_of(views[:, trained], classes[trained], trained.astype(str), int(classes.max()) + 1)
    network = identity(views.shape[2])
    steps = len(settings.steps)
    stretch = Stretch(steps=steps, batch=float(len(trained)), temperature=temperature)
    bank = Bank(inputs=views[0, queue], classes=classes[queue])
    train(network, units, bank, dataclasses.replace(settings, stretches=(stretch,)), PublicAccount())
    left, right = (embed(network, views[0, rows]).numpy() for rows in (scored, queue))
    left, right = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (left, right))
    nearest = np.argsort(-(left @ right.T), axis=1, kind="stable")[:, :5]
    return float(np.mean(classes[queue][nearest] == classes[scored][:, None]))
