"""The story that the PATE page tells: a made-up data set, its shards, teachers, noisy labels and students.

Everything is measured here, with the samplers and the sharding that a run uses. Nobody's data are involved.
"""

from __future__ import annotations

import functools
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.data import shard
from patevolve.shared.files import write_atomic
from patevolve.shared.noise import discrete_gaussian, discrete_laplace
from patevolve.shared.noise.distributed import share_sigma
from patevolve.shared.noise.noisy_max import ABSTAINED, ConfidentGNMax, GNMax, LNMax
from patevolve.shared.randomness import NoiseSource, SystemNoise, stream
from patevolve.shared.report.explain import costs, page
from patevolve.shared.report.page import EXPLAIN
from patevolve.shared.tally import ExactTally

Points = NDArray[np.float64]  # (n, 2)
Labels = NDArray[np.int64]

PRIVATE, PUBLIC, JUDGE = 2500, 400, 1000
SAMPLES = 12  # public points that the reader can pick
LEAVERS = (40, 1250, 2460)  # rows that the reader can take away: early, middle and late in the file
DRAWS = 16
STUDENT_QUERIES = tuple(q for q in costs.QUERIES if q <= PUBLIC)
SPREAD = 0.62
REPEATS = 3  # draws of noise over which a student's accuracy is averaged
_SECRET = hashlib.sha256(b"a demonstration's secret; a site draws its own").digest()


def explained() -> str:
    """Return the page with freshly drawn noise. Takes a few seconds."""
    return page.render(tables(SystemNoise()))


def beside(folder: Path) -> None:
    """Write the page into a report's folder, where the report links to it, unless it is there already."""
    if not (folder / EXPLAIN).exists():
        write_atomic(folder / EXPLAIN, _once().encode())


@functools.lru_cache(maxsize=1)
def _once() -> str:
    return explained()


def tables(source: NoiseSource) -> dict[str, Any]:
    """Return everything that the page shows, JSON-able; ``source`` draws the noise."""
    worlds = {classes: _world(classes) for classes in costs.CLASSES}
    votes = {
        (classes, teachers): _histograms(_votes(worlds[classes], teachers), classes)
        for classes in costs.CLASSES
        for teachers in costs.TEACHERS
    }
    shown = {key: counts[worlds[key[0]]["samples"]] for key, counts in votes.items()}
    return {
        **costs.figures(shown, share_sigma),
        "studentQueries": STUDENT_QUERIES,
        "leavers": LEAVERS,
        "shards": [keyed(teachers).tolist() for teachers in costs.TEACHERS],
        "leaving": [[_leave(teachers, row) for row in LEAVERS] for teachers in costs.TEACHERS],
        "worlds": [_drawn(worlds[classes]) for classes in costs.CLASSES],
        "draws": _draws(source),
        "students": _students(worlds, votes, source),
    }


def _world(classes: int) -> dict[str, Any]:
    """Return a made-up data set: one round cloud of points per class on a circle."""
    random = stream(1, "explain", classes)
    turn = 2 * math.pi * np.arange(classes) / classes + math.pi / 2
    centres = np.stack([np.cos(turn), np.sin(turn)], axis=1) if classes > 2 else np.array([[-0.8, 0.0], [0.8, 0.0]])

    def cloud(size: int) -> tuple[Points, Labels]:
        labels = random.integers(classes, size=size)
        return centres[labels] + SPREAD * random.normal(size=(size, 2)), labels

    world: dict[str, Any] = {"classes": classes}
    world["x"], world["y"] = cloud(PRIVATE)
    world["public"], world["truth"] = cloud(PUBLIC)
    world["judge"] = cloud(JUDGE)
    margins = np.sort(_histograms(_votes(world, 50), classes), axis=1)
    order = np.argsort(margins[:, -1] - margins[:, -2], kind="stable")
    world["samples"] = order[np.linspace(0, PUBLIC - 1, SAMPLES).astype(np.int64)][::-1]
    return world


@functools.cache
def keyed(teachers: int) -> Labels:
    """Return the teacher of every private row by its keyed hash, as a site does it."""
    return shard.teacher_of(_SECRET, np.arange(PRIVATE).astype(str), teachers)


def contiguous(rows: int, teachers: int) -> Labels:
    """Return the teacher of each of ``rows`` rows by slices of the file, the article's way; −1 for rows left over."""
    size = rows // teachers
    place = np.arange(rows) // size
    return np.where(place < teachers, place, -1)


def nearest_means(x: Points, y: Labels, group: Labels, groups: int, classes: int) -> NDArray[np.float64]:
    """Return each group's class means, (groups, classes, 2); infinitely far where a group lacks the class."""
    sums, counts = np.zeros((groups, classes, 2)), np.zeros((groups, classes, 1))
    kept = group >= 0
    np.add.at(sums, (group[kept], y[kept]), x[kept])
    np.add.at(counts, (group[kept], y[kept]), 1.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.inf)


def classify(means: NDArray[np.float64], points: Points) -> Labels:
    """Return the class of the nearest mean, (groups, n)."""
    away = np.square(points[None, :, None, :] - means[:, None, :, :]).sum(axis=3)
    return np.asarray(away.argmin(axis=2), dtype=np.int64)


def _votes(world: dict[str, Any], teachers: int) -> Labels:
    means = nearest_means(world["x"], world["y"], keyed(teachers), teachers, world["classes"])
    return classify(means, world["public"])


def _histograms(votes: Labels, classes: int) -> Labels:
    return np.stack([(votes == cls).sum(axis=0) for cls in range(classes)], axis=1)


