"""Adversarial neighbours: what one unit can change in a tally, for every question, whatever its records hold.

``worst`` measures it; the same function must catch planted twins whose bound is broken.
"""

import math
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.data.shard import teacher_of
from patevolve.shared.votes import ballots
from patevolve.shared.votes.ballots import Electorate
from patevolve.shared.votes.lattice import LATTICE, Bounds, Entries, sum_ballots

CLASSES, DIMENSION, CANDIDATES, NEAREST, PER_UNIT = 3, 6, 12, 3, 4
RNG = np.random.default_rng(7)
POOL = RNG.normal(size=(CANDIDATES, DIMENSION)), np.arange(CANDIDATES) % CLASSES
CODE = ballots.class_code(CLASSES, 0.8)

BOUNDS = {
    "counts": ballots.counts_bounds(CLASSES, PER_UNIT),
    "prototypes": ballots.prototypes_bounds(CLASSES, DIMENSION, PER_UNIT, 0.8),
    "slots": ballots.prototypes_bounds(CLASSES, DIMENSION, PER_UNIT, 0.0),
    "neighbours": ballots.neighbours_bounds(CANDIDATES, NEAREST, PER_UNIT),
    "score": ballots.score_bounds(PER_UNIT),
}


def ask(kind, units, features, classes):
    """Return the tally of one question over a site's records."""
    voters, bounds = Electorate(units), BOUNDS[kind]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match kind:
            case "counts":
                return ballots.counts(voters, classes, bounds).values
            case "prototypes" | "slots":
                code = CODE if kind == "prototypes" else np.eye(CLASSES)
                return ballots.prototypes(voters, features, classes, code=code, bounds=bounds).values
            case "neighbours":
                return ballots.neighbours(voters, features, classes, POOL, nearest=NEAREST, bounds=bounds).values
            case "score":
                return ballots.score(voters, features[:, 0] > 0, bounds).values


def within(change, bounds):
    return bool(
        np.linalg.norm(change.astype(np.float64)) <= bounds.lattice_l2
        and np.abs(change.astype(np.float64)).sum() <= bounds.lattice_l1 + 1e-9
        and np.count_nonzero(change) <= bounds.support
    )


def worst(tally, units, features, classes, bounds):
    """Return whether no unit, added to all the others, changes the tally beyond the bounds."""
    whole = tally(units, features, classes)
    stays = [units != unit for unit in sorted(set(units.tolist()))]
    return all(within(whole - tally(units[keep], features[keep], classes[keep]), bounds) for keep in stays)


HOSTILE = {
    "plain": lambda f: f,
    "long": lambda f: f * 1e6,
    "huge": lambda f: f * 1e300,
    "largest": lambda f: np.full_like(f, 1.7e308),
    "nan": lambda f: np.where(np.arange(f.shape[1]) == 1, np.nan, f),
    "infinite": lambda f: np.where(np.arange(f.shape[1]) == 1, np.inf, -np.inf),
    "zero": np.zeros_like,
    "tiny": lambda f: np.full_like(f, 5e-324),
    "level": lambda f: np.full_like(f, 1.0),
    "one": lambda f: np.eye(1, f.shape[1]).repeat(len(f), axis=0),
}


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("records", [1, 2, PER_UNIT, 40])
def test_a_hostile_unit_among_honest_ones(kind, hostile, records):
    """One unit of 1 to 40 hostile records, of every class at once, beside ten honest units."""
    rng = np.random.default_rng(records)
    units = np.array([f"u{i}" for i in range(10)] + ["hostile"] * records)
    features = rng.normal(size=(len(units), DIMENSION)) / 3
    features[10:] = HOSTILE[hostile](features[10:])
    classes = np.arange(len(units)) % CLASSES
    assert worst(lambda *site: ask(kind, *site), units, features, classes, BOUNDS[kind])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BOUNDS)), st.sampled_from(sorted(HOSTILE)), st.integers(0, 2**32), st.data())
def test_random_sites(kind, hostile, seed, data):
    rng = np.random.default_rng(seed)
    n = data.draw(st.integers(1, 25))
    units = np.array([f"u{i}" for i in rng.integers(0, 6, n)])
    features = rng.normal(size=(n, DIMENSION))
    chosen = units == "u0"
    features[chosen] = HOSTILE[hostile](features[chosen])
    assert worst(lambda *site: ask(kind, *site), units, features, rng.integers(0, CLASSES, n), BOUNDS[kind])


@pytest.mark.parametrize("value", [-1, CLASSES, 10**6, -(10**6)])
def test_a_class_outside_the_tally_counts_for_nothing_and_moves_nobody(value):
    """The loader refuses it long before; were it to slip through, it must not become the vote of another unit."""
    units, classes = np.array(["a", "b", "c"]), np.array([0, value, 2])
    alone = ask("counts", units[[0, 2]], np.zeros((2, DIMENSION)), classes[[0, 2]])
    assert np.array_equal(ask("counts", units, np.zeros((3, DIMENSION)), classes), alone)


