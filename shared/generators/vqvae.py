"""A small VQ-VAE (van den Oord et al. 2017) as a generator: a genome is a grid of latents before they are quantised.

Rendering takes each latent to its nearest code and decodes the codes. Both are whole-number arithmetic in doubles,
which is exact whatever the order of summation, so that every site renders the same pixels, bit for bit, with numpy
alone. Training (vqvae_train.py) needs PyTorch and happens once, on public images; a plan names the file by its hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import assets
from patevolve.shared.errors import DataError, PlanError
from patevolve.shared.generators.tensors import unpack
from patevolve.shared.protocols import Genomes

FORMAT = "patevolve vqvae 1"
UNIT = 256.0  # latents are multiples of 1/256: a genome travels in 2 bytes a number below 8, else in 4
FURTHEST = 64.0  # and no larger
ACTIVATION = 4095.0  # an activation is a whole number from 0 to this
WHOLE = 2.0**52  # sums stay below: exact in a double
BATCH = 64

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """One 3 × 3 convolution in whole numbers, after the grid was doubled if ``doubles``.

    weights:  (9 · inputs, outputs), offsets in row order, inputs within;  bias: (outputs,)
    shift:    the sum is divided by 2^shift and rounded
    """

    weights: Floats
    bias: Floats
    shift: int
    doubles: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VqVae:
    """Images (height, width) uint8 that a public decoder makes of latents on a grid.

    codes:   (K, D) whole numbers, in units of 1/256
    layers:  the decoder; the last one gives grey levels
    bank:    (n, rows · columns · D) latents of public images, in units of 1/256
    labels:  (n,) which class name each of them shows, "" where nobody said
    grid:    (rows, columns, D)
    """

    classes: tuple[str, ...]
    sha256: str
    codes: Floats
    layers: tuple[Layer, ...]
    bank: NDArray[np.int16]
    labels: NDArray[np.str_]
    grid: tuple[int, int, int]

    @property
    def genome_size(self) -> int:
        """One number per place of the grid and dimension of a code."""
        return int(np.prod(self.grid))

    @property
    def digest(self) -> str:
        """SHA-256 of the file's hash and the class names, which say what is drawn for a class."""
        return hashlib.sha256(repr(("vqvae", self.sha256, self.classes)).encode()).hexdigest()

    def draw(self, rng: np.random.Generator, cls: int, count: int) -> Genomes:
        """Return latents between two random public images: of the class if the bank names it, else of any."""
        own = np.flatnonzero(self.labels == self.classes[cls])
        own = own if len(own) else np.arange(len(self.bank))
        pairs = self.bank[rng.choice(own, size=(2, count))] / UNIT
        alpha = rng.beta(0.5, 0.5, size=(count, 1))  # mostly near one of the two
        return _snapped(alpha * pairs[0] + (1.0 - alpha) * pairs[1])

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:
        """Return latents moved towards a fresh draw: around the bank's mean, √(1 − s²) of the parent and s of it.

        That keeps mean and spread of what is drawn; at strength 1 nothing of the parent is left.
        """
        mean = self.bank.mean(axis=0) / UNIT
        fresh = self.draw(rng, cls, len(genomes))
        kept = np.sqrt(max(0.0, 1.0 - strength**2))
        return _snapped(mean + kept * (genomes - mean) + strength * (fresh - mean))

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return z = α·mother + (1 − α)·father with α ~ Beta(2, 2)."""
        alpha = rng.beta(2.0, 2.0, size=(len(mothers), 1))
        return _snapped(alpha * mothers + (1.0 - alpha) * fathers)

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[np.uint8]:  # noqa: ARG002 - a latent looks the same in every class
        """Return (P, height, width) uint8 images."""
        parts = [self._decoded(genomes[start : start + BATCH]) for start in range(0, len(genomes), BATCH)]
        return np.concatenate(parts) if parts else np.zeros((0, *self.shape), np.uint8)

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of its images."""
        factor = 2 ** sum(layer.doubles for layer in self.layers)
        return self.grid[0] * factor, self.grid[1] * factor

    def _decoded(self, genomes: Genomes) -> NDArray[np.uint8]:
        places = UNIT * _snapped(genomes).reshape(-1, self.grid[2])
        nearest = np.argmin(np.sum(self.codes**2, axis=1) - 2.0 * (places @ self.codes.T), axis=1)
        values = self.codes[nearest].reshape(-1, *self.grid)
        for layer in self.layers[:-1]:
            values = np.clip(_convolved(values, layer), 0.0, ACTIVATION)
        return np.clip(_convolved(values, self.layers[-1]), 0.0, 255.0)[..., 0].astype(np.uint8)


