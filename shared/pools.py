"""Making a pool of public images or texts: read them, find each one's neighbours, write one file without pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data.images import looks_like_image, read_image
from patevolve.shared.data.names import shown
from patevolve.shared.data.parquet import cells
from patevolve.shared.data.target import Target
from patevolve.shared.encoder.device import DEFAULT
from patevolve.shared.encoder.image import Describe, fit
from patevolve.shared.encoder.ngrams import hashed_words
from patevolve.shared.encoder.sentences import open_sentences
from patevolve.shared.errors import DataError, InputError
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.randomness import stream
from patevolve.shared.texts import normal, packed
from patevolve.shared.tools import samples

NEIGHBOURS = 32
DIMENSION = 64  # principal components of orientation histograms, in which neighbours are near
FITTED = 4000  # images that the components are fitted to
BLOCK = 256  # images whose distances to the whole pool are in memory at once

Images = NDArray[np.uint8]


def read_public(
    path: Path, target: Target | None, watch: Callable[[int], None] = lambda _: None, *, channels: int = 1
) -> Images:
    """Return the public images in an NPZ file, or in a folder with all its folders: uint8 of one shape.

    path:      an NPZ file holds the array ``images``; a folder's files are taken in the order of their paths
    target:    how files of any size become one; None: the NPZ file's own shape, and for a folder an error
    watch:     called with 1 after each file
    channels:  1: (n, height, width); 3: (n, height, width, 3); as the target's, if there is one

    Raises DataError for what cannot be read or holds no image.
    """
    if path.is_dir():
        if target is None:
            raise DataError(f"{path} is a folder; expected --height and --width, to which its images are converted.")
        return _read_folder(path, target, watch)
    try:
        with np.load(path, allow_pickle=False) as file:
            images = file["images"]
    except (OSError, ValueError, EOFError, KeyError) as reason:
        raise DataError(f"{path} cannot be read as a folder, or as an NPZ file with images ({reason}).") from reason
    inner = () if channels == 1 else (channels,)
    if images.dtype != np.uint8 or images.ndim != 3 + len(inner) or images.shape[3:] != inner or len(images) < 2:
        wanted = ", ".join(["n ≥ 2", "height", "width", *map(str, inner)])
        raise DataError(f"{path}: images {images.dtype} {images.shape} found; expected uint8 ({wanted}).")
    if target is not None and images.shape[1:3] != (target.height, target.width):
        raise DataError(
            f"{path}: images {images.shape[1:]} found; expected {target.height} × {target.width}. Leave the size out."
        )
    return np.asarray(images, np.uint8)


def target(
    height: int | None, width: int | None, fit: Literal["exact", "pad", "crop", "stretch"], channels: int = 1
) -> Target | None:
    """Return the size that images become, None without one. Raises InputError for half a size."""
    if height is None or width is None:
        if height is not width:
            raise InputError("one of --height and --width found; expected both, or neither for an NPZ file.")
        return None
    return Target(height=height, width=width, channels=channels, fit=fit)


def _read_folder(path: Path, target: Target, watch: Callable[[int], None]) -> Images:
    images: list[Images] = []
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        if looks_like_image(file):
            images += read_image(file, target).images
        watch(1)
    if len(images) < 2:
        raise DataError(f"{path} holds {len(images)} image(s); expected at least 2.")
    return np.stack(images)


def unnamed(path: Path, target: Target | None) -> tuple[Images, NDArray[np.str_]]:
    """Return public images as ``read_public`` does, and "" for the class of each."""
    images = read_public(path, target)
    return images, np.full(len(images), "")


def simulated(glyphs: str, each: int = 500) -> tuple[Images, NDArray[np.str_]]:
    """Return (n, 28, 28) images of these glyphs as the simulator draws them, and which glyph each one shows."""
    images, classes = samples(Simulator(glyphs=tuple(glyphs)), len(glyphs), each, (0, "simulated"))
    return images, np.array(list(glyphs))[classes]


def build(images: Images, watch: Callable[[int], None] = lambda _: None) -> bytes:
    """Return the pool's file: an NPZ archive of ``images`` and of each one's ``neighbours``, nearest first.

    Images are near that are near in the public image encoder fitted to the pool itself. Equal images are kept once,
    so that a neighbour is another image. Memory: BLOCK rows of distances; ``watch`` is called with finished images.
    """
    images = _distinct(images)
    step = -(-len(images) // FITTED)
    encoder = fit(images[::step], stream(0, "pool"), dimension=DIMENSION)
    neighbours = nearest(encoder.encode(images).astype(np.float32), min(NEIGHBOURS, len(images) - 1), watch)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=images, neighbours=neighbours)
    return buffer.getvalue()


def read_public_texts(path: Path, length: int, column: str = "text") -> tuple[list[str], dict[str, int]]:
    """Return the distinct public texts in a file, in their normal form and order, and how many were left out or cut.

    path:    JSON lines (texts, or objects with the key ``column``), or a CSV, TSV or Parquet table with that column
    length:  bytes of UTF-8 that each text keeps

    Raises DataError for what cannot be read, or fewer than two texts.
    """
    given = _json_lines(path, column) if path.suffix.lower() == ".jsonl" else cells(path, [column])[column]
    texts: dict[str, None] = {}
    found = {"empty": 0, "cut": 0, "again": 0}
    for number, text in enumerate(given, 1):
        try:
            kept, whole = normal(text, length), normal(text, length + 1)
        except DataError as reason:
            raise DataError(f"{shown(path.name)}, text {number}: {reason}") from reason
        found["empty"] += not kept
        found["again"] += kept in texts
        found["cut"] += kept != whole
        if kept:
            texts[kept] = None
    if len(texts) < 2:
        raise DataError(f"{shown(path.name)} holds {len(texts)} different text(s); expected a pool to choose from.")
    return list(texts), found


def _json_lines(path: Path, column: str) -> Iterator[str]:
    try:
        lines = path.read_text("utf-8").split("\n")
        for number, line in enumerate(lines, 1):
            if line.strip():
                value = json.loads(line)
                text = value.get(column) if isinstance(value, dict) else value
                if not isinstance(text, str):
                    raise DataError(
                        f"{shown(path.name)}, line {number}: no text found; expected a text in quotes, or an object "
                        f"with the key {column!r}."
                    )
                yield text
    except (OSError, ValueError, RecursionError) as reason:
        raise DataError(f"{shown(path.name)} cannot be read as JSON lines in UTF-8: {reason}. Check it.") from reason


def description(network: Path | None, tokenizer: Path | None, tokens: int) -> Describe:
    """Return what a public network and its tokenizer say of texts; without them, hashed words. Raises InputError."""
    if network is None and tokenizer is None:
        return hashed_words
    if network is None or tokenizer is None:
        raise InputError("one of --network and --tokenizer found; expected both, or neither.")
    return open_sentences(network, tokenizer, tokens, DEFAULT).describe


def build_texts(
    texts: Sequence[str], length: int, describe: Describe, watch: Callable[[int], None] = lambda _: None
) -> bytes:
    """Return the pool's file: an NPZ archive of packed ``texts`` and of each one's ``neighbours``, nearest first.

    Texts are near that are near as ``describe`` says. ``watch`` is called with the number of finished texts.
    """
    rows, described = packed(texts, length), []
    for start in range(0, len(rows), BLOCK):
        described.append(describe(rows[start : start + BLOCK]))
        watch(len(described[-1]))
    neighbours = nearest(np.concatenate(described).astype(np.float32), min(NEIGHBOURS, len(rows) - 1))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, texts=rows, neighbours=neighbours)
    return buffer.getvalue()


def _distinct(images: Images) -> Images:
    flat = np.ascontiguousarray(images).reshape(len(images), -1)
    _, firsts = np.unique(flat.view(f"V{flat.shape[1]}").ravel(), return_index=True)
    if len(firsts) < 2:
        raise DataError("fewer than two different images found; expected a pool to choose from.")
    return images[np.sort(firsts)]


def nearest(
    points: NDArray[np.float32], count: int, watch: Callable[[int], None] = lambda _: None
) -> NDArray[np.int32]:
    """Return (n, count) int32 numbers of the points nearest to each of (n, d) others, nearest first."""
    squares = np.einsum("nd,nd->n", points, points)
    table = np.empty((len(points), count), np.int32)
    for start in range(0, len(points), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(points)))
        distance = squares - 2.0 * (points[rows] @ points.T)  # less a row's own square, which orders nothing
        distance[rows - start, rows] = np.inf
        some = np.argpartition(distance, count - 1, axis=1)[:, :count]
        order = np.argsort(np.take_along_axis(distance, some, axis=1), axis=1, kind="stable")
        table[rows] = np.take_along_axis(some, order, axis=1)
        watch(len(rows))
    return table
