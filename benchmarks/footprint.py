"""Wall time and peak memory of a command and its children, to hold against what the README says.

    python benchmarks/footprint.py patevolve demo heart

Memory is the resident size summed over the process tree, sampled twenty times a second (shared pages count in each
process). Figures depend on the machine and its load: run it on an idle one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants that are alive."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        found += [descendant for child in children for descendant in tree(int(child))]
    return found


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB; 0 once it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Run the command given as arguments and print one line."""
    started, peak, largest = time.monotonic(), 0.0, 0.0
    child = subprocess.Popen(sys.argv[1:])  # noqa: S603 - the user names the command
    while child.poll() is None:
        sizes = [resident(pid) for pid in tree(child.pid)]
        peak, largest = max(peak, sum(sizes)), max(largest, *sizes, 0.0)
        time.sleep(0.05)
    wall = time.monotonic() - started
    print(f"exit {child.returncode}, {wall:.1f} s, peak {peak:.0f} MiB in all processes, {largest:.0f} MiB in one")
    sys.exit(child.returncode)


if __name__ == "__main__":
    main()
