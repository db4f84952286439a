"""How fast a site's ledger charges durably, beside bare appends of the same size, each followed by fsync.

    python benchmarks/ledger_speed.py [folder]      (the folder's disk is what is measured; default: a temporary one)

Each repeat times charges and bare appends one after the other, so that both meet the same load. The second table
shows that a report on 100,000 charges costs one step per distinct event.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from patevolve.shared.privacy.events import DiscreteGaussian
from patevolve.shared.privacy.ledger import AnswerKey, Cap, Ledger, verify

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 7
CHARGES = 200  # per repeat
LARGE = 100_000
CAP = Cap(epsilon=8.0, delta=1e-6)


def charge(ledger: Ledger, name: str, *, sigma: float = 4e5) -> None:
    """Charge one small question."""
    key = AnswerKey(plan_sha256="a" * 64, run="r1", question=name, question_sha256="b" * 64, cohort_sha256="c" * 64)
    ledger.charge(key, part="neighbours", event=DiscreteGaussian(sigma=sigma, l2=8.0), cap=CAP)


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def append(path: Path, size: int) -> None:
    """Append ``size`` bytes CHARGES times, syncing after each."""
    data = os.urandom(size)
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(CHARGES):
            os.write(handle, data)
            os.fsync(handle)
    finally:
        os.close(handle)


def spread(values: list[float]) -> str:
    """Return min, median and max of some figures."""
    return f"{min(values):10.3g} {statistics.median(values):10.3g} {max(values):10.3g}"


def side_by_side(folder: Path, repeats: int = REPEATS) -> tuple[int, list[float], list[float]]:
    """Return the bytes of a charge, charges per second and bare synced appends per second, repeat by repeat."""
    path = folder / "ledger.sqlite"
    charges, bare = [], []
    with Ledger.create(path, site="benchmark") as ledger:
        log = path.with_name(path.name + "-wal")
        charge(ledger, "first")
        before = log.stat().st_size
        for number in range(50):
            charge(ledger, f"size{number}")
        size = (log.stat().st_size - before) // 50
        for repeat in range(repeats):
            work = [f"{repeat}/{number}" for number in range(CHARGES)]
            charges.append(CHARGES / seconds(lambda work=work: [charge(ledger, name) for name in work]))
            bare.append(CHARGES / seconds(lambda: append(folder / "bare", size)))
    return size, charges, bare


def durable(folder: Path) -> None:
    """Print charges per second, bare synced appends per second, and their ratio."""
    size, charges, bare = side_by_side(folder)
    ratios = [one / other for one, other in zip(charges, bare, strict=True)]
    print(f"{REPEATS} repeats of {CHARGES}; a charge writes {size} bytes to the log")
    print(f"{'':34}{'min':>10} {'median':>10} {'max':>10}")
    print(f"{'durable charges per second':34}{spread(charges)}")
    print(f"{'bare append + fsync per second':34}{spread(bare)}")
    print(f"{'ratio':34}{spread(ratios)}")


def large(folder: Path, distinct: int) -> None:
    """Print how long reports and checks on a large ledger take."""
    path = folder / f"large{distinct}.sqlite"
    with Ledger.create(path, site="benchmark") as ledger:
        # Filling it is not what is measured: no syncs here.
        ledger._chain._connection.execute("PRAGMA synchronous=OFF")  # noqa: SLF001 - benchmark only
        filling = seconds(lambda: [charge(ledger, f"q{n}", sigma=4e5 + n % distinct) for n in range(LARGE)])
        spent = [seconds(lambda: ledger.spent(CAP.delta)) for _ in range(REPEATS)]
        next_one = [seconds(lambda n=n: charge(ledger, f"last{n}")) for n in range(REPEATS)]
    print(f"\n{LARGE} charges of {distinct} distinct events ({path.stat().st_size / 1e6:.0f} MB, no syncs)")
    print(f"{'':34}{'min':>10} {'median':>10} {'max':>10}")
    print(f"{'spent(), seconds':34}{spread(spent)}")
    print(f"{'one more charge, seconds':34}{spread(next_one)}")
    print(f"{'filling, charges per second':34}{LARGE / filling:10.3g}")
    print(f"{'open (verifies rows), seconds':34}{seconds(lambda: Ledger.open(path).close()):10.3g}")
    print(f"{'verify, seconds':34}{seconds(lambda: verify(path)):10.3g}")


def main() -> None:
    """Run both tables in the folder named on the command line."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        durable(Path(folder))
        for distinct in (1, 10, 100):
            large(Path(folder), distinct)


if __name__ == "__main__":
    main()
