"""Time microsoft/DPSDA's own nearest-neighbour histogram in its own environment: ``benchmarks/bench.py`` starts this.

    PEER/bin/python benchmarks/tally_peer.py 6000 4000 128 20

For each line read, the name of one of its back ends (faiss, sklearn, torch), one line is written: the processor
seconds of one whole histogram of so many private rows over so many candidates, in so many dimensions, with so many
votes for each record. The embeddings are there already; both run on the threads that OMP_NUM_THREADS says.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd
from pe.data import Data
from pe.embedding import Embedding
from pe.histogram import NearestNeighbors


class Ready(Embedding):
    """Embeddings that are there already."""

    def compute_embedding(self, data: Data) -> Data:
        """Return the data as they are."""
        return data


def main() -> None:
    """Answer each back end's name with its seconds."""
    records, candidates, dimensions, nearest = (int(word) for word in sys.argv[1:5])
    rng, embedding = np.random.default_rng(0), Ready()
    private, public = (
        Data(data_frame=pd.DataFrame({embedding.column_name: list(rng.normal(size=(count, dimensions)))}))
        for count in (records, candidates)
    )
    histograms: dict[str, NearestNeighbors] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in histograms:
            histograms[name] = NearestNeighbors(
                embedding=embedding, mode="L2", lookahead_degree=0, num_nearest_neighbors=nearest, backend=name
            )
        start = time.process_time()
        histograms[name].compute_histogram(private, public)
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
