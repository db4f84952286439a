"""From real ballots to bounded integers, for any triples at all."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.tally import NoisyTally
from patevolve.shared.votes.lattice import LATTICE, Bounds, Entries, estimate, noise_std, sum_ballots

HOSTILE = st.one_of(
    st.floats(-1, 1),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.7e308, -1.7e308, 5e-324, math.nan, math.inf, -math.inf]),
)


@st.composite
def tallies(draw):
    """Any triples of up to 6 units, coordinates outside the tally included, in any order."""
    size = draw(st.integers(1, 9))
    bounds = Bounds(size=size, support=draw(st.integers(1, size)))
    triples = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, size + 3), HOSTILE), max_size=40))
    return bounds, triples


def tally(triples, bounds):
    units, coordinates, values = zip(*triples, strict=True) if triples else ((), (), ())
    entries = Entries(
        units=np.array(units, np.int64),
        coordinates=np.array(coordinates, np.int64),
        values=np.array(values, np.float64),
    )
    with np.errstate(all="ignore"):
        return sum_ballots(entries, bounds).values


def change_of_one_unit(sum_of, triples, bounds):
    """Return, for each unit, what removing it changes."""
    whole = sum_of(triples, bounds)
    return [whole - sum_of([t for t in triples if t[0] != unit], bounds) for unit in {t[0] for t in triples}]


def within(change, bounds):
    """Return whether a change of one unit keeps the stated bounds."""
    long = np.linalg.norm(change.astype(np.float64)) <= bounds.lattice_l2
    wide = np.count_nonzero(change) <= bounds.support
    return long and wide and np.abs(change.astype(np.float64)).sum() <= bounds.lattice_l1 + 1e-9


@given(tallies())
def test_no_unit_changes_more_than_its_ballot(case):
    bounds, triples = case
    for change in change_of_one_unit(tally, triples, bounds):
        assert within(change, bounds)


@given(tallies(), st.randoms())
def test_a_unit_counts_the_same_whoever_stands_beside_it(case, random):
    """A unit's change is what it alone would give, whatever the order of units."""
    bounds, triples = case
    for unit in {t[0] for t in triples}:
        own = [t for t in triples if t[0] == unit]
        others = [t for t in triples if t[0] != unit]
        random.shuffle(others)
        assert np.array_equal(tally(others + own, bounds) - tally(others, bounds), tally(own, bounds))


def planted(*, clip=True, rounding=np.rint, support=True, room=True):
    """Return a tally by units, written out; each switch plants one fault."""

    def sum_of(triples, bounds):
        total = np.zeros(bounds.size, np.int64)
        scale = bounds.scale if room else LATTICE
        for unit in sorted({t[0] for t in triples}):
            ballot = {}
            for owner, coordinate, value in triples:
                if owner == unit and 0 <= coordinate < bounds.size:
                    ballot[coordinate] = ballot.get(coordinate, 0.0) + (value if math.isfinite(value) else 0.0)
            kept = sorted(ballot)[: bounds.support] if support else sorted(ballot)
            values = np.array([ballot[place] for place in kept])
            norm = math.sqrt(float(values @ values)) if len(values) else 0.0
            scaled = values / max(1.0, norm) if clip else np.clip(values, -1, 1)
            total[kept] += rounding(scaled * scale).astype(np.int64)
        return total

    return sum_of


@given(tallies())
def test_the_sum_over_units_written_out_is_the_oracle(case):
    bounds, triples = case
    triples = [(u, c, v if not math.isfinite(v) or abs(v) < 1e90 else math.copysign(1e90, v)) for u, c, v in triples]
    assert np.abs(tally(triples, bounds) - planted()(triples, bounds)).max(initial=0) <= 1


UP = lambda x: np.sign(x) * np.ceil(np.abs(x))  # noqa: E731 - deterministic rounding away from zero
NARROW = Bounds(size=4, support=1)


