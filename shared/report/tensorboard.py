"""A run's generations for TensorBoard: how its public measures and score distributions move.

Everything comes from the run folder of the coordinator: the report and the noisy sums, both released.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import wire
from patevolve.shared.errors import InputError

BINS = 30
ROUND = re.compile(r"(neighbours|choices|confidence)-(\d+)\.pv")


def binned(values: NDArray[np.float64]) -> dict[str, Any] | None:
    """Return a histogram of the finite values as JSON, with the sums that TensorBoard wants; None without any."""
    found = values[np.isfinite(values)]
    if not len(found):
        return None
    counts, edges = np.histogram(found, BINS)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "sum": float(found.sum()),
        "sum_squares": float(found @ found),
    }


def write(report: Mapping[str, Any], run: Path, folder: Path) -> int:
    """Write one event file into ``folder`` and return the number of generations in it.

    report: what stands in the run's report.json. Raises InputError without tensorboardX, or for a report without
    generations.
    """
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 - an extra: only this export needs it
    except ImportError as reason:
        raise InputError("this export needs tensorboardX; install it: pip install 'patevolve[tensorboard]'") from reason
    generations = report.get("generations")
    if not isinstance(generations, list) or not generations:
        raise InputError("a report without generations found; expected that of a finished run.")
    writer = SummaryWriter(str(folder))
    for row in generations:
        for name in ("spread", "match"):
            if isinstance(row.get(name), float):
                writer.add_scalar(f"generation/{name}", row[name], row["generation"])
        _histogram(writer, "scores/margin", row.get("scores"), row["generation"])
    for kind, number, values in _answers(run):
        _histogram(writer, f"answers/{kind}", binned(values), number)
    writer.close()
    return len(generations)


def _histogram(writer: Any, name: str, found: Mapping[str, Any] | None, step: int) -> None:
    if not found:
        return
    writer.add_histogram_raw(
        name,
        min=found["edges"][0],
        max=found["edges"][-1],
        num=sum(found["counts"]),
        sum=found["sum"],
        sum_squares=found["sum_squares"],
        bucket_limits=found["edges"][1:],
        bucket_counts=found["counts"],
        global_step=step,
    )


def _answers(run: Path) -> Iterator[tuple[str, int, NDArray[np.float64]]]:
    """Yield (kind, round, noisy values) of every round that the sites answered, lattice units."""
    for path in sorted((run / "tallies").glob("*.pv")):
        named = ROUND.fullmatch(path.name)
        if named:
            yield named[1], int(named[2]), wire.decode(path.read_bytes(), kind="tally").arrays["values"].astype(float)
