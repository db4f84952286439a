"""More faces for the simulator: glyphs of installed fonts, chosen for their variety, as one public file.

The file holds distance fields, not fonts, so that every site renders the same glyphs, whatever is installed there, and
a voting site needs numpy alone. A plan names it by its hash; without one the simulator draws matplotlib's fonts.
"""

from __future__ import annotations

import functools
import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import assets
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.generators import fields
from patevolve.shared.generators.fields import CANVAS, NOT_TEXT, Bitmap, Field

SUFFIXES = (".ttf", ".otf")
NOWHERE = "\U0010fffd"  # a character that fonts do not have: what they draw for it they draw for all they lack
COARSE = 16  # side of the blurred picture by which faces are compared
AGREED = 0.8  # of a face's glyphs, how many must look most like the same glyph of other faces
# What zipfile, zlib and numpy raise on archives that are damaged or hold objects.
UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)

Pictures = NDArray[np.float64]


@functools.lru_cache(maxsize=4)
def read(sha256: str) -> dict[str, Field]:
    """Return each glyph's (faces, CANVAS, CANVAS) float32 fields in the public file. Raises PlanError."""
    path = assets.find(sha256)
    try:
        with np.load(path, allow_pickle=False) as file:
            known = {str(glyph): file[f"fields-{number}"] for number, glyph in enumerate(file["glyphs"].tolist())}
    except UNREADABLE as reason:
        raise PlanError(
            f"{path} holds no glyphs ({type(reason).__name__}); expected a file that `patevolve assets glyphs` made."
        ) from reason
    for glyph, own in known.items():
        shaped = own.dtype == np.float16 and own.ndim == 3 and len(own) > 0 and own.shape[1:] == (CANVAS, CANVAS)
        if not (shaped and np.isfinite(own).all()):
            raise PlanError(
                f"{path}: fields {own.dtype} {own.shape} of {glyph!r} found; expected finite float16 (faces, {CANVAS}, "
                f"{CANVAS}). Make the file again with: patevolve assets glyphs."
            )
    return {glyph: own.astype(np.float32) for glyph, own in known.items()}


def build(
    folders: Sequence[Path], glyphs: Sequence[str], most: int, watch: Callable[[int], None] = lambda _: None
) -> tuple[bytes, list[Path]]:
    """Return the file of these glyphs in the most different faces of the fonts below some folders, and those fonts.

    A face is left out if it lacks a glyph, or if most of its glyphs look like other glyphs of other faces; of the rest
    ``most`` are kept, each as far as possible from those kept before (Gonzalez 1985). Written strokes come with them.
    Raises InputError if no font has all glyphs, or a drawing library is missing.
    """
    fonts = sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and _is_text(path)
    )
    pictures, drawn = [], []
    for path in fonts:
        watch(1)
        bitmaps = _complete(path, glyphs)
        if bitmaps is not None:
            drawn.append(path)
            pictures.append([_picture(bitmap) for bitmap in bitmaps])
    if not drawn:
        raise InputError(f"{len(fonts)} font(s) found, none of which draws all of {' '.join(glyphs)}; install others.")
    kept = chosen(np.array(pictures), most)
    arrays: dict[str, NDArray[np.generic]] = {"glyphs": np.array(list(glyphs))}
    for number, glyph in enumerate(glyphs):
        own = [_fields(drawn[face], glyph) for face in kept]
        arrays[f"fields-{number}"] = np.concatenate([*own, *fields.written(glyph)]).astype(np.float16)
        watch(0)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub takes keyword arrays for allow_pickle
    return buffer.getvalue(), [drawn[face] for face in kept]


def chosen(pictures: Pictures, most: int) -> list[int]:
    """Return up to ``most`` positions of faces (F, glyphs, d) that differ, without those that draw other things."""
    sound = np.flatnonzero(agreement(pictures) >= AGREED) if len(pictures) > 2 else np.arange(len(pictures))
    flat = pictures[sound].reshape(len(sound), -1)
    if not len(sound):
        raise InputError(f"{len(pictures)} face(s) found that draw unlike glyphs; expected faces with these glyphs.")
    kept = [int(np.argmin(np.linalg.norm(flat - flat.mean(axis=0), axis=1)))]
    away = np.linalg.norm(flat - flat[kept[0]], axis=1)
    while len(kept) < min(most, len(sound)) and away.max() > 0.0:
        kept.append(int(np.argmax(away)))
        away = np.minimum(away, np.linalg.norm(flat - flat[kept[-1]], axis=1))
    return [int(sound[position]) for position in kept]


def agreement(pictures: Pictures) -> NDArray[np.float64]:
    """Return, for each face (F, glyphs, d), the share of its glyphs whose nearest of other faces is the same glyph."""
    faces, glyphs, _ = pictures.shape
    flat = pictures.reshape(faces * glyphs, -1)
    squares, which = np.einsum("nd,nd->n", flat, flat), np.arange(glyphs)
    shares = np.zeros(faces)
    for face in range(faces):
        distance = squares - 2.0 * pictures[face] @ flat.T
        distance[:, face * glyphs : (face + 1) * glyphs] = np.inf
        shares[face] = np.mean(distance.argmin(axis=1) % glyphs == which)
    return shares


def _is_text(path: Path) -> bool:
    return not any(word in path.name for word in NOT_TEXT)


def _complete(path: Path, glyphs: Sequence[str]) -> list[Bitmap] | None:
    """Return the bitmap of every glyph, or None if the face cannot be read or lacks one."""
    try:
        lacking = fields.bitmap(path, NOWHERE)
        bitmaps = [fields.bitmap(path, glyph) for glyph in glyphs]
    except (OSError, ValueError):  # a damaged font, or one without outlines
        return None
    found = [one for one in bitmaps if one is not None and one.any()]
    if len(found) < len(glyphs) or any(lacking is not None and np.array_equal(one, lacking) for one in found):
        return None
    return found


def _picture(bitmap: Bitmap) -> NDArray[np.float64]:
    """Return a small picture, so that faces differ by their shapes and not by their edges."""
    size = bitmap.shape[0] // COARSE
    small: NDArray[np.float64] = bitmap.reshape(COARSE, size, COARSE, size).mean(axis=(1, 3)).ravel()
    return small


def _fields(path: Path, glyph: str) -> NDArray[np.float64]:
    bitmap = fields.bitmap(path, glyph)
    if bitmap is None:
        raise InputError(f"{path} drew {glyph!r} once and does not again; was it changed? Start again.")
    return np.stack([fields.font_field(bitmap, skeleton=skeleton) for skeleton in (False, True)])
