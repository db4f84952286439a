"""Distance fields of glyphs: what the simulator bends and inks.

A field holds, on a grid over [−HALF, HALF]², the distance to the pen's path (from a font's skeleton or from written
strokes) or to a font's own outline, so that ink of any width is one threshold away.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import InputError
from patevolve.shared.generators.strokes import STROKES, Stroke, spline

CANVAS = 48  # grid points of a field along each side
HALF = 1.6  # a glyph fills [−1, 1]²; the margin leaves room for bending
FINE = 4 * CANVAS  # distances are measured on a grid four times finer
POINTS = 120  # font size at which faces are drawn
NOT_TEXT = ("LastResort", "Siz", "NonUni", "cmex", "cmsy", "cmmi", "Display")  # faces without ordinary digits

Field = NDArray[np.float32]
Bitmap = NDArray[np.bool_]


@functools.lru_cache(maxsize=64)
def fields_of(glyph: str) -> Field:
    """Return (faces, CANVAS, CANVAS) fields of one glyph: each font's outline and skeleton, then written variants.

    Raises InputError if the drawing libraries are missing or no font draws the glyph.
    """
    try:
        fields = [font_field(drawn, skeleton=s) for drawn in _bitmaps(glyph) for s in (False, True)]
        fields += [own[0] for own in written(glyph)]
    except ImportError as reason:
        raise InputError(
            f"the glyph simulator needs {reason.name}; install it: pip install 'patevolve[demo]'"
        ) from reason
    if not fields:
        raise InputError(f"class {glyph!r} is drawn by no font face; expected one character such as '7'.")
    return np.stack(fields).astype(np.float32)


def written(glyph: str) -> list[NDArray[np.float64]]:
    """Return the (1, CANVAS, CANVAS) fields of a glyph's written variants; none where nobody wrote one down."""
    return [_pen_field(variant)[None] for variant in STROKES.get(glyph, [])]


def _bitmaps(glyph: str) -> list[Bitmap]:
    import matplotlib as mpl  # noqa: PLC0415 - an extra: only image plans draw glyphs

    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    faces = [path for path in sorted(folder.glob("*.ttf")) if not any(word in path.name for word in NOT_TEXT)]
    drawn = [bitmap(path, glyph) for path in faces]
    return [found for found in drawn if found is not None]


def bitmap(face: Path, glyph: str) -> Bitmap | None:
    """Return the (FINE, FINE) ink of a font's glyph, None where it draws nothing. Raises OSError for no font."""
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 - an extra

    page = Image.new("L", (3 * POINTS, 3 * POINTS))
    ImageDraw.Draw(page).text((POINTS, POINTS), glyph, font=ImageFont.truetype(str(face), POINTS), fill=255)
    box = page.getbbox()
    if box is None:
        return None
    ink = page.crop(box)
    zoom = FINE / HALF / max(ink.size)
    ink = ink.resize((max(1, round(ink.width * zoom)), max(1, round(ink.height * zoom))), Image.Resampling.BILINEAR)
    canvas = Image.new("L", (FINE, FINE))
    canvas.paste(ink, ((FINE - ink.width) // 2, (FINE - ink.height) // 2))
    return np.asarray(canvas) > 127


def font_field(bitmap: Bitmap, *, skeleton: bool) -> NDArray[np.float64]:
    """Return the distance to the glyph's skeleton, or to its outline less half its stroke width."""
    from scipy.ndimage import distance_transform_edt as distance  # noqa: PLC0415 - an extra

    unit, middle = 2 * HALF / FINE, thin(bitmap)
    if skeleton:
        return _coarse(distance(~middle) * unit)
    inside = distance(bitmap)
    return _coarse((distance(~bitmap) - inside + np.median(inside[middle])) * unit)


def _pen_field(strokes: list[Stroke]) -> NDArray[np.float64]:
    from PIL import Image, ImageDraw  # noqa: PLC0415 - an extra
    from scipy.ndimage import distance_transform_edt as distance  # noqa: PLC0415 - an extra

    page = Image.new("1", (FINE, FINE), 1)
    pen = ImageDraw.Draw(page)
    for stroke in strokes:
        pen.line([((x / HALF + 1) * FINE / 2, (y / HALF + 1) * FINE / 2) for x, y in spline(stroke)], fill=0)
    return _coarse(distance(np.asarray(page)) * (2 * HALF / FINE))


def _coarse(fine: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = fine.reshape(CANVAS, 4, CANVAS, 4).mean(axis=(1, 3))
    return means


def thin(bitmap: Bitmap) -> Bitmap:
    """Return the skeleton of a bitmap, one pixel wide (Zhang and Suen 1984)."""
    ink = bitmap.astype(np.uint8)
    while True:
        before = int(ink.sum())
        for first_pass in (True, False):
            ink[_removable(ink, first_pass=first_pass)] = 0
        if int(ink.sum()) == before:
            return ink.astype(bool)


def _removable(ink: NDArray[np.uint8], *, first_pass: bool) -> Bitmap:
    p = np.pad(ink, 1)
    # The eight neighbours, clockwise from above: P2 to P9 of the paper.
    n = [p[:-2, 1:-1], p[:-2, 2:], p[1:-1, 2:], p[2:, 2:], p[2:, 1:-1], p[2:, :-2], p[1:-1, :-2], p[:-2, :-2]]
    count = np.sum(n, axis=0, dtype=np.int64)
    turns = np.sum([(n[i] == 0) & (n[(i + 1) % 8] == 1) for i in range(8)], axis=0)
    north, east, south, west = n[0], n[2], n[4], n[6]
    if first_pass:
        edges = (north * east * south == 0) & (east * south * west == 0)
    else:
        edges = (north * east * west == 0) & (north * south * west == 0)
    removable: Bitmap = (ink == 1) & (count >= 2) & (count <= 6) & (turns == 1) & edges
    return removable
