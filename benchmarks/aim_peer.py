"""Run one synthesiser of smartnoise-synth in its own environment: ``benchmarks/aim.py`` starts this, nothing else does.

    PEER/bin/python benchmarks/aim_peer.py NAME IN.npz OUT.npz EPSILON DELTA SEED ROWS

IN holds ``codes`` (n, columns) int64, the class last. OUT gets as many columns of synthetic codes, and the seconds.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd
from snsynth.aim import AIMSynthesizer
from snsynth.mst import MSTSynthesizer

SYNTHESISERS = {"aim": AIMSynthesizer, "mst": MSTSynthesizer}


def main() -> None:
    """Fit on IN, draw ROWS rows, write OUT."""
    name, source, target = sys.argv[1:4]
    epsilon, delta = map(float, sys.argv[4:6])
    seed, rows = map(int, sys.argv[6:8])
    np.random.seed(seed)  # noqa: NPY002 - the peer draws from the global generator
    codes = np.load(source)["codes"]
    names = [f"c{place}" for place in range(codes.shape[1])]
    table = pd.DataFrame(codes, columns=names).astype(str)  # every column a category, as the product has it
    wall, cpu = time.perf_counter(), time.process_time()
    synthesiser = SYNTHESISERS[name](epsilon=epsilon, delta=delta)
    # No ε goes to bounds: columns are binned already. Which levels occur it reads from the private rows, uncharged.
    synthesiser.fit(table, categorical_columns=names, preprocessor_eps=0.0)
    drawn = synthesiser.sample(rows)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    np.savez(target, codes=drawn[names].astype(np.int64).to_numpy(), seconds=[wall, cpu])


if __name__ == "__main__":
    main()
