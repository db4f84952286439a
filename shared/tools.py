"""The public generator and encoder that a plan names: the same objects at every site and at the coordinator."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from patevolve.shared.encoder.image import fit
from patevolve.shared.encoder.table import TableEncoder
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


PUBLIC = 400  # simulated images per class that fit the public encoder


@functools.lru_cache(maxsize=8)
def _tools(data: Data, seed: int) -> Tools:
    if data.kind == "table":
        return Tools(generator=Tabular(schema=data.columns), encoder=TableEncoder(schema=data.columns))
    simulator = Simulator(glyphs=data.classes, side=data.height)
    images = []
    for cls in range(len(data.classes)):
        genomes = simulator.draw(stream(seed, "public images", cls), cls, PUBLIC)
        images.append(simulator.render(genomes, np.full(PUBLIC, cls)))
    return Tools(generator=simulator, encoder=fit(np.concatenate(images), stream(seed, "encoder")))


def tools_of(plan: Plan) -> Tools:
    """Return the plan's generator and encoder; kept, since fitting an image encoder takes seconds."""
    return _tools(plan.data, plan.seed)
