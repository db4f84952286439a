"""A site's private head: a linear map of public features, applied with numpy alone, record by record."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import DataError
from patevolve.shared.files import write_atomic
from patevolve.shared.products import products

FLOOR = 0.05  # as in the losses: a shorter embedding keeps its length's share, and 0 stays 0
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Head:
    """Weights (k, d) of a head, and what they came from.

    about: the plan, the site, the steps and their cost: JSON values
    """

    weights: Floats
    about: dict[str, Any]

    def apply(self, features: Floats) -> Floats:
        """Return (n, k) embeddings of norm below 1. Row i is a function of row i alone, bit by bit."""
        rows = products(features, self.weights)  # label: own-head-products
        squares = np.zeros(len(rows))
        for column in rows.T:  # one column after another: the order of a row's sum does not hang on other rows
            squares += column * column
        return rows / np.sqrt(squares + FLOOR**2)[:, None]  # label: own-head-norm


def save_head(path: Path, head: Head) -> None:
    """Write the head durably, for its owner's eyes alone. Raises DataError for weights that are not finite."""
    _check(head.weights, path)
    buffer = io.BytesIO()
    np.savez(buffer, weights=head.weights, about=np.array(json.dumps(head.about, sort_keys=True)))
    write_atomic(path, buffer.getvalue(), mode=0o600)


def load_head(path: Path) -> Head:
    """Return the head that ``save_head`` wrote. Nothing in the file is executed. Raises DataError."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            weights, about = arrays["weights"], json.loads(str(arrays["about"]))
    except (OSError, ValueError, KeyError, EOFError) as reason:
        raise DataError(
            f"{path} cannot be read as a head ({reason}); expected the file that training wrote."
        ) from reason
    _check(weights, path)
    return Head(weights=weights, about=about)


def _check(weights: NDArray[Any], path: Path) -> None:
    if weights.ndim != 2 or weights.dtype != np.float64 or not np.isfinite(weights).all():
        raise DataError(f"{path}: weights {weights.dtype} {weights.shape} found; expected finite float64 (k, d).")
