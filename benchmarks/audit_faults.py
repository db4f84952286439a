"""How often the audit finds planted faults, and how often it cries wolf, on the heart demonstration's plan.

    OMP_NUM_THREADS=1 python benchmarks/audit_faults.py --repeats 50

Needs the demo extra. Writes nothing but its table; scratch runs go to the system's temporary folder.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from patevolve.client import study
from patevolve.client.audit import ALARM, Subject, audit, raw_of
from patevolve.client.audit_deeper import one_run_audit
from patevolve.client.audit_pipeline import two_world_runs
from patevolve.client.demo import FOLDER, data_of, plan_of
from patevolve.client.simulate import simulate
from patevolve.shared.audit.one_run import OneRun
from patevolve.shared.data.records import Records
from patevolve.shared.noise.discrete_gaussian import GaussianSampler
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.runfolder import open_run

SHORT = {"evolution.population": 600, "evolution.generations": 10, "release.samples": 600}


class Scaled(SystemNoise):
    """Noise that is drawn and multiplied by a factor: the planted fault."""

    def __init__(self, factor: float) -> None:
        """Keep the factor."""
        self.factor = factor


def break_sampler() -> None:
    """Make the sampler obey ``Scaled`` sources."""
    honest = GaussianSampler.draw

    def draw(self: GaussianSampler, size: int, source: Any) -> Any:
        drawn = honest(self, size, source)
        return (drawn * source.factor).astype(drawn.dtype) if isinstance(source, Scaled) else drawn

    GaussianSampler.draw = draw  # type: ignore[method-assign]


@contextmanager
def ran(seed: int, factors: Mapping[str, float], change: Callable[[dict[str, Records]], None]) -> Iterator[Subject]:
    """Run the heart plan with some sites' noise scaled and the records changed; yield what is audited."""
    agreed = vary(plan_of("heart", 1.0, seed), SHORT)
    parts = data_of("heart", agreed.plan, seed)
    members = dict(parts.train)
    change(members)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        open_run(path, agreed)
        sites = study.found_sites(path / "sites", members, agreed)
        simulate(agreed, sites, path, noise=lambda site, _: Scaled(factors.get(site, 1.0)))
        with resources.as_file(FOLDER / "heart.csv") as file:
            raw = raw_of(file, agreed.plan, members)
        homes = {name: site.home for name, site in sites.items()}
        yield Subject(path=path, agreed=agreed, homes=homes, members=members, others=parts.test, raw=raw)


def copied(members: dict[str, Records]) -> None:
    """Put the first record of the first site there 19 times more, under other names."""
    site, own = next(iter(members.items()))
    members[site] = Records(
        values=np.concatenate([own.values, np.repeat(own.values[:1], 19, axis=0)]),
        classes=np.concatenate([own.classes, np.repeat(own.classes[:1], 19)]),
        units=np.concatenate([own.units, np.array([f"copy {number}" for number in range(19)])]),
    )


def leaked(subject: Subject) -> None:
    """Put three private rows into the release."""
    path = subject.path / "release" / "data.csv"
    with path.open(newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines)
    for place in range(3):
        rows[place] = [cell.removesuffix(".0") for cell in subject.raw[place]]
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out, lineterminator="\n").writerows([header, *rows])


def nothing(_: object) -> None:
    """Change nothing."""


SITES = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
CASES: Mapping[str, tuple[Mapping[str, float], Callable[[Any], None], Callable[[Subject], None]]] = {
    "honest run": ({}, nothing, nothing),
    "noise off": (dict.fromkeys(SITES, 0.0), nothing, nothing),
    "half noise": (dict.fromkeys(SITES, 0.5), nothing, nothing),
    "nine tenths of the noise": (dict.fromkeys(SITES, 0.9), nothing, nothing),
    "one site votes raw counts": ({"Switzerland": 0.0}, nothing, nothing),
    "a record copied 20 times": ({}, copied, nothing),
    "three private rows released": ({}, nothing, leaked),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--worlds", type=int, default=20, help="two-world audits of the honest pipeline")
    parser.add_argument("--trials", type=int, default=40, help="runs per world of each")
    given = parser.parse_args()
    break_sampler()
    print(f"{'case':<34}{'alarms':>10}{'seconds each':>14}")
    for name, (factors, change, after) in CASES.items():
        times, started = 0, time.process_time()
        for repeat in tqdm(range(given.repeats), desc=name, leave=False):
            with ran(repeat + 1, factors, change) as subject:
                after(subject)
                times += bool(audit(subject, trials=0).open_at_site()["alarms"])
        print(f"{name:<34}{times:>5} of {given.repeats:<4}{(time.process_time() - started) / given.repeats:>10.2f}")
    agreed = vary(plan_of("heart", 1.0, 1), SHORT)
    below, most = 0, 0.0
    for _ in tqdm(range(given.worlds), desc="two worlds", leave=False):
        found = two_world_runs(agreed, trials=given.trials, confidence=0.95)
        low = max(found.lower, found.lower_gaussian)
        below, most = below + (low <= found.ledger), max(most, low)
    print(f"honest two worlds: bound <= ledger in {below} of {given.worlds}; largest bound {most:.3f} of 1 (95 %)")
    for name, factor in (("honest", 1.0), ("noise off", 0.0), ("half noise", 0.5)):
        found = [one_run(agreed, factor) for _ in tqdm(range(given.worlds), desc="one run", leave=False)]
        alarms, right = sum(one.alarm for one in found), [one.right for one in found]
        print(f"one run, {name}: alarms {alarms} of {given.worlds}, right {min(right)} to {max(right)} of "
              f"{found[0].guesses}; reach {found[0].reach:.2f}")  # fmt: skip


def one_run(agreed: Agreed, factor: float) -> OneRun:
    """Return a one-run audit at the audit's own confidence, with the noise scaled."""
    return one_run_audit(agreed, confidence=1 - ALARM, noise=lambda *_: Scaled(factor))


if __name__ == "__main__":
    main()
