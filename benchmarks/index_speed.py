"""A vote on 10⁶ candidates: the exact tally against an approximate index (faiss, IVF), and against making them.

    OMP_NUM_THREADS=1 python benchmarks/index_speed.py --peer dpsda-environment [--candidates 1000000] [--records 500]

The index is built and searched in the environment that benchmarks/dpsda.py makes, which has faiss. Features are normal
in ``INTRINSIC`` dimensions, turned into 64 with little noise, which suits an index better than 64 free dimensions. One
line of JSON: processor seconds of each, the share of the 20 nearest that the index finds, and the seconds that drawing,
rendering and describing as many digits takes, from a sample of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

INTRINSIC, DIMENSIONS, NEAREST, SAMPLE = 12, 64, 20, 5000
PEER = """
import json, sys, time
import faiss, numpy as np
records, candidates = np.load(sys.argv[1]), np.load(sys.argv[2])
nearest, lists = int(sys.argv[3]), int(len(candidates) ** 0.5)
found = {}
def timed(name, work):
    start = time.process_time()
    result = work()
    found[name] = time.process_time() - start
    return result
flat = faiss.IndexFlatL2(candidates.shape[1])
flat.add(candidates)
truth = timed("flat_search", lambda: flat.search(records, nearest)[1])
index = faiss.IndexIVFFlat(faiss.IndexFlatL2(candidates.shape[1]), candidates.shape[1], lists)
timed("index_train", lambda: index.train(candidates[: 50 * lists]))
timed("index_add", lambda: index.add(candidates))
for probes in (8, 32):
    index.nprobe = probes
    ids = timed(f"index_search_{probes}", lambda: index.search(records, nearest)[1])
    alone = np.concatenate([index.search(records[i : i + 1], nearest)[1] for i in range(len(records))])
    found[f"recall_{probes}"] = float(np.mean([len(set(a) & set(b)) / nearest for a, b in zip(ids, truth)]))
    found[f"rows_that_differ_alone_{probes}"] = int((alone != ids).any(axis=1).sum())
print(json.dumps(found))
"""


def made(count: int) -> float:
    """Return the processor seconds of drawing, rendering and describing so many digits, scaled from a sample."""
    from patevolve.client.demo import plan_of
    from patevolve.shared.randomness import stream
    from patevolve.shared.tools import tools_of

    tools = tools_of(plan_of("digits", 4.0, 1).plan)
    start = time.process_time()
    genomes = tools.generator.draw(stream(0, "index"), 0, SAMPLE)
    tools.encoder.encode(tools.generator.render(genomes, np.zeros(SAMPLE, np.int64)))
    return (time.process_time() - start) * count / SAMPLE


def indexed(python: Path, records: np.ndarray, candidates: np.ndarray) -> dict[str, Any]:
    """Return what the peer measures."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "records.npy", Path(folder) / "candidates.npy"]
        for file, values in zip(files, (records, candidates), strict=True):
            np.save(file, values.astype(np.float32))
        command = [python, "-c", PEER, *files, str(NEAREST)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))  # noqa: S603 - ours
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure and print."""
    from patevolve.shared.votes import ballots

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder of DPSDA's environment")
    parser.add_argument("--candidates", type=int, default=10**6)
    parser.add_argument("--records", type=int, default=500)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    turn = rng.normal(size=(INTRINSIC, DIMENSIONS)) / DIMENSIONS**0.5
    records, candidates = (
        rng.normal(size=(count, INTRINSIC)) @ turn + 0.05 * rng.normal(size=(count, DIMENSIONS))
        for count in (options.records, options.candidates)
    )
    found = indexed(options.peer / "bin" / "python", records, candidates)
    voters = ballots.Electorate(np.arange(len(records)).astype(str))
    bounds = ballots.neighbours_bounds(len(candidates), NEAREST, 1)
    theirs = candidates, np.zeros(len(candidates), np.int64)
    start = time.process_time()
    ballots.neighbours(voters, records, np.zeros(len(records), np.int64), theirs, nearest=NEAREST, bounds=bounds)
    found["exact_tally"] = time.process_time() - start
    found |= {"making_candidates": made(len(candidates)), "candidates": len(candidates), "records": len(records)}
    print(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
