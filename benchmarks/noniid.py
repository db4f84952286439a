"""Sites that differ: missing classes, label shift, unequal sizes, feature shift. Is any class lost, and what is?

    python benchmarks/noniid.py --data heart --seeds 3
    python benchmarks/noniid.py --data digits --seeds 3

The training records of all sites are pooled and dealt anew by each scenario; the held-out records stay as they are. The
plan is the demonstration's own with its question of candidates left out. Figures: mean ± sd over seeds of the student's
metric on real held-out records with all sites together and for each site alone (mean over sites), the lowest recall of
a class, and the smallest ratio of a class's share in the release to its share in the sites' records together.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ablations import recalls  # this folder's
from numpy.typing import NDArray

from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.variants import ALONE
from patevolve.shared.data.records import Records
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import stream

SITES = 5
Deal = Callable[[Records, np.random.Generator], NDArray[np.int64]]  # the site of each record
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "heart": {"questions.counts.share": 0.05, "questions.prototypes.share": 0.95},
    "digits": {
        "questions.counts.share": 0.05,
        "questions.prototypes.share": 0.95,
        "questions.neighbours": None,
        "evolution.generations": 4,
        "evolution.population": 1000,
        "release.samples": 1000,
    },
}


def evenly(records: Records, rng: np.random.Generator) -> NDArray[np.int64]:
    """Deal every record to a random site."""
    return rng.integers(0, SITES, len(records))


def missing(records: Records, rng: np.random.Generator) -> NDArray[np.int64]:
    """Each class lives at two sites alone (of two classes: at two and at three)."""
    homes = (records.classes + np.where(rng.random(len(records)) < 0.5, 0, 2)) % SITES
    return np.asarray(homes, np.int64)


def dirichlet(alpha: float) -> Deal:
    """Each class is spread over the sites by Dirichlet shares: the smaller ``alpha``, the more uneven."""

    def deal(records: Records, rng: np.random.Generator) -> NDArray[np.int64]:
        found = np.zeros(len(records), np.int64)
        for cls in np.unique(records.classes):
            own = np.flatnonzero(records.classes == cls)
            found[own] = rng.choice(SITES, size=len(own), p=rng.dirichlet(np.full(SITES, alpha)))
        return found

    return deal


def unequal(records: Records, rng: np.random.Generator) -> NDArray[np.int64]:
    """One site is ten times as large as each of the others."""
    return rng.choice(SITES, size=len(records), p=np.array([10, 1, 1, 1, 1]) / 14)


def by_feature(records: Records, rng: np.random.Generator) -> NDArray[np.int64]:
    """Sites hold different kinds of records: sorted by the first column, or by an image's amount of ink."""
    key = records.values.reshape(len(records), -1).astype(float)
    ink = key.mean(axis=1) if records.values.ndim == 3 else key[:, 0]
    order = np.argsort(np.argsort(ink + 1e-6 * rng.random(len(ink))))
    return np.asarray(order * SITES // len(records), np.int64)


SCENARIOS: Mapping[str, Deal] = {
    "evenly dealt": evenly,
    "each class at two or three sites": missing,
    "label shift, Dirichlet 0.5": dirichlet(0.5),
    "label shift, Dirichlet 0.1": dirichlet(0.1),
    "one site ten times larger": unequal,
    "feature shift": by_feature,
}
RARE = "one class of 5 %, at one site"


def rare(records: Records, rng: np.random.Generator) -> tuple[Records, NDArray[np.int64]]:
    """Keep 5 % of the records' number of the last class, all at the last site."""
    last = int(records.classes.max())
    own = rng.permutation(np.flatnonzero(records.classes == last))
    others = np.flatnonzero(records.classes != last)
    kept = records.pick(np.concatenate([others, own[: max(1, round(len(others) * 0.05 / 0.95))]]))
    return kept, np.where(kept.classes == last, SITES - 1, rng.integers(0, SITES, len(kept)))


def sites_of(records: Records, places: NDArray[np.int64]) -> dict[str, Records]:
    """Return the records by site; a site that got none takes one record of the largest, so that it can take part."""
    places = places.copy()
    for site in range(SITES):
        if not np.any(places == site):
            places[np.flatnonzero(places == np.bincount(places).argmax())[0]] = site
    return {f"site {site}": records.pick(places == site) for site in range(SITES)}


def one(name: str, scenario: str, seed: int, folder: Path) -> dict[str, float]:
    """Return the figures of one scenario and seed."""
    demonstration = DEMONSTRATIONS[name]
    agreed = vary(plan_of(name, demonstration.epsilon, seed), {**CHANGES[name], "sites.count": SITES})
    parts = data_of(name, agreed.plan, seed)
    whole, rng = study.join(list(parts.train.values())), stream(seed, "scenario", scenario)
    kept, places = rare(whole, rng) if scenario == RARE else (whole, SCENARIOS.get(scenario, evenly)(whole, rng))
    train = sites_of(kept, places)
    student = demonstration.judges.students[0]
    made = study.make(agreed, train, folder / "together")
    alone = [
        study.judge_made(study.make(vary(agreed, ALONE), {site: own}, folder / site), parts.test, demonstration.judges)
        for site, own in train.items()
    ]
    classes = len(agreed.plan.data.classes)
    truth = np.bincount(kept.classes, minlength=classes) / len(kept)
    given = np.bincount(made.finished.released.samples.classes, minlength=classes)
    return {
        "together": study.judge_made(made, parts.test, demonstration.judges)[student],
        "alone": float(np.nanmean([row[student] for row in alone])),
        "recall": min(recalls(made, parts.test, student)),
        "coverage": float(np.min(given / given.sum() / truth)),
    }


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(DEMONSTRATIONS), default="heart")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    judges = DEMONSTRATIONS[options.data].judges
    print(f"{options.data}, {SITES} sites, ε = {DEMONSTRATIONS[options.data].epsilon:g}, {options.seeds} seeds\n")
    print(
        f"| scenario | {judges.metric}, together | each site alone | lowest recall of a class | smallest share kept |"
    )
    print("|---|---|---|---|---|")
    for scenario in (*SCENARIOS, RARE):
        found = []
        for seed in range(1, options.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                found.append(one(options.data, scenario, seed, Path(folder)))
        cells = [_cell([row[key] for row in found]) for key in ("together", "alone", "recall", "coverage")]
        print(f"| {scenario} | " + " | ".join(cells) + " |", flush=True)


def _cell(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.3f}"


if __name__ == "__main__":
    main()