def _drawn(world: dict[str, Any]) -> dict[str, Any]:
    """Return what the page draws of one data set: coordinates in hundredths, labels and teachers as digits."""
    samples = world["samples"]
    return {
        "classes": world["classes"],
        "x": np.rint(100 * world["x"]).astype(int).ravel().tolist(),
        "y": _digits(world["y"]),
        "samples": np.rint(100 * world["public"][samples]).astype(int).ravel().tolist(),
        "votes": [[_digits(row) for row in _votes(world, teachers)[:, samples].T] for teachers in costs.TEACHERS],
    }


def _digits(values: Labels) -> str:
    return "".join(map(str, values.tolist()))


def _leave(teachers: int, row: int) -> dict[str, Any]:
    """Return which teachers' training rows change when one row leaves, by keyed and by contiguous shards."""
    ids = np.arange(PRIVATE)
    stay = ids != row
    changed = {
        "keyed": _changed(ids, keyed(teachers), ids[stay], keyed(teachers)[stay], teachers),
        "contiguous": _changed(
            ids, contiguous(PRIVATE, teachers), ids[stay], contiguous(PRIVATE - 1, teachers), teachers
        ),
    }
    return {name: np.flatnonzero(flags).tolist() for name, flags in changed.items()}


def _changed(before: Labels, old: Labels, after: Labels, new: Labels, teachers: int) -> NDArray[np.bool_]:
    return np.array([not np.array_equal(before[old == t], after[new == t]) for t in range(teachers)])


def _draws(source: NoiseSource) -> dict[str, Any]:
    """Return noise that the samplers of a run drew: (stops, draws × classes) and one test draw each."""
    most = max(costs.CLASSES)
    return {
        "gnmax": [discrete_gaussian.sample(s, DRAWS * most, source).tolist() for s in costs.SIGMAS],
        "lnmax": [discrete_laplace.sample(2.0 / g, DRAWS * most, source).tolist() for g in costs.GAMMAS],
        "test": [discrete_gaussian.sample(costs.TEST_NOISE * s, DRAWS, source).tolist() for s in costs.SIGMAS],
        "stride": most,
    }


def _students(worlds: dict[int, Any], votes: Any, source: NoiseSource) -> dict[str, Any]:
    """Return students by aggregator, noise, classes, teachers and labels asked: accuracy, labels right, class means."""
    return {
        name: [
            [[_taught(worlds[c], votes[c, k], name, stop, k, source) for k in costs.TEACHERS] for c in costs.CLASSES]
            for stop in range(len(costs.SIGMAS))
        ]
        for name in ("gnmax", "lnmax", "confident")
    } | {"baseline": [_baselines(worlds[c]) for c in costs.CLASSES]}


def _baselines(world: dict[str, Any]) -> dict[str, Any]:
    """Return what the student is compared with: a model of all private rows, single teachers, and chance."""
    x, y = world["judge"]
    whole = nearest_means(world["x"], world["y"], np.zeros(PRIVATE, dtype=np.int64), 1, world["classes"])
    single = []
    for teachers in costs.TEACHERS:
        means = nearest_means(world["x"], world["y"], keyed(teachers), teachers, world["classes"])
        single.append(round(float((classify(means, x) == y).mean()), 4))
    return {
        "private": round(float((classify(whole, x)[0] == y).mean()), 4),
        "single": single,
        "chance": round(float(np.bincount(y).max() / JUDGE), 4),
    }


def _taught(  # noqa: PLR0917 - private, called once
    world: dict[str, Any], counts: Labels, name: str, stop: int, teachers: int, source: NoiseSource
) -> list[list[float]]:
    """Return [accuracy, labels right, labels given, class means ...] per number of queries, means over the draws."""
    runs = [_labels(counts, name, stop, teachers, world["classes"], source) for _ in range(REPEATS)]
    return [_student(world, runs, queries) for queries in STUDENT_QUERIES]


def _labels(  # noqa: PLR0917 - private, called once
    counts: Labels, name: str, stop: int, teachers: int, classes: int, source: NoiseSource
) -> Labels:
    queries = len(counts)
    tally = ExactTally(values=counts.ravel(), l1=2.0 * queries, l2=math.sqrt(2.0 * queries))
    if name == "lnmax":
        return LNMax(scale=2.0 / costs.GAMMAS[stop], classes=classes).release(tally, source)
    sigma = costs.SIGMAS[stop]
    if name == "gnmax":
        return GNMax(sigma=sigma, classes=classes).release(tally, source)
    confident = ConfidentGNMax(
        threshold=costs.threshold(teachers), sigma_threshold=costs.TEST_NOISE * sigma, sigma=sigma, classes=classes
    )
    return confident.answer(tally, confident.screen(tally, source), source)


def _student(world: dict[str, Any], runs: list[Labels], queries: int) -> list[float]:
    x, y = world["judge"]
    scores, right, given, means = [], [], [], np.empty(0)
    for labels in runs:
        own = labels[:queries]
        answered = own != ABSTAINED
        group = np.where(answered, 0, -1)
        means = nearest_means(world["public"][:queries], np.maximum(own, 0), group, 1, world["classes"])
        scores.append(float((classify(means, x)[0] == y).mean()))
        given.append(float(answered.sum()))
        right.append(float((own == world["truth"][:queries])[answered].mean()) if answered.any() else 0.0)
    drawn = [999.0 if not np.isfinite(v) else round(100 * float(v)) for v in means.ravel()]  # 999: the class is missing
    return [round(float(np.mean(scores)), 4), round(float(np.mean(right)), 4), float(np.mean(given)), *drawn]
