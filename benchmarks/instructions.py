"""Instructions of the tally, the noise sampler and the ledger's append: a guard that no load on the machine disturbs.

    python benchmarks/instructions.py            compare with the baseline; exit 1 when one has grown
    python benchmarks/instructions.py --write    make what is counted now the new baseline

Counted by callgrind (Debian and Ubuntu: apt-get install valgrind) in a small fixed run, after one warm call of each.
A call of ``getppid``, which does nothing else here, ends one count and begins the next, so that starting Python and
importing have no part. OpenBLAS picks its kernels by the processor: they are fixed to those for AVX2, which is also the
most that valgrind shows a program. Counts of other versions or another compiler say nothing, so the baseline names its
own, and a machine that differs is told so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

BASELINE = Path(__file__).with_suffix(".json")
TOLERANCE = 0.05  # repeated counts differ by less than 0.01; names of temporary files and times have a part
NAMES = ("tally", "sampler", "ledger")


def settings() -> dict[str, str]:
    """Return what a count depends on beside the code that is counted."""
    valgrind = shutil.which("valgrind")
    words = [valgrind, "--version"]
    return {
        "machine": platform.machine(),
        "python": f"{platform.python_version()}, {platform.python_compiler()}",
        "numpy": metadata.version("numpy"),
        "cryptography": metadata.version("cryptography"),
        "sqlite": sqlite3.sqlite_version,
        "valgrind": subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - ours
        if valgrind
        else "absent",
    }


def obstacle() -> str:
    """Return why counts here cannot be held against the baseline; empty when they can."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed (Debian and Ubuntu: apt-get install valgrind)"
    info = Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and not (info.exists() and " avx2" in info.read_text()):
        return "this processor has no AVX2, for which the baseline was counted"
    found, expected = settings(), json.loads(BASELINE.read_text(encoding="utf-8"))["settings"]
    return "; ".join(
        f"{name} {found[name]} found, the baseline is of {expected[name]}"
        for name in expected
        if found.get(name) != expected[name]
    )


def work(folder: Path) -> dict[str, Callable[[], object]]:
    """Return the three pieces of work, ready to be called any number of times."""
    import ledger_speed
    import numpy as np

    from patevolve.shared.noise import discrete_gaussian
    from patevolve.shared.privacy.ledger import Ledger
    from patevolve.shared.randomness import stream
    from patevolve.shared.votes import ballots

    rng = np.random.default_rng(0)
    features, candidates = rng.normal(size=(300, 64)), rng.normal(size=(1000, 64))
    voters, own = ballots.Electorate(np.array([f"unit {n}" for n in range(300)])), np.zeros(300, int)
    bounds, theirs = ballots.neighbours_bounds(1000, 8, 1), (candidates, np.zeros(1000, int))

    class Fixed:
        """The same bytes at every call: a count must not depend on how many draws are refused."""

        def read(self, count: int) -> bytes:
            return stream(0, "instructions").bytes(count)

    sampler, ledger = discrete_gaussian.sampler(40.0), Ledger.create(folder / "ledger.sqlite", site="benchmark")
    names = iter(range(10**6))

    def charge() -> None:
        for _ in range(10):
            ledger_speed.charge(ledger, f"question {next(names):06d}")

    return {
        "tally": lambda: ballots.neighbours(voters, features, own, theirs, nearest=8, bounds=bounds),
        "sampler": lambda: sampler.draw(20_000, Fixed()),
        "ledger": charge,
    }


def perform() -> None:
    """Do each piece once, then with marks around it; then each twice in one count, as a slow twin would."""
    with tempfile.TemporaryDirectory() as folder:
        pieces = work(Path(folder))
        for name in NAMES:
            pieces[name]()
        os.getppid()
        for times in (1, 2):
            for name in NAMES:
                for _ in range(times):
                    pieces[name]()
                os.getppid()


def count() -> tuple[dict[str, int], dict[str, int]]:
    """Return the instructions of each piece, and of its slow twin, which does the work twice."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "count"
        command = ["valgrind", "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
        command += [sys.executable, __file__, "--perform"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - ours
        if done.returncode:
            raise RuntimeError(f"valgrind ended with {done.returncode}: {done.stderr[-2000:]}")
        dumps = [out.with_name(f"count.{part}") for part in range(2, 2 + 2 * len(NAMES))]  # part 1: before the marks
        counted = [int(re.findall(r"^summary: (\d+)", dump.read_text(), re.MULTILINE)[0]) for dump in dumps]
    return dict(zip(NAMES, counted[:3], strict=True)), dict(zip(NAMES, counted[3:], strict=True))


def grown(counts: Mapping[str, int], baseline: Mapping[str, Any]) -> list[str]:
    """Return one line for each piece that takes more instructions than the baseline and its tolerance allow."""
    most = 1 + baseline["tolerance"]
    return [
        f"{name}: {counts[name]:,} instructions found, {expected:,} expected ({counts[name] / expected:.3f} ×, at most "
        f"{most:g} ×). Find what became slower, or say why and run benchmarks/instructions.py --write"
        for name, expected in baseline["counts"].items()
        if counts[name] > most * expected
    ]


def main() -> None:
    """Count, and compare or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--perform", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.perform:
        perform()
        return
    if not options.write and (reason := obstacle()):
        print(f"not comparable: {reason}")
        return
    counts, _ = count()
    if options.write:
        baseline = {"settings": settings(), "tolerance": TOLERANCE, "counts": counts}
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n", encoding="utf-8")
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    for name, expected in baseline["counts"].items():
        print(f"{name:8} {counts[name]:>12,} instructions, {counts[name] / expected:.4f} × the baseline")
    worse = grown(counts, baseline)
    print("\n".join(worse), file=sys.stderr)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
