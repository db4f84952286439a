"""One full generation of 10, 100 and 1,000 simulated sites in one process: processor time and memory per site.

    python benchmarks/sites_speed.py 1000 [--times 1] [--profile FILE]

Each site has its own folder, policy, signing key and ledger, and draws its own noise. Counts and prototypes are asked,
then one vote on candidates. Folders lie in memory (/dev/shm), so that the disk's speed has no part in it. One line of
JSON: setting up (folders, keys, ledgers), the run with all charges, peak resident memory. A run of two sites comes
first, ``once_s``: it loads libraries and makes tables, which takes as long as a hundred sites and belongs to none.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from patevolve.client.simulate import simulate
from patevolve.client.study import found_sites
from patevolve.shared.data.records import Records
from patevolve.shared.plan import agree
from patevolve.shared.randomness import stream

UNITS = 20  # of each site

PLAN = """format = 1
name = "many sites, tiny table"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-6
unit = "patient"
trust = "each-site"
[sites]
count = {count}
expected_units = {units}
[data]
kind = "table"
classes = ["no", "yes"]
label = "ill"
unit = "patient"
site = "site"
[[data.columns]]
name = "age"
kind = "numeric"
edges = [0, 20, 40, 60, 80]
[[data.columns]]
name = "sex"
kind = "categorical"
values = ["f", "m"]
[[data.columns]]
name = "smoker"
kind = "categorical"
values = ["no", "yes", "past"]
[generator]
kind = "tabular"
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.4
[questions.neighbours]
share = 0.5
times = 1
candidates = 64
nearest = 4
[evolution]
population = 64
generations = 1
offspring = 1
[release]
samples = 64
"""


def records(site: int) -> Records:
    """Return a site's patients, one record each."""
    rng = stream(1, "benchmark records", site)
    values = np.column_stack([rng.integers(0, levels, UNITS) for levels in (4, 2, 3)])
    names = np.array([f"{site}/{number}" for number in range(UNITS)])
    return Records(values=values, classes=rng.integers(0, 2, UNITS), units=names)


def peak() -> float:
    """Return this process's peak resident memory in MiB."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 2**10)


def cohort(count: int, profile: cProfile.Profile | None = None) -> dict[str, float]:
    """Found so many sites and run the plan over them; return wall and processor seconds of both."""
    agreed = agree(PLAN.format(count=count, units=UNITS))
    private = {f"site {number:05d}": records(number) for number in range(count)}
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of our own is made in it
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        start, spent = time.perf_counter(), time.process_time()
        sites = found_sites(Path(folder) / "sites", private, agreed)
        founded, founding = time.perf_counter() - start, time.process_time() - spent
        start, spent = time.perf_counter(), time.process_time()
        with profile or contextlib.nullcontext():
            finished = simulate(agreed, sites, Path(folder) / "run")
        run, running = time.perf_counter() - start, time.process_time() - spent
    if len(finished.units) != count:
        raise RuntimeError(f"{len(finished.units)} of {count} sites took part.")
    return {"founding_s": founded, "founding_cpu_s": founding, "run_s": run, "run_cpu_s": running}


def main() -> None:
    """Run one cohort after the first two sites and print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", type=int)
    parser.add_argument("--times", type=int, default=1, help="mean of so many cohorts")
    parser.add_argument("--profile", help="write cProfile's statistics of the runs here")
    options = parser.parse_args()
    before, start = peak(), time.perf_counter()
    cohort(2)
    figures = {"sites": options.sites, "once_s": time.perf_counter() - start}
    profile = cProfile.Profile() if options.profile else None
    turns = [cohort(options.sites, profile) for _ in range(options.times)]
    if profile:
        profile.dump_stats(options.profile)
    figures |= {name: statistics.fmean(turn[name] for turn in turns) for name in turns[0]}
    print(json.dumps({**figures, "base_mib": before, "peak_mib": peak()}))


if __name__ == "__main__":
    main()
