"""The public generator and encoder that a plan names: the same objects at every site and at the coordinator."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from patevolve.shared import plan as plans
from patevolve.shared.encoder.image import fit
from patevolve.shared.encoder.table import TableEncoder
from patevolve.shared.generators import pool
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.generators.tabular import Tabular
from patevolve.shared.plan import Data, Plan
from patevolve.shared.protocols import Encoder, Generator
from patevolve.shared.randomness import stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a run computes with, all of it public."""

    generator: Generator
    encoder: Encoder


PUBLIC = 400  # public images per class that fit the public encoder


def tools_of(plan: Plan) -> Tools:
    """Return the plan's generator and encoder; kept, since fitting an image encoder takes seconds.

    Raises PlanError if a public file that the plan names is not on this machine.
    """
    return _tools(plan.data, plan.generator, plan.encoder, plan.seed)


@functools.lru_cache(maxsize=8)
def _tools(data: Data, generator: plans.Generator, encoder: plans.Encoder, seed: int) -> Tools:
    drawn = _generator(data, generator)
    return Tools(generator=drawn, encoder=_encoder(data, encoder, drawn, seed))


def _generator(data: Data, named: plans.Generator) -> Generator:
    """Return the plan's generator."""
    match named.kind:
        case "tabular":
            return Tabular(schema=data.columns)
        case "simulator":
            return Simulator(glyphs=data.classes, side=data.height)
        case "pool":
            return pool.load(named.asset, (data.height, data.width), named.variation)


def _encoder(data: Data, named: plans.Encoder, generator: Generator, seed: int) -> Encoder:
    """Return the plan's encoder, its statistics fitted to the generator's own, public draws."""
    if data.kind == "table":
        return TableEncoder(schema=data.columns)
    images = []
    for cls in range(len(data.classes)):
        genomes = generator.draw(stream(seed, "public images", cls), cls, PUBLIC)
        images.append(generator.render(genomes, np.full(PUBLIC, cls)))
    return fit(np.concatenate(images), stream(seed, "encoder"), dimension=named.dimension)
