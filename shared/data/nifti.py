"""Slices of one NIfTI volume, all in one canonical orientation.

A slice is axial, cut across the patient's head-to-foot axis: its first row is anterior and its first column the
patient's left, whatever axes the scanner stored (RAS+ in NIfTI's terms). Slices run from foot to head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.target import MOST_PIXELS, Frame, Target, choose_frames
from patevolve.shared.errors import DataError

EXTRA = "pip install 'patevolve[nifti]'"


def read_nifti(path: Path, target: Target, where: str) -> tuple[list[Frame], list[str]]:
    """Return the slices that the plan's rule chooses and the steps taken.

    Raises DataError for a file of other than three dimensions, without an orientation, or not of real numbers, and
    under a target in colour: a volume holds one number per voxel, which is no shade of anything.
    """
    if target.channels == 3:
        raise DataError(f"{where}: a NIfTI volume found, which has no colour. Agree on data.channels = 1 in the plan.")
    try:
        import nibabel as nib  # noqa: PLC0415 - an extra
    except ImportError as reason:
        raise DataError(f"{where}: NIfTI volumes need nibabel. Install it: {EXTRA}.") from reason
    try:
        image: Any = nib.load(path)
    except nib.filebasedimages.ImageFileError as reason:
        raise DataError(
            f"{where} cannot be read as NIfTI; expected a .nii or .nii.gz file with its own data."
        ) from reason
    if not isinstance(image, nib.nifti1.Nifti1Pair):
        raise DataError(f"{where} is a {type(image).__name__}; expected a NIfTI volume of one scalar per voxel.")
    shape = tuple(size for place, size in enumerate(image.shape) if size != 1 or place < 3)
    if len(shape) not in (2, 3):
        raise DataError(
            f"{where}: {image.shape} voxels found; expected one volume of three dimensions. Split the file."
        )
    if int(image.header["qform_code"]) == 0 and int(image.header["sform_code"]) == 0:
        raise DataError(f"{where}: no orientation stated (qform and sform are 0); expected one. Set it in the header.")
    if image.shape[0] * image.shape[1] > MOST_PIXELS:
        raise DataError(f"{where}: {image.shape} voxels found; expected at most {MOST_PIXELS} in a slice.")
    turned: Any = nib.as_closest_canonical(image)  # type: ignore[no-untyped-call]  # nibabel has no type for it
    steps = [] if turned is image else ["turned to the canonical orientation"]
    slices = turned.shape[2] if len(turned.shape) > 2 else 1
    chosen = choose_frames(slices, target, where)
    return [Frame(values=_slice(turned, number), span=None) for number in chosen], steps


def _slice(image: Any, number: int) -> NDArray[Any]:
    """Return one axial slice with anterior above and the patient's left at the left; only this slice is read."""
    proxy = image.dataobj
    plane = np.squeeze(np.asarray(proxy[:, :, number, ...] if len(image.shape) > 2 else proxy))
    plane = plane.reshape(image.shape[:2])
    return np.ascontiguousarray(plane.T[::-1, :])
