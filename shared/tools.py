"""The public generator and encoder that a plan names: the same objects at every site and at the coordinator."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import assets, plan_sections
from patevolve.shared.encoder.device import DEFAULT, DeviceProfile
from patevolve.shared.encoder.export import Precision, in_precision
from patevolve.shared.encoder.fitted import packed, unpacked
from patevolve.shared.encoder.image import Describe, ImageEncoder, fit, histograms
from patevolve.shared.encoder.ngrams import hashed_words
from patevolve.shared.encoder.onnx import open_network, pixels
from patevolve.shared.encoder.pairs import PairEncoder
from patevolve.shared.encoder.sentences import open_sentences
from patevolve.shared.encoder.table import TableEncoder
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.generators import diffusion, pool, vqvae
from patevolve.shared.generators.blend import Blended
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.generators.tabular import Tabular
from patevolve.shared.plan import Plan
from patevolve.shared.plan_sections import Data
from patevolve.shared.protocols import Encoder, Generator, Genomes
from patevolve.shared.randomness import stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a run computes with, all of it public."""

    generator: Generator
    encoder: Encoder


def features_of(tools: Tools, genomes: Genomes, classes: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Return (P, d) features of candidates, of one class or one class each.

    The images or texts of a pool are encoded once, for they come again and again.
    """
    generator = tools.generator
    if isinstance(generator, pool.Pool) and not generator.variation:
        return _features_of_pool(tools)[generator.numbers_of(genomes)]
    return tools.encoder.encode(generator.render(genomes, np.broadcast_to(classes, len(genomes))))


def samples(
    generator: Generator, classes: int, each: int, place: tuple[int, *tuple[int | str, ...]]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return (classes × each, ...) values of the generator's own, public draws, class by class, and their classes.

    place: the seed and the names of the stream
    """
    values = []
    for cls in range(classes):
        genomes = generator.draw(stream(*place, cls), cls, each)
        values.append(generator.render(genomes, np.full(each, cls)))
    return np.concatenate(values), np.repeat(np.arange(classes), each)


@functools.lru_cache(maxsize=4)
def _features_of_pool(tools: Tools) -> NDArray[np.float64]:
    if not isinstance(tools.generator, pool.Pool):
        raise PlanError(f"a generator {type(tools.generator).__name__} found; expected a pool.")
    return tools.encoder.encode(tools.generator.images)


PUBLIC = 400  # public images or texts per class that fit the public encoder
CALIBRATION = 256  # public images that tell the ranges of a network in 8 bits


def tools_of(plan: Plan, device: DeviceProfile = DEFAULT) -> Tools:
    """Return the plan's generator and encoder; kept, since fitting an image encoder takes seconds.

    Raises PlanError if a public file that the plan names is not on this machine.
    """
    return _tools(plan.data, plan.generator, plan.encoder, plan.seed, device)


def fitted_file(plan: Plan) -> bytes:
    """Return the statistics of the plan's encoder of images or texts, fitted here even if the plan names their file."""
    encoder = tools_of(replace(plan, encoder=replace(plan.encoder, fitted=""))).encoder
    if not isinstance(encoder, ImageEncoder):
        raise PlanError("the plan's data is a table, whose encoder is its schema; there is nothing to fit.")
    return packed(encoder, plan.encoder.widths)


def in_precision_file(path: Path, plan: Plan, precision: Precision) -> bytes:
    """Return a network's file in another precision, calibrated on public images of the plan's generator.

    Raises InputError if what it says of those images does not agree with the given file.
    """
    if plan.data.kind != "image":
        raise InputError(f"a plan for data of kind {plan.data.kind!r} found; only networks of images are quantised.")
    channels, height, width = open_network(path, DEFAULT).shape
    each = -(-CALIBRATION // len(plan.data.classes))
    images, _ = samples(
        _generator(plan.data, plan.generator), len(plan.data.classes), each, (plan.seed, "public images")
    )
    size = (height or plan.data.height, width or plan.data.width)
    return in_precision(path.read_bytes(), precision, np.stack([pixels(image, channels, *size) for image in images]))


@functools.lru_cache(maxsize=8)
def _tools(
    data: Data, generator: plan_sections.Generator, encoder: plan_sections.Encoder, seed: int, device: DeviceProfile
) -> Tools:
    drawn = _generator(data, generator)
    if data.kind == "table":
        table = TableEncoder(schema=data.columns)
        return Tools(generator=drawn, encoder=PairEncoder(table=table, share=encoder.pairs) if encoder.pairs else table)
    made = _encoder(data, encoder, drawn, seed, _description(data, encoder, device))  # fitted to what is no blend
    if generator.blend:
        drawn = Blended(base=drawn, classes=len(data.classes), share=generator.blend)
    return Tools(generator=drawn, encoder=made)


def _description(data: Data, named: plan_sections.Encoder, device: DeviceProfile) -> Describe:
    """Return how the plan describes images or texts, each by itself."""
    if named.kind == "auto":
        return hashed_words if data.kind == "text" else histograms
    network = assets.find(named.asset)
    if data.kind == "text":
        return open_sentences(network, assets.find(named.tokenizer), named.tokens, device).describe
    return open_network(network, device).describe


def _generator(data: Data, named: plan_sections.Generator) -> Generator:
    """Return the plan's generator."""
    match named.kind:
        case "tabular":
            return Tabular(schema=data.columns)
        case "simulator":
            return Simulator(glyphs=data.classes, side=data.height, asset=named.asset, variation=named.variation)
        case "pool":
            if data.kind == "text":
                return pool.load_texts(named.asset, data.length)
            return pool.load(named.asset, data.shape, named.variation)
        case "vqvae":
            return vqvae.load(named.asset, data.classes, (data.height, data.width))
        case "diffusers":
            return diffusion.load(named.asset, data.classes, named.prompts, shape=data.shape, steps=named.steps)


def _encoder(
    data: Data, named: plan_sections.Encoder, generator: Generator, seed: int, describe: Describe
) -> ImageEncoder:
    """Return the plan's encoder of images or texts, its statistics fitted to the generator's own, public draws."""
    if named.fitted:
        path = assets.find(named.fitted)
        kept = unpacked(path, dimension=named.dimension, widths=named.widths, describe=describe)
        return replace(kept, embedding=named.embedding)
    public, _ = samples(generator, len(data.classes), PUBLIC, (seed, "public images"))
    encoder = fit(public, stream(seed, "encoder"), dimension=named.dimension, widths=named.widths, describe=describe)
    if encoder.dimension < named.dimension or not np.isfinite(encoder.axes).all():
        raise PlanError(
            f"encoder.dimension = {named.dimension} found; what describes the public records varies in fewer "
            f"dimensions. Lower it."
        )
    return replace(encoder, embedding=named.embedding)
