"""Run microsoft/DPSDA's own Private Evolution in its own environment: ``benchmarks/dpsda.py`` starts this.

    PEER/bin/python benchmarks/dpsda_peer.py PLAN.toml IN.npz OUT.npz '{"schedule": [...], ...}'

The plan's public generator is its API (random draw, variation) and the plan's public encoder its embedding. Everything
else is its own: runner, population, histogram with its faiss index, noise and accounting. If IN holds the features of
the images of a public pool, a candidate's are looked up there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pe.api import API
from pe.constant.data import IMAGE_DATA_COLUMN_NAME as IMAGE
from pe.constant.data import LABEL_ID_COLUMN_NAME as LABEL
from pe.data import Data
from pe.embedding import Embedding
from pe.histogram import NearestNeighbors
from pe.population import PEPopulation
from pe.runner import PE

from patevolve.shared.generators.pool import Pool
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.protocols import Generator
from patevolve.shared.randomness import stream
from patevolve.shared.tools import Tools, tools_of

GENOME = "genome"


class Drawn(API):
    """The plan's generator as the peer's API; ``strengths`` holds one mutation strength per iteration."""

    def __init__(self, generator: Generator, names: tuple[str, ...], strengths: list[float], seed: int) -> None:
        """Keep the generator and a public random stream."""
        super().__init__()
        self._generator, self._names, self._strengths = generator, names, strengths
        self._rng = stream(seed, "peer")

    def random_api(self, label_info: Any, num_samples: int) -> Data:
        """Return fresh draws of a class."""
        cls = self._names.index(label_info.name)
        genomes = self._generator.draw(self._rng, cls, int(num_samples))
        return Data(data_frame=self._frame(genomes, np.full(len(genomes), cls)), metadata={"label_info": [label_info]})

    def variation_api(self, syn_data: Data) -> Data:
        """Return one mutant of every candidate."""
        frame = syn_data.data_frame
        genomes, classes = np.stack(frame[GENOME].to_list()), frame[LABEL].to_numpy()
        strength = self._strengths[min(int(syn_data.metadata.iteration), len(self._strengths) - 1)]
        mutants = genomes.copy()
        for cls in np.unique(classes):
            own = classes == cls
            mutants[own] = self._generator.mutate(self._rng, genomes[own], int(cls), strength)
        return Data(data_frame=self._frame(mutants, classes), metadata=syn_data.metadata)

    def _frame(self, genomes: np.ndarray, classes: np.ndarray) -> pd.DataFrame:
        images = self._generator.render(genomes, classes)
        return pd.DataFrame({IMAGE: list(images), GENOME: list(genomes), LABEL: classes})


class Public(Embedding):
    """The plan's public encoder as the peer's embedding."""

    def __init__(self, tools: Tools, known: np.ndarray) -> None:
        """Keep the encoder, and the features of a pool's images if they are known."""
        super().__init__()
        self._tools, self._known = tools, known

    def compute_embedding(self, data: Data) -> Data:
        """Add features to the rows that have none."""
        fresh = self.filter_uncomputed_rows(data)
        if len(fresh.data_frame) == 0:
            return data
        features = self._features(fresh.data_frame)
        fresh.data_frame[self.column_name] = pd.Series(list(features), index=fresh.data_frame.index)
        return self.merge_computed_rows(data, fresh)

    def _features(self, frame: pd.DataFrame) -> np.ndarray:
        generator = self._tools.generator
        if GENOME in frame and len(self._known) and isinstance(generator, Pool):
            return self._known[generator.numbers_of(np.stack(frame[GENOME].to_list()))]
        return self._tools.encoder.encode(np.stack(frame[IMAGE].to_list()))


def evolved(agreed: Agreed, given: dict[str, np.ndarray], setting: dict[str, Any]) -> Data:
    """Return the peer's last population at the plan's ε and δ. Class shares are taken as equal, which is public."""
    plan, tools = agreed.plan, tools_of(agreed.plan)
    private = Data(
        data_frame=pd.DataFrame({IMAGE: list(given["images"]), LABEL: given["classes"]}),
        metadata={"label_info": [{"name": name} for name in plan.data.classes]},
    )
    api = Drawn(tools.generator, plan.data.classes, setting["strengths"], plan.seed)
    histogram = NearestNeighbors(
        embedding=Public(tools, given["known"]), mode="L2", lookahead_degree=setting["lookahead"], api=api
    )
    population = PEPopulation(api=api, histogram_threshold=setting["threshold"])
    runner = PE(priv_data=private, population=population, histogram=histogram)
    return runner.run(
        num_samples_schedule=setting["schedule"],
        delta=plan.privacy.delta,
        epsilon=plan.privacy.epsilon,
        save_checkpoint=False,
        fraction_per_label_id=[1.0] * len(plan.data.classes),
    )


def main() -> None:
    """Evolve over IN and write the genomes, their classes and the seconds to OUT."""
    text, source, target, setting = sys.argv[1:5]
    agreed = agree(Path(text).read_text(encoding="utf-8"))
    np.random.seed(agreed.plan.seed)  # noqa: NPY002 - the peer draws from the global generator
    tools_of(agreed.plan)  # fitting the public encoder is not timed, neither here nor in the product
    with np.load(source) as file:
        given = dict(file)
    wall, cpu = time.perf_counter(), time.process_time()
    frame = evolved(agreed, given, json.loads(setting)).data_frame
    seconds = [time.perf_counter() - wall, time.process_time() - cpu]
    np.savez(target, genomes=np.stack(frame[GENOME].to_list()), classes=frame[LABEL].to_numpy(), seconds=seconds)


if __name__ == "__main__":
    main()