def level(size):
    """Return one unit's ballot of equal coordinates, and bounds that allow it."""
    return [(0, place, 1.0) for place in range(size)], Bounds(size=size, support=size)


@pytest.mark.parametrize(
    ("twin", "triples", "bounds"),
    [
        (planted(clip=False), [(0, 0, 1.0), (0, 1, 1.0)], Bounds(size=4, support=2)),
        (planted(rounding=UP), *level(980)),
        (planted(room=False), *level(820)),
        (planted(support=False), [(0, 0, 0.5), (0, 1, 0.5)], NARROW),
    ],
    ids=["no clip", "rounding up", "no room for rounding", "no support"],
)
def test_a_planted_twin_breaks_the_bound(twin, triples, bounds):
    assert not all(within(change, bounds) for change in change_of_one_unit(twin, triples, bounds))
    assert all(within(change, bounds) for change in change_of_one_unit(tally, triples, bounds))


@pytest.mark.parametrize("support", [1, 2, 15, 100, 900, 4096, 100_000])
def test_the_worst_rounding_stays_within_the_lattice(support):
    """Equal coordinates just above half a step, and as long as a ballot may be: where rounding adds the most."""
    bounds = Bounds(size=support, support=support)
    for value in (1.0 / math.sqrt(support), 0.5000001 / bounds.scale, 1.5000001 / bounds.scale):
        entries = Entries(
            units=np.zeros(support, np.int64), coordinates=np.arange(support), values=np.full(support, value)
        )
        assert within(sum_ballots(entries, bounds).values, bounds)


@pytest.mark.parametrize(
    "bad", [{"size": 0, "support": 1}, {"size": 1, "support": 0}, {"size": 1, "support": LATTICE**2 + 1}]
)
def test_bounds_outside_their_domain_are_refused(bad):
    with pytest.raises(ParameterError):
        Bounds(**bad)


def test_no_ballots_give_zeros():
    assert tally([], Bounds(size=3, support=1)).tolist() == [0, 0, 0]


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 40]))
def test_entries_in_order_sum_as_the_same_in_any_order(seed, support):
    """They are not sorted: whoever needed more than the support, or was longer than 1, is cut alike."""
    rng = np.random.default_rng(seed)
    places = np.flatnonzero(rng.random(6 * 40) < rng.random())
    units, coordinates = np.divmod(places, 40)
    values = rng.normal(size=len(places)) * rng.choice([0.01, 1.0, 100.0])
    bounds, other = Bounds(size=40, support=support), rng.permutation(len(places))
    ordered = sum_ballots(Entries(units=units, coordinates=coordinates, values=values), bounds)
    mixed = sum_ballots(Entries(units=units[other], coordinates=coordinates[other], values=values[other]), bounds)
    assert np.array_equal(ordered.values, mixed.values)


def test_the_estimate_is_in_ballots():
    bounds = Bounds(size=2, support=1)
    triples = [(unit, unit % 2, 1.0) for unit in range(100)]
    noisy = NoisyTally(values=tally(triples, bounds), std=10.0)
    assert estimate(noisy, bounds).tolist() == [50.0, 50.0]
    assert noise_std(noisy, bounds) == 10.0 / bounds.scale


def test_rounding_has_no_bias_over_many_ballots():
    """The mean of 20,000 random ballots is right to one part in a thousand of a ballot."""
    rng, bounds = np.random.default_rng(3), Bounds(size=3, support=3)
    ballots = rng.uniform(-0.5, 0.5, size=(20_000, 3))
    entries = Entries(
        units=np.repeat(np.arange(20_000), 3), coordinates=np.tile(np.arange(3), 20_000), values=ballots.ravel()
    )
    values = estimate(NoisyTally(values=sum_ballots(entries, bounds).values, std=0.0), bounds)
    assert np.abs(values - ballots.sum(axis=0)).max() / 20_000 < 1e-3 / 2
