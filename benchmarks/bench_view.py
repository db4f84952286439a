"""Render the JSON of ``make bench`` as docs/performance.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

TITLES = {
    1: "Vote tally",
    2: "A generation",
    3: "Noise",
    4: "Accounting",
    5: "Wire",
    6: "Sites",
    7: "Edge",
    8: "End to end",
}
UNMEASURED = (
    "CUDA: no such device was at hand",
    "10⁵ devices: docs/scale.md has a design with measured constants",
)
GUARD = """## Instruction counts

`benchmarks/instructions.py` counts the processor instructions of a small tally, of a noise sampler and of ledger
charges with callgrind, whatever else the machine does: two counts differ by less than a thousandth. Tests hold them to
`benchmarks/instructions.json` within 5 % where valgrind and the versions named there are installed, and shows that each
piece done twice exceeds it. The matrix product is counted with OpenBLAS's kernels for AVX2; waiting for a disk is not
counted at all.
"""
HEAD = """# Performance

`make bench` measures this table and writes it: `benchmarks/performance.json` holds every repeat, this page is rendered
from it. A ratio's two sides are timed in turn in one process, and the ratio is taken in each repeat, so a busy machine
slows both. A run measures the table in rounds: in each round each measurement makes a few repeats, in a process of its
own. The repeats of all rounds count together, so a range holds what the machine did during the whole run, not within
some seconds of it; only bytes, and what takes many minutes, are measured in one. Seconds and MiB are what this machine
showed; they stand here only where a goal is given in them. *Range* is the least and the greatest of the repeats; a goal
is *reached* when the middle one keeps it, *in part* when the middle one keeps it and some repeat does not.

Where a run of yours spends its time: `patevolve demo`, `local` and `simulate` write a flame graph with
`--flamegraph FILE` (`pip install 'patevolve[profile]'`), JSON for speedscope.app and other viewers of that format. It
names functions and times of one process, no values; since times depend on private records it is a site's own, like its
ledger.
"""


def page(result: Mapping[str, Any]) -> str:
    """Return the page."""
    machine, versions = result["machine"], result["versions"]
    words = ", ".join(f"{name} {version}" for name, version in versions.items())
    setting = (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['system']}; threads of the linear algebra: "
        f"{machine['threads']}; load when it began {machine['load']:.1f}; rounds: {machine['rounds']}. {words}."
    )
    rows = [row for one in result["measurements"].values() for row in one["rows"]]
    parts = [HEAD, setting + "\n"]
    for number, title in TITLES.items():
        parts.append(section(number, title, [row for row in rows if row["row"] == number]))
    if "runs" in result:
        parts.append(runs(result["runs"]))
    parts.append(GUARD)
    failed = [f"{name}: {one['failed']}" for name, one in result["measurements"].items() if "failed" in one]
    parts.append("## Not measured\n\n" + "".join(f"- {what}\n" for what in (*failed, *UNMEASURED)))
    return "\n".join(parts)


def runs(found: Sequence[Mapping[str, Any]]) -> str:
    """Return how whole runs compare: each one's middle, and whether it lies within the range of every other."""
    head = "| what | " + " | ".join(f"run {number + 1}" for number in range(len(found))) + " | |"
    lines, agreed = [head, "|---" * (len(found) + 2) + "|"], 0
    names = [what for what in found[0]["rows"] if all(what in run["rows"] for run in found)]
    for what in names:
        spreads = [run["rows"][what] for run in found]
        agree = all(within(one[1], other) for one in spreads for other in spreads)
        agreed += agree
        cells = " | ".join(f"{figure(middle)} ({figure(low)} to {figure(high)})" for low, middle, high in spreads)
        lines.append(f"| {what} | {cells} | {'agree' if agree else 'differ'} |")
    loads = ", ".join(f"{min(run['load']):.1f} to {max(run['load']):.1f}" for run in found)
    words = (
        f"The whole table measured {len(found)} times, middle and range of each; runs *agree* where each middle, as "
        f"shown, lies within the range of every other: {agreed} of {len(names)} rows. Load when "
        f"each measurement ended: {loads}.\n\n"
    )
    return "## Repeated runs\n\n" + words + "\n".join(lines) + "\n"


def within(middle: float, spread: Sequence[float]) -> bool:
    """Return whether a middle lies within a range, both as the page shows them."""
    shown, low, _, high = (float(figure(value).replace(",", "")) for value in (middle, *spread))
    return low <= shown <= high


def section(number: int, title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one part of the table; without rows it says so."""
    head = f"## {number}. {title}\n\n"
    if not rows:
        return head + "Not measured.\n"
    lines = ["| what | middle | range | repeats | goal | |", "|---|---|---|---|---|---|"]
    lines += [line(row) for row in rows]
    said = [note(row) for row in rows if row.get("note")]
    notes = list(dict.fromkeys(f"{one[0].upper()}{one[1:]}." for one in said))
    ideas = list(
        dict.fromkeys(row["next"] for row in rows if row.get("next") and verdict(row) in ("missed", "in part"))
    )
    words = " ".join([*notes, *(f"Next idea: {idea}." for idea in ideas)])
    return head + "\n".join(lines) + "\n" + (f"\n{words}\n" if words else "")


def note(row: Mapping[str, Any]) -> str:
    """Return a row's note, with the middles of the figures that it names."""
    if "figures" not in row:
        return str(row["note"])
    return str(row["note"]).format(**{name: statistics.median(values) for name, values in row["figures"].items()})


def line(row: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    values, unit = row["values"], row["unit"]
    goal = f"≤ {row['most']:g} {unit}" if "most" in row else f"≥ {row['least']:g} {unit}" if "least" in row else ""
    middle = statistics.median(values)
    spread = f"{figure(min(values))} to {figure(max(values))}"
    return f"| {row['what']} | {figure(middle)} {unit} | {spread} | {len(values)} | {goal} | {verdict(row)} |"


def verdict(row: Mapping[str, Any]) -> str:
    """Return whether the goal is reached: by the middle repeat, and by all of them."""
    if "most" in row:
        kept = [value <= row["most"] for value in (statistics.median(row["values"]), max(row["values"]))]
    elif "least" in row:
        kept = [value >= row["least"] for value in (statistics.median(row["values"]), min(row["values"]))]
    else:
        return ""
    return "reached" if all(kept) else "in part" if kept[0] else "missed"


def figure(value: float) -> str:
    """Return three significant figures, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}" if abs(value) >= 0.01 else f"{value:.2g}"
