"""Can a record be rebuilt from what was computed of it? A linear decoder, taught by public samples, tries.

Two targets. The encoder: from a record's embedding, which never leaves a site; the figure says why it must not. The
votes: from one record's ballot in a noisy sum, by an attacker who knows every other record, so that only the noise
stands between. Success is to pick the record out of a line-up by the rebuilt one; chance is one over the line-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.audit import bounds
from patevolve.shared.audit.bounds import Interval
from patevolve.shared.errors import ParameterError

Floats = NDArray[np.float64]
RIDGE = 1e-3  # of the mean square of an input: enough for inputs that depend on one another


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoder:
    """A linear map from what is seen to what is wanted: ``inputs − centre`` times ``weights`` plus ``mean``."""

    centre: Floats
    weights: Floats
    mean: Floats

    def __call__(self, seen: Floats) -> Floats:
        """Return (n, p) rebuilt values of (n, e) inputs."""
        return np.asarray((seen - self.centre) @ self.weights + self.mean, dtype=np.float64)


def taught(seen: Floats, wanted: Floats, noise_std: float = 0.0) -> Decoder:
    """Return the ridge decoder of public samples: (n, e) inputs to (n, p) values.

    noise_std:  of the noise that will stand on every input; the ridge is what is best against it in the mean
    """
    if len(seen) != len(wanted) or len(seen) < 2:
        raise ParameterError(f"{len(seen)} inputs and {len(wanted)} values found; expected as many, and at least 2.")
    centre, mean = seen.mean(axis=0), wanted.mean(axis=0)
    inputs = seen - centre
    ridge = len(seen) * (noise_std**2 + RIDGE * float(np.mean(inputs**2)) + 1e-12)
    square = inputs.T @ inputs + ridge * np.eye(inputs.shape[1])
    return Decoder(centre=centre, weights=np.linalg.solve(square, inputs.T @ (wanted - mean)), mean=mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inversion:
    """How well records are rebuilt.

    found:     share of records that the rebuilt one picks out of the line-up; ties count for nobody
    chance:    one over the line-up
    explained: share of the values' variance around their mean that the rebuilt ones explain; at most 1, below 0 if they
               are worse than the mean
    """

    name: str
    records: int
    found: Interval
    chance: float
    explained: float


def inversion(name: str, rebuilt: Floats, true: Floats, line_up: Floats, confidence: float = 0.95) -> Inversion:
    """Judge (n, p) rebuilt values against the true ones, each to be picked out of itself and ``line_up`` (m, p)."""
    own = np.sum((rebuilt - true) ** 2, axis=1)
    squares = np.sum(rebuilt**2, axis=1)[:, None] + np.sum(line_up**2, axis=1) - 2.0 * rebuilt @ line_up.T
    # One of the line-up that equals the true record is no rival: nobody could tell them apart.
    rivals = np.where(_equal(true, line_up), np.inf, squares)
    hits = int(np.sum(own < rivals.min(axis=1) - 1e-9 * (1.0 + own)))
    spread = float(np.sum((true - true.mean(axis=0)) ** 2))
    return Inversion(
        name=name,
        records=len(true),
        found=bounds.rate(hits, len(true), confidence),
        chance=1.0 / (1 + len(line_up)),
        explained=1.0 - float(own.sum()) / spread if spread > 0.0 else 0.0,
    )


def _equal(true: Floats, line_up: Floats) -> NDArray[np.bool_]:
    keys = [row.tobytes() for row in np.ascontiguousarray(line_up)]
    return np.array([[row.tobytes() == key for key in keys] for row in np.ascontiguousarray(true)], dtype=bool)
