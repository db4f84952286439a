"""One image file of any supported kind, told by its content and not by its name, converted to the plan's target.

PNG, TIFF, JPEG, BMP and GIF are read by Pillow, DICOM and NIfTI by the modules beside this one; all three libraries are
extras and are loaded when the first such file is met.
"""

from __future__ import annotations

import gzip
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from patevolve.shared.data.names import shown
from patevolve.shared.data.target import MOST_PIXELS, Frame, Reading, Target, choose_frames, convert
from patevolve.shared.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Kind = Literal["raster", "dicom", "nifti"]
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF")
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".tif", ".tiff", ".bmp", ".gif", ".dcm", ".dicom", ".ima", ".nii"}
)
OTHER_FORMATS = frozenset(
    {
        ".webp",
        ".jp2",
        ".j2k",
        ".heic",
        ".avif",
        ".ppm",
        ".pgm",
        ".svg",
        ".eps",
        ".ico",
        ".psd",
        ".mgz",
        ".mnc",
        ".nrrd",
        ".mha",
        ".hdr",
    }
)
GREYS = ("1", "L", "LA", "La")
ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
# What the decoders raise on damaged, truncated or hostile files.
UNREADABLE = (
    OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, AssertionError,
    ArithmeticError, SyntaxError, RuntimeError, MemoryError, struct.error, zlib.error,
)  # fmt: skip


def kind_of(path: Path) -> Kind | None:
    """Return which reader a file's first bytes ask for, None if they are no image's. Raises DataError if unreadable."""
    try:
        with path.open("rb") as file:
            head = file.read(352)
        if head[:2] == b"\x1f\x8b" and path.name.lower().endswith(".nii.gz"):
            with gzip.open(path) as file:
                head = file.read(352)
    except (OSError, EOFError, ValueError, zlib.error) as reason:  # ValueError: a name with a zero byte
        raise DataError(
            f"{shown(path.name)} cannot be read ({_words(reason)}). Check the file and its permissions."
        ) from reason
    if head[128:132] == b"DICM":
        return "dicom"
    if head[344:348] in (b"n+1\0", b"ni1\0") or head[4:8] in (b"n+2\0", b"ni2\0"):
        return "nifti"
    starts = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"BM", b"GIF8", b"II+\0", b"MM\0+")
    return "raster" if head.startswith(starts) else None


def looks_like_image(path: Path) -> bool:
    """Return whether a file is meant as an image, by its content or by its name. Raises DataError if unreadable."""
    name = path.name.lower()
    return name.endswith(".nii.gz") or path.suffix.lower() in SUFFIXES | OTHER_FORMATS or kind_of(path) is not None


def read_image(path: Path, target: Target, *, unit_tag: bool = False) -> Reading:
    """Return the images in one file as the target wants them, and the steps that this took.

    unit_tag: also read DICOM's PatientID, as the privacy unit

    Raises DataError, with the file's name, for what cannot be read, is refused by the target, or needs an extra.
    """
    where, kind = shown(path.name), kind_of(path)
    if kind is None:
        raise DataError(f"{where} is no image that can be read; expected PNG, TIFF, JPEG, BMP, GIF, DICOM or NIfTI.")
    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            frames, steps, unit = _frames(path, kind, target, where, unit_tag=unit_tag)
            done = [convert(frame, target, where) for frame in frames]
    except DataError:
        raise
    except UNREADABLE as reason:
        # pydicom's texts quote values, which in damaged files may be those of neighbouring tags.
        words = type(reason).__name__ if kind == "dicom" and not isinstance(reason, OSError) else _words(reason)
        raise DataError(f"{where} cannot be read as an image ({words}). Restore or remove the file.") from None
    if any(doubt.category is not ResourceWarning for doubt in doubts):
        steps.append("doubt: the file breaks its format's rules")
    steps += [step for _, own in done for step in own]
    return Reading(images=tuple(image for image, _ in done), steps=tuple(steps), unit=unit)


