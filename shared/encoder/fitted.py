"""The statistics of an image encoder as one public file, so that every site computes with the same bytes.

Two LAPACK builds may give principal axes with other signs or last bits. A plan that names this file
(``encoder.fitted``) fits nothing anywhere.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from patevolve.shared.encoder.image import Describe, ImageEncoder
from patevolve.shared.errors import PlanError

PARTS = ("mean", "axes", "frequencies", "widths")
MOST_VALUES = 10_000_000  # of one array: 80 MB
LARGEST = 1e30  # of a value: products of two with anything a network says stay finite, for every record alike


def packed(encoder: ImageEncoder, widths: tuple[float, ...]) -> bytes:
    """Return the file of an encoder's statistics: an NPZ archive of float64 arrays, without pickle.

    widths:  of the kernels that the frequencies were drawn for
    """
    buffer = io.BytesIO()
    drawn = np.asarray(widths, np.float64)
    np.savez(buffer, mean=encoder.mean, axes=encoder.axes, frequencies=encoder.frequencies, widths=drawn)
    return buffer.getvalue()


def unpacked(path: Path, *, dimension: int, widths: tuple[float, ...], describe: Describe) -> ImageEncoder:
    """Return the encoder whose statistics a file holds. Raises PlanError if they do not fit together or the plan."""
    try:
        with np.load(path, allow_pickle=False) as file:
            mean, axes, frequencies, drawn = (file[name] for name in PARTS)
    except (OSError, ValueError, EOFError, KeyError) as reason:
        raise PlanError(f"{path.name} is no file of `patevolve encoder fit` ({reason}). Make it again.") from reason
    arrays, width = (mean, axes, frequencies), mean.size
    fits = mean.ndim == 1 and axes.shape == (width, dimension) and frequencies.shape[:1] == (dimension,)
    if not (fits and frequencies.ndim == 2 and all(_sound(array) for array in arrays)):
        raise PlanError(
            f"{path.name} holds {', '.join(f'{a.dtype} {a.shape}' for a in arrays)}; expected finite float64 mean "
            f"(r,), axes (r, {dimension}) and frequencies ({dimension}, e/2), as the plan's encoder.dimension says."
        )
    if drawn.tolist() != list(widths):
        raise PlanError(
            f"{path.name} was fitted with kernels of widths {drawn.tolist()}; the plan's encoder.widths are "
            f"{list(widths)}. Fit it again: patevolve encoder fit."
        )
    return ImageEncoder(mean=mean, axes=axes, frequencies=frequencies, describe=describe)


def _sound(array: np.ndarray) -> bool:
    # A statistic near the largest float would make some records' features infinite and others' not, and a site refuses
    # infinite ones: whoever made the file would learn which kind it holds.
    sized = array.dtype == np.float64 and 0 < array.size <= MOST_VALUES
    return sized and bool((np.abs(array) <= LARGEST).all())  # NaN is at most nothing
