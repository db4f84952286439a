"""The performance table: run every measurement, write one JSON, render docs/performance.md from it.

    make bench            or        OMP_NUM_THREADS=1 python benchmarks/bench.py [--only tally wire] [--render]

``--only`` replaces some measurements in the JSON and keeps the others; ``--render`` measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import bench_view

HERE = Path(__file__).parent
RESULT = HERE / "performance.json"
PAGE = HERE.parent / "docs" / "performance.md"
MEASUREMENTS = ("tally", "generation", "noise", "accounting", "pate", "wire", "sites", "edge", "networks")
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


def measure(name: str) -> dict[str, Any]:
    """Return one measurement's rows; the reason instead if it failed."""
    started, command = time.monotonic(), [sys.executable, str(HERE / "bench_rows.py"), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    took = time.monotonic() - started
    print(f"{name}: {'measured' if done.returncode == 0 else 'FAILED'} in {took:.0f} s", flush=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        lines = done.stderr.strip().splitlines()
        return {"rows": [], "failed": lines[-1] if lines else f"exit {done.returncode}"}
    return {"rows": json.loads(done.stdout), "seconds": took, "load": os.getloadavg()[0]}


def main() -> None:
    """Measure, write and render. Exit 1 if a measurement failed (a missed goal is no failure)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=MEASUREMENTS)
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {"measurements": {}}
    if not options.render:
        start = machine()
        if set(options.only) != set(MEASUREMENTS) and before.get("machine", {}).get("cpu") == start["cpu"]:
            start = before["machine"]  # the head is of the whole table; each measurement has a load of its own
        found = before["measurements"] | {name: measure(name) for name in options.only}
        result = {"format": 1, "machine": start, "versions": versions(), "measurements": found}
        RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(bench_view.page(result), encoding="utf-8")
    failed = [name for name, one in result["measurements"].items() if "failed" in one]
    print(f"{RESULT} and {PAGE} written" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
