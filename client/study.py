"""Measuring a plan against what else its sites could do, on public data with real held-out records.

Held-out records take no part in any synthesis. Testing students on them is outside the guarantee, which is why this is
done on public data only: a deployment asks the charged question ``score`` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.client.policy import FILE, draft
from patevolve.client.simulate import Finished, Site, open_sites, simulate
from patevolve.client.variants import ALONE, PRIVATE_EVOLUTION, PUBLIC_ONLY, selections
from patevolve.shared.data.records import Records
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.protocols import Encoder
from patevolve.shared.randomness import stream
from patevolve.shared.runfolder import open_run
from patevolve.shared.students.evaluate import evaluate
from patevolve.shared.tools import tools_of

RESERVE = 2.0  # a demonstration's sites allow twice the plan's ε: room for a crash between a charge and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """Which students judge a release, by which metric, and what chance reaches."""

    students: tuple[str, ...]
    metric: str
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Private records by site, and the held-out records of all sites together."""

    train: Mapping[str, Records]
    test: Records


def split(records: Mapping[str, Records], seed: int, fraction: float) -> Split:
    """Hold out a fraction of each site's units; public data, so a public stream decides."""
    train, test = {}, []
    for site in sorted(records):
        own = records[site]
        units = np.unique(own.units)
        away = stream(seed, "hold out", site).permutation(units)[: round(fraction * len(units))]
        apart = np.isin(own.units, away)
        train[site] = own.pick(~apart)
        test.append(own.pick(apart))
    return Split(train=train, test=join(test))


def join(parts: list[Records]) -> Records:
    """Return the records of all parts, in order."""
    return Records(
        values=np.concatenate([part.values for part in parts]),
        classes=np.concatenate([part.classes for part in parts]),
        units=np.concatenate([part.units for part in parts]),
    )


def found_sites(folder: Path, train: Mapping[str, Records], agreed: Agreed) -> dict[str, Site]:
    """Return sites with fresh folders whose drafted policy permits this plan: what a demonstration may do."""
    homes = {}
    for position, site in enumerate(sorted(train)):
        homes[site] = folder / f"{position + 1}-{''.join(c if c.isalnum() else '-' for c in site).lower()[:40]}"
        if not (homes[site] / FILE).exists():
            write_atomic(homes[site] / FILE, draft(site, agreed, reserve=RESERVE).encode())
    return open_sites(homes, train, agreed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Made:
    """One run of a plan with its sites and its release."""

    agreed: Agreed
    finished: Finished
    sites: Mapping[str, Site]


def make(agreed: Agreed, train: Mapping[str, Records], folder: Path, watch: Any = lambda _: None) -> Made:
    """Run a plan over these sites into a folder, up to its release."""
    open_run(folder, agreed)
    sites = found_sites(folder / "sites", train, agreed)
    finished = simulate(agreed, sites, folder, watch=watch)
    return Made(agreed=agreed, finished=finished, sites=sites)


Scores = dict[str, dict[str, float]]  # method -> student -> metric


def judge(
    features: NDArray[np.float64], classes: NDArray[np.int64], test: Records, encoder: Encoder, judges: Judges
) -> dict[str, float]:
    """Return each student's metric on the held-out records after training on the given samples."""
    held_out = (encoder.encode(test.values), test.classes)
    return {
        student: evaluate((features, classes), held_out, student=student, metric=judges.metric)
        for student in judges.students
    }


def judge_made(made: Made, test: Records, judges: Judges) -> dict[str, float]:
    """Return each student's metric after training on a release."""
    released = made.finished.released
    return judge(released.features, released.samples.classes, test, made.finished.tools.encoder, judges)


OURS, PUBLIC, ONE, HISTOGRAM, REAL = "patevolve", "public", "alone", "private evolution", "real"


def baselines(agreed: Agreed, parts: Split, folder: Path, judges: Judges, evolution: Mapping[str, Any]) -> Scores:
    """Return the metrics of everything that stands beside the plan: public only, each site alone, published, real."""
    encoder = tools_of(agreed.plan).encoder
    public = make(vary(agreed, PUBLIC_ONLY), parts.train, folder / "public-only")
    published = make(vary(agreed, {**PRIVATE_EVOLUTION, **evolution}), parts.train, folder / "private-evolution")
    alone = [
        judge_made(make(vary(agreed, ALONE), {site: own}, folder / f"alone-{position}"), parts.test, judges)
        for position, (site, own) in enumerate(parts.train.items(), 1)
    ]
    real = join(list(parts.train.values()))
    return {
        PUBLIC: judge_made(public, parts.test, judges),
        ONE: {student: float(np.mean([one[student] for one in alone])) for student in judges.students},
        HISTOGRAM: judge_made(published, parts.test, judges),
        REAL: judge(encoder.encode(real.values), real.classes, parts.test, encoder, judges),
    }


def side_by_side(agreed: Agreed, parts: Split, folder: Path, judges: Judges) -> Scores:
    """Return the metrics of every other selection within the plan's ε, by name; each has ledgers of its own."""
    return {
        name: judge_made(make(vary(agreed, changes), parts.train, folder / name), parts.test, judges)
        for name, changes in selections(len(agreed.plan.data.classes)).items()
    }


def seeded(agreed: Agreed, seed: int) -> Agreed:
    """Return the plan with another public seed."""
    return agreed if agreed.plan.seed == seed else vary(agreed, {"seed": seed})