def _frames(
    path: Path, kind: Kind, target: Target, where: str, *, unit_tag: bool
) -> tuple[list[Frame], list[str], str]:
    if kind == "dicom":
        from patevolve.shared.data.dicom import read_dicom  # noqa: PLC0415 - pydicom is an extra

        return read_dicom(path, target, where, unit_tag=unit_tag)
    if kind == "nifti":
        from patevolve.shared.data.nifti import read_nifti  # noqa: PLC0415 - nibabel is an extra

        return (*read_nifti(path, target, where), "")
    return (*_read_raster(path, target, where), "")


def _words(reason: BaseException) -> str:
    if type(reason).__name__ == "UnidentifiedImageError":  # its text holds the whole path
        return "its inner form is unknown"
    text = getattr(reason, "strerror", None) or str(reason).split("\n", 1)[0] or type(reason).__name__
    return shown(text)


def _read_raster(path: Path, target: Target, where: str) -> tuple[list[Frame], list[str]]:
    try:
        from PIL import Image  # noqa: PLC0415 - an extra
    except ImportError as reason:
        raise DataError(f"{where}: images need Pillow. Install it: pip install 'patevolve[demo]'.") from reason
    try:
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
            return _pages(image, target, where)
    except Image.DecompressionBombError as reason:
        raise DataError(f"{where}: more pixels claimed than {MOST_PIXELS}, the most expected. Remove it.") from reason


def _pages(image: Image.Image, target: Target, where: str) -> tuple[list[Frame], list[str]]:
    if image.width * image.height > MOST_PIXELS:
        raise DataError(f"{where}: {image.width} × {image.height} pixels found; expected at most {MOST_PIXELS}.")
    frames: list[Frame] = []
    steps: list[str] = []
    for number in choose_frames(int(getattr(image, "n_frames", 1)), target, where):
        if number:
            image.seek(number)
        frame, own = _one(image, where, colour=target.channels == 3)
        frames.append(frame)
        steps += own
    return frames, steps


def _one(image: Image.Image, where: str, *, colour: bool) -> tuple[Frame, list[str]]:
    from PIL import ImageOps  # noqa: PLC0415 - as above

    turned = image.getexif().get(0x0112, 1) not in (0, 1)
    upright: Any = ImageOps.exif_transpose(image) if turned else image.copy()
    mode, steps = upright.mode, ["turned by its EXIF orientation"] * turned
    if mode == "1":
        upright = upright.convert("L")
        steps.append("1 bit to 8")
    elif mode in ALPHA or ("transparency" in upright.info and mode in ("L", "P", "RGB")):
        upright = _on_black(upright)
        steps.append("transparency put on black")
    elif mode in ("P", "CMYK", "YCbCr", "LAB", "HSV", "RGBX"):
        upright = upright.convert("RGB")
        steps.append(f"{mode} to RGB")
    values = np.asarray(upright)
    if values.dtype == np.int32 and image.format == "PNG":  # 16 bits, as some versions of Pillow read them
        values = values.astype(np.uint16)
    if values.ndim == 3 and colour and mode in GREYS:  # grey that transparency made RGB on the way
        values = values[:, :, 0]
    if values.ndim == 3 and not colour and (values == values[:, :, :1]).all():
        return Frame(values=values[:, :, 0], span=None), [*steps, "grey stored as colour"]
    if image.format == "TIFF" and image.tag_v2.get(262) == 0 and mode.startswith("I"):  # type: ignore[attr-defined]  # TIFF images have it
        return Frame(values=values, span=None, invert=True), [*steps, "white is zero"]
    if values.dtype.kind not in "buif":
        raise DataError(f"{where}: pixels of mode {mode} found; expected grey, colour, palette or CMYK.")
    return Frame(values=values, span=None), steps


def _on_black(image: Image.Image) -> Image.Image:
    from PIL import Image  # noqa: PLC0415 - as above

    whole = image.convert("RGBA")
    ground = Image.new("RGBA", whole.size, (0, 0, 0, 255))
    ground.alpha_composite(whole)
    return ground.convert("RGB")
