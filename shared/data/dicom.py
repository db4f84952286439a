"""The pixels of one DICOM file and nothing else of it: only the tags listed here are ever read into memory.

Values follow the standard's pipeline: stored values, modality transform (PS3.3 C.11.1), then the plan's value_range
or the file's own first window (PS3.3 C.11.2), then black and white by the photometric interpretation.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.target import MOST_PIXELS, Frame, Target, choose_frames
from patevolve.shared.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import FileDataset

# What the pixels are and how they are shown: no name, date, identifier, description, reference or private tag.
ALLOWED = frozenset(
    """SOPClassUID BurnedInAnnotation
    SamplesPerPixel PhotometricInterpretation PlanarConfiguration NumberOfFrames Rows Columns
    BitsAllocated BitsStored HighBit PixelRepresentation PixelPaddingValue PixelPaddingRangeLimit
    RescaleIntercept RescaleSlope ModalityLUTSequence WindowCenter WindowWidth VOILUTFunction VOILUTSequence
    RedPaletteColorLookupTableDescriptor GreenPaletteColorLookupTableDescriptor BluePaletteColorLookupTableDescriptor
    RedPaletteColorLookupTableData GreenPaletteColorLookupTableData BluePaletteColorLookupTableData
    SegmentedRedPaletteColorLookupTableData SegmentedGreenPaletteColorLookupTableData
    SegmentedBluePaletteColorLookupTableData
    ExtendedOffsetTable ExtendedOffsetTableLengths FloatPixelData DoubleFloatPixelData PixelData""".split()  # noqa: SIM905 - a list of words reads better so
)
ALWAYS = frozenset({"SpecificCharacterSet"})  # pydicom reads it whatever is asked, to decode text that we do not read
UNIT_TAG = "PatientID"  # read only if the plan names it as the privacy unit
EXTRA = "pip install 'patevolve[dicom]'"
# Enhanced multi-frame classes keep their modality transform in sequences that also hold dates and identifiers.
ENHANCED = {
    "1.2.840.10008.5.1.4.1.1.2.1": "Enhanced CT",
    "1.2.840.10008.5.1.4.1.1.4.1": "Enhanced MR",
    "1.2.840.10008.5.1.4.1.1.4.3": "Enhanced MR Colour",
    "1.2.840.10008.5.1.4.1.1.130": "Enhanced PET",
}


def read_dicom(path: Path, target: Target, where: str, *, unit_tag: bool = False) -> tuple[list[Frame], list[str], str]:
    """Return the frames of a file by the plan's rule, the steps taken, and its PatientID if that was asked for.

    Raises DataError for a file without pixels, a transfer syntax without a codec, or values without a meaning.
    """
    with _unlogged():
        return _read(path, target, where, unit_tag=unit_tag)


def _read(path: Path, target: Target, where: str, *, unit_tag: bool) -> tuple[list[Frame], list[str], str]:
    dataset = read_tags(path, where, unit_tag=unit_tag)
    unit = _unit(dataset, where) if unit_tag else ""
    count = _check(dataset, where)
    chosen = choose_frames(count, target, where)
    stored = _stored(dataset, where)
    stack = stored if count > 1 else stored[None]
    frames, steps = [], []
    for number in chosen:
        frame, own = _meaning(dataset, stack[number], target)
        frames.append(frame)
        steps += own
    if str(dataset.get("BurnedInAnnotation", "")).upper() == "YES":
        steps.append("doubt: text is burned into the pixels, as the file says")
    return frames, steps, unit


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep pydicom's own log silent: of damaged files it quotes values, and among them those of neighbouring tags."""
    log = logging.getLogger("pydicom")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def read_tags(path: Path, where: str, *, unit_tag: bool = False) -> FileDataset:
    """Return the allowed tags of a file; every other value is skipped on the disk. Raises DataError."""
    try:
        import pydicom  # noqa: PLC0415 - an extra
        from pydicom.errors import BytesLengthException, InvalidDicomError  # noqa: PLC0415 - as above
    except ImportError as reason:
        raise DataError(f"{where}: DICOM files need pydicom. Install it: {EXTRA}.") from reason
    try:
        return pydicom.dcmread(path, specific_tags=sorted(ALLOWED | ({UNIT_TAG} if unit_tag else set())))
    except InvalidDicomError as reason:
        raise DataError(f"{where} has no DICOM header (Part 10); expected one. Export the file again.") from reason
    except BytesLengthException:  # its text quotes the value
        raise DataError(f"{where} is damaged DICOM: a value of impossible length. Export the file again.") from None


