"""The one declared target of all images of a plan, and the conversion of what was read into it.

Nothing is converted in silence: each step has a name, which the inspection counts and shows at the site alone. Every
step is a function of one image and the plan, so that no record moves another.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import DataError
from patevolve.shared.luminance import GREY, luminance
from patevolve.shared.plan_sections import Data

MOST_PIXELS = 100_000_000  # of one frame: larger ones are refused before they are decoded
RANGELESS = "A plan in colour declares no range: convert the file to 8 or 16 bits."
REPEATED = "grey repeated in red, green and blue"
FEW_LEVELS = 16  # an image of 16 bits that ends with fewer grey levels has most likely lost its content


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What every image becomes: (height, width) uint8 grey levels, or (height, width, 3) in colour.

    The fields are those of the plan's data section.
    """

    height: int
    width: int
    channels: int = 1
    fit: Literal["exact", "pad", "crop", "stretch"] = "exact"
    value_range: tuple[float, ...] = ()
    frames: Literal["refuse", "first", "middle", "all"] = "refuse"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)


def target_of(data: Data) -> Target:
    """Return the target that a plan declares."""
    return Target(
        height=data.height,
        width=data.width,
        channels=data.channels,
        fit=data.fit,
        value_range=data.value_range,
        frames=data.frames,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Frame:
    """One image as it was read, before it is converted.

    values:   (height, width) grey or (height, width, 3) RGB, any real type
    span:     values that stand for black and white, from the file's own description; None if it has none
    invert:   whether the least value is white (MONOCHROME1)
    """

    values: NDArray[Any]
    span: tuple[float, float] | None
    invert: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Reading:
    """What one file gave: its converted images, the names of the steps taken, and ``unit`` if the file states one."""

    images: tuple[NDArray[np.uint8], ...]
    steps: tuple[str, ...] = ()
    unit: str = ""


def type_span(values: NDArray[Any]) -> tuple[float, float] | None:
    """Return black and white of whole numbers of 1, 8 or 16 unsigned bits; None for types without such a meaning."""
    if values.dtype.kind == "b":
        return 0.0, 1.0
    if values.dtype.kind == "u" and values.dtype.itemsize <= 2:
        return 0.0, float(np.iinfo(values.dtype).max)
    return None


def choose_frames(count: int, target: Target, where: str) -> list[int]:
    """Return which of a file's frames are records by the plan's rule. Raises DataError for none, or without a rule."""
    if count < 1:
        raise DataError(f"{where}: no frame found; expected at least one.")
    if count == 1:
        return [0]
    if target.frames == "refuse":
        raise DataError(
            f"{where}: {count} frames or slices found; the plan expects one. Agree on data.frames = 'first', 'middle' "
            f"or 'all' in the plan."
        )
    return {"first": [0], "middle": [count // 2], "all": list(range(count))}[target.frames]


def convert(frame: Frame, target: Target, where: str) -> tuple[NDArray[np.uint8], list[str]]:
    """Return a frame as the target wants it, uint8 of its shape, and the names of the steps taken.

    Raises DataError for NaN or inf, for values without a declared range, and for another size under fit = "exact".
    """
    values = frame.values
    steps: list[str] = []
    planes = values.ndim == 2 or (values.ndim == 3 and values.shape[2] == 3)
    if values.dtype.kind not in "buif" or not planes or 0 in values.shape:
        raise DataError(f"{where}: values {values.dtype} {values.shape} found; expected an image of real numbers.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(
            f"{where}: a pixel that is NaN or infinite found; expected numbers. Correct or remove the file."
        )
    span = _span(frame, target, where)
    if values.dtype == np.uint8 and values.shape == target.shape and span == (0.0, 255.0):
        done = 255 - values if frame.invert else values.copy()
        return done, ["inverted, for its least value is white"] * frame.invert + doubts(values, done)
    if values.ndim == 3 and target.channels == 1:
        values = values @ np.array(GREY)
        steps.append("colour to grey")
    levels, scaled = _scaled(values, span)
    steps += scaled
    if frame.invert:
        levels = 255.0 - levels
        steps.append("inverted, for its least value is white")
    if levels.shape[:2] != (target.height, target.width):
        channels = [levels] if levels.ndim == 2 else [levels[:, :, channel] for channel in range(3)]
        sized = [_resized(channel, target, where) for channel in channels]
        levels = sized[0] if levels.ndim == 2 else np.stack(sized, axis=2)
        steps.append(f"resized ({target.fit})")
    if levels.ndim == 2 and target.channels == 3:
        levels = np.repeat(levels[:, :, None], 3, axis=2)
        steps.append(REPEATED)
    done = np.floor(levels + 0.5).clip(0, 255).astype(np.uint8)
    return done, steps + doubts(frame.values, done)


def _span(frame: Frame, target: Target, where: str) -> tuple[float, float]:
    if target.value_range and frame.values.ndim == 2:
        low, high = target.value_range
        return low, high
    span = frame.span or type_span(frame.values)
    if span is None:
        raise DataError(
            f"{where}: values of type {frame.values.dtype} found, of which the file does not say what is black and "
            f"white. {RANGELESS if target.channels == 3 else 'Agree on data.value_range = [low, high] in the plan.'}"
        )
    return span


def _scaled(values: NDArray[Any], span: tuple[float, float]) -> tuple[NDArray[np.float64], list[str]]:
    low, high = span
    given = values.astype(np.float64)
    if span == (0.0, 255.0):
        return given.clip(0.0, 255.0), [] if values.dtype.kind != "i" else ["signed to unsigned"]
    beyond = bool(((given < low) | (given > high)).any())
    levels = ((given - low) * (255.0 / (high - low))).clip(0.0, 255.0)
    return levels, [f"values {low:g} to {high:g} scaled to 0 to 255"] + ["values outside the range clipped"] * beyond


def _is_blank(image: NDArray[np.uint8]) -> bool:
    """Return whether all pixels of one image are alike."""
    return bool((image == image[:1, :1]).all())


def grey_of(image: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the (height, width) grey levels of one image, grey or RGB."""
    return image if image.ndim == 2 else luminance(image)


def doubts(before: NDArray[Any], after: NDArray[np.uint8]) -> list[str]:
    """Return what is odd about one converted image."""
    if _is_blank(after):
        return ["doubt: one grey level only" if after.ndim == 2 else "doubt: one colour only"]
    levels = np.count_nonzero(np.bincount(after.ravel(), minlength=256))
    if levels < FEW_LEVELS and before.dtype.itemsize > 1 and len(np.unique(before)) > 2 * levels:
        return [f"doubt: fewer than {FEW_LEVELS} grey levels left; see data.value_range"]
    return []


def _resized(levels: NDArray[np.float64], target: Target, where: str) -> NDArray[np.float64]:
    height, width = levels.shape
    if target.fit == "exact":
        raise DataError(
            f"{where}: {height} × {width} pixels found; expected {target.height} × {target.width}. Resize the images, "
            f"or agree on data.fit = 'pad', 'crop' or 'stretch' in the plan."
        )
    if target.fit == "stretch":
        return resample(levels, target.height, target.width)
    ratio = (min if target.fit == "pad" else max)(target.height / height, target.width / width)
    inner = resample(levels, max(1, round(height * ratio)), max(1, round(width * ratio)))
    return _placed(inner, target)


def resample(levels: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Return the image resampled with a triangle filter that widens when it shrinks, so that nothing is aliased."""
    rows, columns = _weights(levels.shape[0], height), _weights(levels.shape[1], width)
    return np.asarray(rows @ levels @ columns.T)


@functools.lru_cache(maxsize=64)
def _weights(before: int, after: int) -> NDArray[np.float64]:
    scale = before / after
    reach = max(1.0, scale)
    centres = (np.arange(after) + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(before)[None, :]) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _placed(inner: NDArray[np.float64], target: Target) -> NDArray[np.float64]:
    """Return the middle of a larger image, or a smaller one in the middle of black."""
    outer = np.zeros((target.height, target.width))
    cut: list[slice] = []
    put: list[slice] = []
    for have, want in zip(inner.shape, outer.shape, strict=True):
        size = min(have, want)
        cut.append(slice((have - size) // 2, (have - size) // 2 + size))
        put.append(slice((want - size) // 2, (want - size) // 2 + size))
    outer[tuple(put)] = inner[tuple(cut)]
    return outer
