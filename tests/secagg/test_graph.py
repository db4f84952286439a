"""The graph: regular, symmetric, drawn before keys; its stated probabilities and its bound on lies."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.secagg import graph
from patevolve.shared.secagg.graph import EXPOSED, STUCK, Sizes, choose, failure, holds_against_lies, honest_values
from patevolve.shared.secagg.spec import SumSpec


def spec(count, dropouts=0, colluders=0, *, trust="active", run="r", plan="ab" * 32):
    sites = {f"s{number}": f"{number + 1:064x}" for number in range(count)}
    return SumSpec(
        plan=plan, run=run, sites=sites, coordinator="f" * 64, dropouts=dropouts, colluders=colluders, trust=trust
    )


@pytest.mark.parametrize(
    ("count", "dropouts", "colluders"), [(2, 0, 0), (4, 1, 1), (40, 5, 5), (100, 5, 2), (300, 9, 5)]
)
def test_neighbours_are_symmetric_and_regular(count, dropouts, colluders):
    built = graph.build(spec(count, dropouts, colluders))
    rows = built.neighbours
    degree = 2 * built.sizes.half or count - 1
    assert rows.shape == (count, degree)
    assert all(len(set(row)) == degree and site not in row for site, row in enumerate(rows.tolist()))
    assert all(site in rows[other] for site, row in enumerate(rows) for other in row)
    assert len(set(built.deciders.tolist())) == built.sizes.deciders
    assert (count <= 40) == (built.sizes.half == 0)


def test_the_graph_depends_on_plan_and_identities_and_not_on_the_run():
    circles = [graph.build(one).circle.tolist() for one in (spec(100, 5, 2), spec(100, 5, 2, run="other"))]
    assert circles[0] == circles[1]
    assert graph.build(spec(100, 5, 2, plan="cd" * 32)).circle.tolist() != circles[0]


@pytest.mark.parametrize(
    ("count", "dropouts", "colluders"), [(100, 5, 2), (300, 15, 6), (1000, 50, 20), (1000, 100, 50), (5000, 250, 100)]
)
def test_stated_probabilities(count, dropouts, colluders):
    sizes = choose(sites=count, dropouts=dropouts, colluders=colluders)
    odds = failure(sizes, sites=count, dropouts=dropouts, colluders=colluders)
    assert odds["exposed"] <= 2 * EXPOSED
    assert odds["stuck"] <= 2 * STUCK
    assert holds_against_lies(sizes)
    assert sizes.lies(sizes.gap) + sizes.clustered < sizes.half
    assert 2 * sizes.half < 40 * math.log(count)  # k = O(log n)
    smaller = dataclasses.replace(sizes, clustered=sizes.clustered - 1, colluding=sizes.colluding - 1)
    assert failure(smaller, sites=count, dropouts=dropouts, colluders=colluders)["exposed"] > EXPOSED


def test_tail_against_counting():
    # 3 marked of 8, 4 drawn: count all draws.
    draws = [sum(place < 3 for place in draw) for draw in itertools.combinations(range(8), 4)]
    for most in range(4):
        assert graph._tail(8, 3, 4, most) == pytest.approx(sum(x > most for x in draws) / len(draws))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_widest_gap_against_a_loop(data):
    built = graph.build(spec(100, 5, 2))
    absent = data.draw(st.sets(st.integers(0, 99), max_size=30))
    present = np.array([site not in absent for site in range(100)])
    half, places = built.sizes.half, built.circle.tolist()
    loop = max(sum(places[(start + step) % 100] in absent for step in range(half)) for start in range(100))
    assert built.widest_gap(present) == loop


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_no_narrow_gap_cuts_the_circle(data):
    # SENSITIVITY.md, section 5, against the worst places: less than k/2 missing in each stretch leaves one component.
    built = graph.build(spec(100, 5, 2))
    half = built.sizes.half
    start, pattern = data.draw(st.integers(0, 99)), data.draw(st.lists(st.booleans(), min_size=100, max_size=100))
    gone = set()
    for step, drop in enumerate(pattern):
        here = (start + step) % 100
        near = [sum((here + first + shift) % 100 in gone for shift in range(half)) for first in range(-half + 1, 1)]
        if drop and max(near) < half - 1:
            gone.add(here)
    alive = {int(built.circle[place]) for place in range(100) if place not in gone}
    reached, front = set(), [min(alive)]
    while front:
        site = front.pop()
        if site not in reached:
            reached.add(site)
            front += [int(other) for other in built.neighbours[site] if int(other) in alive]
    assert reached == alive


def opened(sizes, told):
    """Return the components that a coordinator opens, by the rule of SENSITIVITY.md 4, on a complete graph.

    told: for each honest site, the frozenset of sites that it was told are lost. Colluders come last and agree to all.
    """
    honest, need = range(len(told)), sizes.threshold - sizes.colluding
    alive = {j for j in honest if sum(j not in lost for lost in told) >= need}

    def pair_open(i, j):
        return any(sum(a not in lost and b in lost for lost in told) >= need for a, b in ((i, j), (j, i)))

    components, left = [], set(honest)
    while left:
        front, component = [left.pop()], set()
        while front:
            site = front.pop()
            component.add(site)
            joined = {other for other in left if not pair_open(site, other)}
            left -= joined
            front += joined
        components.append(component)
    return [component for component in components if component <= alive]


@pytest.mark.parametrize(("count", "dropouts", "colluders"), [(3, 1, 0), (4, 1, 0), (4, 1, 1), (5, 1, 1), (5, 1, 2)])
def test_every_lie_opens_at_least_the_stated_honest_values(count, dropouts, colluders):
    sizes = choose(sites=count, dropouts=dropouts, colluders=colluders)
    least = honest_values(spec(count, dropouts, colluders))
    assert least == count - dropouts - colluders  # d(d + 1) < n - t: a lie gains nothing
    sets = [frozenset(lost) for size in range(dropouts + 1) for lost in itertools.combinations(range(count), size)]
    seen = {
        len(component)
        for told in itertools.product(sets, repeat=count - colluders)
        for component in opened(sizes, told)
    }
    assert min(seen) == least


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_lies_to_more_sites(data):
    count, dropouts, colluders = data.draw(st.sampled_from([(7, 2, 0), (10, 3, 2), (12, 2, 3), (9, 3, 1)]))
    sizes = choose(sites=count, dropouts=dropouts, colluders=colluders)
    least = honest_values(spec(count, dropouts, colluders))
    lost = st.sets(st.integers(0, count - 1), max_size=dropouts)
    told = [data.draw(lost) for _ in range(count - colluders)]
    assert all(len(component) >= least for component in opened(sizes, told))


def test_a_threshold_of_half_would_be_caught():
    # The planted fault: with T = n/2, four sites told of two drop-outs each give away one site's value alone.
    weak = Sizes(half=0, deciders=4, threshold=2, gap=0, colluding=0, clustered=0)
    assert not holds_against_lies(weak)
    pairs = [frozenset(lost) for lost in itertools.combinations(range(4), 2)]
    sizes = {len(one) for told in itertools.product(pairs, repeat=4) for one in opened(weak, told)}
    assert min(sizes) == 1


def test_noise_must_be_sized_for_lies_where_they_pay():
    assert honest_values(spec(10, 3, 2)) == 4  # not 10 - 3 - 2
    assert honest_values(spec(10, 3, 2, trust="curious")) == 5
    assert honest_values(spec(40, 5, 5)) == 30


@pytest.mark.parametrize(("count", "dropouts", "colluders"), [(4, 2, 0), (4, 1, 2), (3, 1, 1), (2, 1, 0)])
def test_parameters_with_which_a_lie_pays_are_refused(count, dropouts, colluders):
    with pytest.raises(ParameterError, match="curious"):
        graph.build(spec(count, dropouts, colluders))
    graph.build(spec(count, dropouts, colluders, trust="curious"))