def _unit(dataset: FileDataset, where: str) -> str:
    unit = str(dataset.get(UNIT_TAG, "") or "").strip()
    if not unit:
        raise DataError(f"{where}: no {UNIT_TAG} found; the plan names it as the privacy unit. Use a manifest.")
    return unit


def _check(dataset: FileDataset, where: str) -> int:
    """Return the number of frames of a file whose pixels can be read. Raises DataError for any other."""
    if not any(name in dataset for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise DataError(f"{where} is DICOM without pixel data ({_class(dataset)}); expected an image. Remove it.")
    for name in ("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated"):
        if dataset.get(name) in (None, ""):
            raise DataError(f"{where}: DICOM without {name}, which every image has. Export the file again.")
    if dataset.Rows * dataset.Columns > MOST_PIXELS:
        raise DataError(f"{where}: {dataset.Rows} × {dataset.Columns} pixels found; expected at most {MOST_PIXELS}.")
    if str(dataset.get("SOPClassUID", "")) in ENHANCED:
        raise DataError(
            f"{where}: a file of the class {ENHANCED[str(dataset.SOPClassUID)]} found, whose scale stands beside dates "
            f"and identifiers that are not read. Convert it to single-frame files."
        )
    _check_codec(dataset, where)
    frames = str(dataset.get("NumberOfFrames") or 1)
    if not (frames.isdecimal() and len(frames) < 10):
        raise DataError(f"{where}: NumberOfFrames is no whole number; expected one. Export the file again.")
    return int(frames)


def _class(dataset: FileDataset) -> str:
    """Return the name of the file's class, from the standard's list: the file's own text may be damaged."""
    from pydicom.uid import UID  # noqa: PLC0415 - an extra

    uid = UID(str(dataset.get("SOPClassUID", "")))
    return str(uid.name) if uid.name != str(uid) else "of no known class"


def _check_codec(dataset: FileDataset, where: str) -> None:
    from pydicom.pixels.decoders.base import get_decoder  # noqa: PLC0415 - an extra

    syntax = getattr(dataset.file_meta, "TransferSyntaxUID", None)
    if syntax is None:
        raise DataError(f"{where}: no transfer syntax stated; expected one in the DICOM header. Export the file again.")
    named = _syntax(dataset)
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError as reason:
        raise DataError(f"{where}: {named} found, which is not supported. Convert the file.") from reason
    if not decoder.is_available:
        raise DataError(f"{where}: {named} found and no codec for it is installed. Install them: {EXTRA}.")


def _syntax(dataset: FileDataset) -> str:
    syntax = dataset.file_meta.TransferSyntaxUID
    if not re.fullmatch(r"[0-9.]{1,64}", str(syntax)):
        return "a transfer syntax that is no identifier"
    return f"transfer syntax {syntax.name} ({syntax})"


def _stored(dataset: FileDataset, where: str) -> NDArray[Any]:
    try:
        pixels: NDArray[Any] = dataset.pixel_array
    except RuntimeError as reason:  # every installed codec failed
        raise DataError(
            f"{where}: pixels of {_syntax(dataset)} cannot be decoded. The file is damaged, or needs another codec: "
            f"{EXTRA}."
        ) from reason
    return pixels


def _meaning(dataset: FileDataset, stored: NDArray[Any], target: Target) -> tuple[Frame, list[str]]:
    from pydicom.pixels.processing import apply_color_lut  # noqa: PLC0415 - an extra

    kind = str(dataset.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        coloured = np.asarray(apply_color_lut(stored, dataset))
        return Frame(values=coloured, span=None), ["palette to RGB"]
    if stored.ndim == 3:
        bits = int(dataset.get("BitsStored") or dataset.BitsAllocated)
        span = (0.0, float(2**bits - 1)) if bits <= 16 else None
        told = kind.startswith("YBR") and target.channels == 3  # done by pydicom; on the way to grey it is part of that
        return Frame(values=stored, span=span), ["YBR to RGB"] * told
    return _grey(dataset, stored, target, invert=kind == "MONOCHROME1")


def _grey(dataset: FileDataset, stored: NDArray[Any], target: Target, *, invert: bool) -> tuple[Frame, list[str]]:
    from pydicom.pixels.processing import apply_modality_lut, apply_voi  # noqa: PLC0415 - an extra

    steps: list[str] = []
    values = np.asarray(apply_modality_lut(stored, dataset))
    if values is not stored and (values.dtype != stored.dtype or (values != stored).any()):
        steps.append("rescaled to its modality's unit")
    padding = _padding(dataset, stored)
    if padding is not None and padding.any() and not padding.all():
        least = values[~padding].max() if invert else values[~padding].min()
        values = np.where(padding, least, values)
        steps.append("padding set to black")
    if target.value_range:
        return Frame(values=values, span=None, invert=invert), steps  # ``convert`` applies the plan's range
    if dataset.get("VOILUTSequence"):
        table = dataset.VOILUTSequence[0]
        looked = np.asarray(apply_voi(values.astype(np.int64) if values.dtype.kind == "f" else values, dataset))
        top = float(2 ** int(table.LUTDescriptor[2]) - 1)
        return Frame(values=looked, span=(0.0, top), invert=invert), [*steps, "shown through its lookup table"]
    window = _window(dataset)
    if window is not None:
        shade = _windowed(values.astype(np.float64), *window, str(dataset.get("VOILUTFunction") or "LINEAR"))
        return Frame(values=255.0 * shade, span=(0.0, 255.0), invert=invert), [*steps, "shown through its window"]
    return Frame(values=values, span=_stored_span(dataset, values), invert=invert), steps


def _padding(dataset: FileDataset, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
    first = dataset.get("PixelPaddingValue")
    if not isinstance(first, int):
        return None
    last = dataset.get("PixelPaddingRangeLimit")
    low, high = sorted((first, last if isinstance(last, int) else first))
    return np.asarray((stored >= low) & (stored <= high))


def _window(dataset: FileDataset) -> tuple[float, float] | None:
    """Return the first window's centre and width: the rule where a file has several."""
    found = []
    for name in ("WindowCenter", "WindowWidth"):
        value = dataset.get(name)
        if value is None or value == "" or (not isinstance(value, float | int | str) and len(value) == 0):
            return None
        found.append(float(value if isinstance(value, float | int | str) else value[0]))
    centre, width = found
    return (centre, width) if np.isfinite(centre) and np.isfinite(width) and width > 0 else None


def _windowed(x: NDArray[np.float64], centre: float, width: float, shape: str) -> NDArray[np.float64]:
    """Return shades from 0 to 1: PS3.3 C.11.2.1.2.1 (LINEAR), C.11.2.1.3.1 (SIGMOID), C.11.2.1.3.2 (LINEAR_EXACT)."""
    if shape == "SIGMOID":
        with np.errstate(over="ignore"):  # far below the window e^x is inf and the shade 0
            return np.asarray(1.0 / (1.0 + np.exp(-4.0 * (x - centre) / width)))
    if shape == "LINEAR" and width > 1.0:
        return np.asarray(((x - (centre - 0.5)) / (width - 1.0) + 0.5).clip(0.0, 1.0))
    if shape == "LINEAR":  # a width of 1 is a threshold
        return np.asarray((x > centre - 0.5).astype(np.float64))
    return np.asarray(((x - centre) / width + 0.5).clip(0.0, 1.0))


def _stored_span(dataset: FileDataset, values: NDArray[Any]) -> tuple[float, float] | None:
    """Return black and white of unsigned stored values of at most 16 bits without a window, in rescaled units."""
    bits = int(dataset.get("BitsStored") or dataset.BitsAllocated)
    if values.dtype.kind == "f" and "RescaleSlope" not in dataset and "PixelData" not in dataset:
        return None
    if bits > 16 or dataset.get("PixelRepresentation") == 1 or dataset.get("ModalityLUTSequence"):
        return None
    slope = float(dataset.get("RescaleSlope") or 1.0)
    intercept = float(dataset.get("RescaleIntercept") or 0.0)
    ends = sorted((intercept, intercept + slope * (2**bits - 1)))
    return ends[0], ends[1]
