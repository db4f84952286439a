"""The performance table: run every measurement, write one JSON, render docs/performance.md from it.

    make bench            or        OMP_NUM_THREADS=1 python benchmarks/bench.py [--only tally wire] [--render]
    python benchmarks/bench.py --runs 3                        three times, and whether the runs agree
    python benchmarks/bench.py --only dpsda index --peer FOLDER    beside DPSDA, in the environment that dpsda.py makes
    python benchmarks/bench.py --only crowd                    10,000 sites: some minutes and 3 GiB
    python benchmarks/bench.py --only end --end DPSDA.json AIM.json    from what dpsda.py and aim.py wrote by --json

The table is measured in rounds (``--rounds``), each measurement once a round, in a process of its own; the repeats of
all rounds count together, so that their range holds what the machine did during the whole run.

``--only`` replaces some measurements in the JSON and keeps the others; ``--render`` measures nothing. The last three
are made only when they are named. ``--out`` writes the JSON elsewhere and renders nothing; ``--compare`` takes several
such files as the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import bench_view

HERE = Path(__file__).parent
RESULT = HERE / "performance.json"
PAGE = HERE.parent / "docs" / "performance.md"
MEASUREMENTS = ("tally", "generation", "noise", "accounting", "pate", "wire", "sites", "edge", "networks")
SELDOM = ("dpsda", "index", "crowd", "end")  # they need other programs, or minutes
ONCE = ("wire", "index", "crowd", "end")  # all repeats in the first round: bytes do not drift, and the rest is slow
ROUNDS = 5
LIBRARIES = ("patevolve", "numpy", "scipy", "scikit-learn", "opendp", "cryptography", "pillow", "torch", "onnxruntime")


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "0")) or "library default",
        "system": platform.system(),
        "load": os.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries in the table."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def measure(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Return one measurement's rows of one round; the reason instead if it failed. ``given``: environment variables."""
    started = time.monotonic()
    command = [sys.executable, str(HERE / ("bench_seldom.py" if name in SELDOM else "bench_rows.py")), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **given})  # noqa: S603 - our own script
    took = time.monotonic() - started
    print(f"{name}: {'measured' if done.returncode == 0 else 'FAILED'} in {took:.0f} s", flush=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        lines = done.stderr.strip().splitlines()
        return {"rows": [], "failed": lines[-1] if lines else f"exit {done.returncode}"}
    return {"rows": json.loads(done.stdout), "seconds": took, "load": os.getloadavg()[0]}


def in_rounds(names: Sequence[str], given: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Return these measurements, each made once a round; one that failed is not tried again."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            for name, before in found.items():
                turn = "0/1" if name in ONCE else f"{number}/{rounds}"
                place = {"PATEVOLVE_BENCH_ROUND": turn, "PATEVOLVE_BENCH_KEEP": folder}
                if not before or not (name in ONCE or "failed" in before[-1]):
                    before.append(measure(name, {**given, **place}))
    return {name: pooled(one) for name, one in found.items()}


def pooled(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a measurement's rounds as one: each row's repeats round by round, all else as the first round has it."""
    failed = [one["failed"] for one in rounds if "failed" in one]
    if failed:
        return {"rows": [], "failed": failed[0]}
    rows = [joined(same) for same in zip(*(one["rows"] for one in rounds), strict=True)]
    return {"rows": rows, **{key: [one[key] for one in rounds] for key in ("seconds", "load")}}


def joined(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one row of all rounds."""
    row = {**rounds[0], "values": [value for one in rounds for value in one["values"]]}
    if "figures" in row:
        row["figures"] = {name: [v for one in rounds for v in one["figures"][name]] for name in row["figures"]}
    return row


def made(names: Sequence[str], before: Mapping[str, Any], given: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Return the result with these measurements made anew."""
    start = {**machine(), "rounds": rounds}
    if not set(MEASUREMENTS) <= set(names) and before.get("machine", {}).get("cpu") == start["cpu"]:
        start = before["machine"]  # the head is of the whole table; each measurement has a load of its own
    found = before["measurements"] | in_rounds(names, given, rounds)
    return {**before, "format": 1, "machine": start, "versions": versions(), "measurements": found}


def spreads(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as the page compares it: each row's least, middle and greatest repeat."""
    rows = [row for name in MEASUREMENTS for row in result["measurements"].get(name, {"rows": []})["rows"]]
    load = [load for name in MEASUREMENTS for load in result["measurements"].get(name, {}).get("load", [])]
    found, last = {}, ""
    for row in rows:
        what = row["what"]
        last = last if what.startswith("the same") else what  # several rows are the same of another
        found[what if what == last else f"{last}; {what}"] = [f(row["values"]) for f in (min, statistics.median, max)]
    return {"load": load, "rows": found}


def read(path: Path) -> dict[str, Any]:
    """Return a result; an empty one where there is none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"measurements": {}}
    return found


def main() -> None:
    """Measure, write and render. Exit 1 if a measurement failed (a missed goal is no failure)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=(*MEASUREMENTS, *SELDOM), default=MEASUREMENTS)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--runs", type=int, default=1, help="how often everything is measured")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each run, over which its repeats are spread")
    parser.add_argument("--compare", type=Path, nargs="+", help="results of several runs")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--peer", type=Path, help="folder of the environment that dpsda.py makes")
    parser.add_argument("--end", type=Path, nargs="+", help="files that dpsda.py and aim.py wrote by --json")
    options = parser.parse_args()
    given = {
        "PATEVOLVE_BENCH_DPSDA": str(options.peer or ""),
        "PATEVOLVE_BENCH_END": os.pathsep.join(map(str, options.end or [])),
    }
    result = read(options.out)
    if options.compare:
        result["runs"] = [spreads(read(path)) for path in options.compare]
    elif not options.render:
        runs = []
        for _ in range(options.runs):
            result = made(options.only, result, given, options.rounds)
            runs.append(spreads(result))
        if options.runs > 1:
            result["runs"] = runs
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.out == RESULT:
        PAGE.write_text(bench_view.page(result), encoding="utf-8")
    if "runs" in result:
        print(bench_view.runs(result["runs"]))
    failed = [name for name, one in result["measurements"].items() if "failed" in one]
    print(f"{options.out} written" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