def _snapped(latents: Floats) -> Genomes:
    snapped: Genomes = np.rint(np.clip(latents, -FURTHEST, FURTHEST) * UNIT) / UNIT
    return snapped


def _convolved(values: Floats, layer: Layer) -> Floats:
    """Return (n, rows, columns, outputs) rounded whole numbers of whole numbers (n, rows, columns, inputs)."""
    if layer.doubles:
        values = values.repeat(2, axis=1).repeat(2, axis=2)
    n, rows, columns, inputs = values.shape
    padded = np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
    sums = np.broadcast_to(layer.bias, (n * rows * columns, len(layer.bias))).copy()
    for place in range(9):
        down, right = divmod(place, 3)
        part = padded[:, down : down + rows, right : right + columns].reshape(-1, inputs)
        sums += part @ layer.weights[place * inputs : (place + 1) * inputs]
    rounded: Floats = np.rint(np.ldexp(sums, -layer.shift)).reshape(n, rows, columns, -1)
    return rounded


def load(sha256: str, classes: tuple[str, ...], shape: tuple[int, int]) -> VqVae:
    """Return the generator in the public file of this hash. Raises PlanError for another file or another shape."""
    path = assets.find(sha256)
    try:
        found = read(path.read_bytes(), sha256, classes)
    except DataError as reason:
        raise PlanError(f"{path} is no VQ-VAE ({reason}). Make one: patevolve assets train-vqvae.") from reason
    if found.shape != shape:
        raise PlanError(
            f"generator.asset: images of {found.shape} found; expected {shape}, as data.height and width say. Train "
            f"another VQ-VAE or change the plan."
        )
    return found


def read(data: bytes, sha256: str, classes: tuple[str, ...]) -> VqVae:
    """Return the generator in a file's bytes. Raises DataError if a part is missing, or its sums would not be exact."""
    arrays, texts = unpack(data)
    try:
        found = _put_together(arrays, texts, sha256, classes)
        _check(found)
    except (KeyError, ValueError, IndexError) as reason:
        raise DataError(f"a file without a VQ-VAE found ({reason}); expected its codes, layers and bank.") from reason
    return found


def _put_together(
    arrays: dict[str, NDArray[np.generic]], texts: dict[str, str], sha256: str, classes: tuple[str, ...]
) -> VqVae:
    if texts["format"] != FORMAT:
        raise ValueError(f"format {texts['format']!r}")
    rows, columns, depth = (int(size) for size in arrays["grid"].tolist())
    names = texts["labels"].split("\x1f")
    return VqVae(
        classes=classes,
        sha256=sha256,
        codes=arrays["codes"].astype(np.float64),
        layers=tuple(_layer(arrays, number) for number in range(len(arrays["shifts"]))),
        bank=arrays["bank"].astype(np.int16),
        labels=np.array([names[number] for number in arrays["bank labels"].tolist()]),
        grid=(rows, columns, depth),
    )


def _layer(arrays: dict[str, NDArray[np.generic]], number: int) -> Layer:
    return Layer(
        weights=arrays[f"weights {number}"].astype(np.float64),
        bias=arrays[f"bias {number}"].astype(np.float64),
        shift=int(arrays["shifts"][number]),
        doubles=bool(arrays["doubles"][number]),
    )


def _check(found: VqVae) -> None:
    """Refuse parts that do not fit one another, or numbers so large that a sum could be rounded."""
    rows, columns, depth = found.grid
    inputs, largest = depth, float(np.abs(found.codes).max())
    whole = found.codes.ndim == 2 and found.codes.shape[1] == depth and min(rows, columns, len(found.bank)) > 0
    if not (whole and found.bank.shape == (len(found.labels), found.genome_size) and found.layers):
        raise ValueError("codes or bank of another size than the grid")
    if not depth * UNIT * FURTHEST * max(largest, 1.0) * 4 < WHOLE:
        raise ValueError("codes too large")
    for layer in found.layers:
        if layer.weights.shape != (9 * inputs, len(layer.bias)) or not 0 <= layer.shift <= 60:
            raise ValueError("a layer that does not follow the one before")
        if not float((np.abs(layer.weights).sum(axis=0) * largest + np.abs(layer.bias)).max()) < WHOLE:
            raise ValueError("weights too large")
        inputs, largest = len(layer.bias), ACTIVATION
    if inputs != 1:
        raise ValueError("a decoder that does not end in one grey level")