def test_one_more_record_turns_nobody_elses_vote():
    """Equal records whose candidates all lie equally near: the case in which a floating-point product fails.

    With ``rows @ pool.T`` in the place of ``products`` the vote of every record turned at 24 records (OpenBLAS), a
    change of 34.6 ballots; tests/test_products.py has that twin.
    """
    rng = np.random.default_rng(0)
    for dimension in (8, 100):
        base = rng.normal(size=dimension) / math.sqrt(dimension)
        pool = np.stack([rng.permutation(base) for _ in range(50)])
        bounds = ballots.neighbours_bounds(50, 1, 1)

        def tally(units, features, classes, pool=pool, bounds=bounds):
            candidates = pool, np.zeros(50, np.int64)
            return ballots.neighbours(Electorate(units), features, classes, candidates, nearest=1, bounds=bounds).values

        before = None
        for n in range(1, 40):
            site = np.arange(n).astype(str), np.full((n, dimension), 0.1), np.zeros(n, np.int64)
            after = tally(*site)
            assert before is None or within(after - before, bounds)
            before = after


# ---- planted twins --------------------------------------------------------------------------------------------------


def test_planted_no_clip(monkeypatch):
    """Features as they come, and entries added up without the lattice's own clip."""

    def tally(units, features, classes):
        total = np.zeros(CLASSES * DIMENSION)
        for row, cls in zip(features, classes, strict=True):
            total[cls * DIMENSION : (cls + 1) * DIMENSION] += row
        return np.rint(total * BOUNDS["slots"].scale).astype(np.int64)

    units, classes = np.array(["a", "b"]), np.array([0, 1])
    assert not worst(tally, units, np.full((2, DIMENSION), 1.0), classes, BOUNDS["slots"])


def test_planted_average_forgotten():
    """Every record counts as a whole ballot: a unit of two records has two."""

    def tally(units, features, classes):
        each = np.arange(len(units)).astype(str)  # every record a voter of its own
        return ballots.counts(Electorate(each), classes, BOUNDS["counts"]).values

    units, classes = np.array(["a", "a", "b"]), np.array([0, 0, 1])
    assert not worst(tally, units, np.zeros((3, DIMENSION)), classes, BOUNDS["counts"])


def test_planted_rounding_up():
    """Coordinates rounded away from zero: more than the room that the scale leaves for rounding."""
    size = 980
    bounds = Bounds(size=size, support=size)

    def tally(units, features, classes):
        total = np.zeros(size, np.int64)
        for row in features:
            total += np.ceil(row / np.linalg.norm(row) * bounds.scale).astype(np.int64)
        return total

    def honest(units, features, classes):
        unit = np.repeat(np.arange(len(units)), size)
        places = np.tile(np.arange(size), len(units))
        return sum_ballots(Entries(units=unit, coordinates=places, values=features.ravel()), bounds).values

    site = np.array(["a", "b"]), np.ones((2, size)), np.zeros(2, np.int64)
    assert not worst(tally, *site, bounds)
    assert worst(honest, *site, bounds)


# ---- labels: one unit, one teacher ----------------------------------------------------------------------------------

QUERIES, TEACHERS, SECRET = 9, 5, b"s" * 32
LABELS = ballots.labels_bounds(QUERIES, CLASSES)


def memorising(features, classes, shards):
    """Return the votes of teachers that react to everything: a hash of all the records that they saw."""
    votes = np.full((TEACHERS, QUERIES), -1)
    for teacher in range(TEACHERS):
        rows = shards == teacher
        if rows.any():
            seen = zlib.crc32(features[rows].tobytes() + classes[rows].tobytes())
            votes[teacher] = np.random.default_rng(seen).integers(-1, CLASSES, QUERIES)
    return votes


def keyed(units):
    return teacher_of(SECRET, units, TEACHERS)


def contiguous(units):
    """The wrong way: equal slices, of which every later one moves when a record leaves."""
    return np.arange(len(units)) * TEACHERS // max(len(units), 1)


def label_tally(assign):
    return lambda units, features, classes: (
        ballots.labels(memorising(features, classes, assign(units)), CLASSES, LABELS).values
    )


def test_labels_change_by_one_teacher():
    """Memorising teachers, each unit removed in turn: L2 at most √(2Q) ballots, and one teacher changes at most."""
    rng = np.random.default_rng(5)
    units = np.array([f"u{i // 2}" for i in range(60)])
    features, classes = rng.normal(size=(60, DIMENSION)), rng.integers(0, CLASSES, 60)
    assert LABELS.lattice_l2 == pytest.approx(math.sqrt(2 * QUERIES) * LATTICE)
    assert worst(label_tally(keyed), units, features, classes, LABELS)
    whole = memorising(features, classes, keyed(units))
    for unit in set(units.tolist()):
        keep = units != unit
        rest = memorising(features[keep], classes[keep], keyed(units[keep]))
        assert np.count_nonzero((whole != rest).any(axis=1)) <= 1


def test_planted_contiguous_shards():
    rng = np.random.default_rng(5)
    units = np.array([f"u{i}" for i in range(60)])
    features, classes = rng.normal(size=(60, DIMENSION)), rng.integers(0, CLASSES, 60)
    assert not worst(label_tally(contiguous), units, features, classes, LABELS)


def test_planted_root_of_two_forgotten():
    """A bound of √Q instead of √(2Q) is broken by one teacher that turns all its votes."""
    short = Bounds(size=LABELS.size, support=LABELS.support, l2=math.sqrt(QUERIES))
    first = ballots.labels(np.zeros((1, QUERIES), np.int64), CLASSES, LABELS).values
    second = ballots.labels(np.ones((1, QUERIES), np.int64), CLASSES, LABELS).values
    assert not within(second - first, short)
    assert within(second - first, LABELS)
