"""Islands as public functions: what is sent, how a site's sub-population evolves, and how migrants come home."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared import islands, learning, steps
from patevolve.shared.errors import MessageError, PlanError
from patevolve.shared.evolution.population import Population
from patevolve.shared.islands import Turn
from patevolve.shared.plan import agree
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.planner import spend
from patevolve.shared.schedule import find, schedule
from patevolve.shared.tools import features_of, tools_of

PLAN = """
format = 1
name = "p"
seed = 7
[privacy]
epsilon = 2.0
delta = 1e-5
trust = "TRUST"
[sites]
count = 3
expected_units = 400
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
[[data.columns]]
name = "u"
kind = "numeric"
edges = [0, 1, 2, 3, 4]
[[data.columns]]
name = "v"
kind = "categorical"
values = ["x", "y", "z"]
[generator]
kind = "tabular"
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.4
[questions.neighbours]
share = 0.3
times = 2
candidates = 60
nearest = 3
[evolution]
population = 800
generations = 20
[islands]
migrants = 50
candidates = 300
generations = 4
times = 3
share = 0.2
nearest = 3
[release]
samples = 100
"""
MODEL = np.array([[0.1, 0.2, 0.3, 0.4, 0.6, 0.3, 0.1], [0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.8]])
TURN = Turn(name="islands/1", number=16)


def read(trust="each-site", **own):
    plan = agree(PLAN.replace("TRUST", trust)).plan
    return dataclasses.replace(plan, islands=dataclasses.replace(plan.islands, **own))


def start(plan, turn=TURN):
    tools = tools_of(plan)
    learnt = learning.Learnt(proportions=np.array([0.75, 0.25]), model=MODEL)
    population = steps.first(plan, tools, learnt)
    return tools, population, islands.settlers(plan, population, turn)


def test_exchanges_come_before_the_generations_that_are_voted_on():
    found = islands.turns(read())
    assert [(turn.name, turn.number) for turn in found] == [("islands/1", 16), ("islands/2", 17), ("islands/3", 18)]
    assert [islands.turn_of(read(), turn.name) for turn in found] == list(found)
    for name in ("islands/0", "islands/4", "islands", "neighbours/1", ""):
        with pytest.raises(MessageError, match="3 exchanges"):
            islands.turn_of(read(), name)


def test_a_plan_without_the_section_has_no_exchange():
    text = PLAN.replace("TRUST", "each-site")
    plan = agree(text[: text.index("[islands]")] + text[text.index("[release]") :]).plan
    assert islands.turns(plan) == ()
    population = start(read())[1]
    assert islands.exchange(_Inquiry(plan), tools_of(plan), _learnt(), population, 18) == (population, ())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("migrants = 50", "migrants = 151", "150 of a class"),
        ("migrants = 50", "migrants = 67", "at most half of evolution.population"),
        ("migrants = 50", "migrants = 0", "whole number >= 1"),
        ("generations = 4", "generations = 0", "whole number >= 1"),
        ("times = 3", "times = 19", "19 before 2 generations with votes"),
        ("share = 0.2", "share = 0.0", "nobody votes"),
        ("share = 0.2", "share = 0.21", "add up to 1.01"),
        ("share = 0.2", "share = -0.1", "share"),
        ("share = 0.2\nnearest = 3", "share = 0.2", "without islands.nearest"),
        ("[questions.prototypes]\nshare = 0.4", "", "released prototypes"),
        ("population = 800", 'population = 800\nselection = "histogram"', "released prototypes"),
        ("migrants = 50", "migrant = 50", "Did you mean 'migrants'"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(old, new, words):
    text = PLAN.replace("TRUST", "each-site")
    assert old in text
    with pytest.raises(PlanError, match=words):
        agree(text.replace(old, new))


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_an_islands_noise_is_whole_and_its_charge_local(trust):
    plan = read(trust)
    asks = schedule(plan, 5)
    ask, part = find(asks, "islands/2"), next(part for part in spend(plan) if part.kind == "islands")
    assert (ask.full, ask.scope, ask.part, ask.bounds.size) == (True, "local", "islands", 300)
    assert ask.mechanism.std >= part.noise_multiplier * ask.bounds.lattice_l2 * (1 - 1e-12)
    assert [one.scope for one in asks if one.kind != "islands"] == ["shared"] * 4
    assert find(asks, "neighbours/1").full == (trust == "each-site")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["each-site", "secure-sum"]),
    st.floats(0.05, 8.0),
    st.floats(0.001, 0.2),
    st.integers(1, 9),
)
def test_the_plans_epsilon_covers_its_islands(trust, epsilon, share, times):
    """What a unit at one site meets, islands and sums together, stays within the plan's ε, and uses it."""
    plan = read(trust)
    privacy = dataclasses.replace(plan.privacy, epsilon=epsilon)
    own = dataclasses.replace(plan.islands, share=share, times=times)
    counts = dataclasses.replace(plan.questions.counts, share=0.3 - share)
    questions = dataclasses.replace(plan.questions, counts=counts)
    plan = dataclasses.replace(plan, privacy=privacy, islands=own, questions=questions)
    found = accountant.epsilon(accountant.compose([ask.event for ask in schedule(plan, 5)]), 1e-5).epsilon
    assert 0.999 * epsilon <= found <= epsilon


def test_free_islands_have_no_charge():
    text = PLAN.replace("TRUST", "each-site").replace("times = 3\nshare = 0.2\nnearest = 3", "times = 3")
    plan = agree(text).plan
    assert plan.islands is not None
    assert not [ask for ask in schedule(plan, 5) if ask.kind == "islands"]
    assert len(islands.turns(plan)) == 3


def test_what_is_sent_has_the_plans_number_of_each_class():
    plan = read(candidates=301)
    _, population, settlers = start(plan)
    assert np.bincount(settlers.classes).tolist() == [151, 150]
    for cls in range(2):
        known = {tuple(row) for row in population.of_class(cls).genomes}
        assert {tuple(row) for row in settlers.of_class(cls).genomes} <= known


def test_a_small_class_is_sent_more_than_once_rather_than_too_seldom():
    plan = read()
    few = Population(genomes=np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]), classes=np.array([0, 0, 1]))
    settlers = islands.settlers(plan, few, TURN)
    assert np.bincount(settlers.classes).tolist() == [150, 150]


def distance(tools, population):
    return float(
        np.mean(
            [
                np.linalg.norm(features_of(tools, population.of_class(cls).genomes, cls).mean(axis=0) - MODEL[cls])
                for cls in range(2)
            ]
        )
    )


def test_an_island_evolves_towards_what_was_released():
    plan = read(generations=60)
    tools, _, settlers = start(plan)
    after = islands.evolved(plan, tools, MODEL, settlers, TURN, site="a")
    assert distance(tools, after) < 0.3 * distance(tools, settlers)
    assert np.array_equal(after.classes, settlers.classes)


def test_every_island_goes_its_own_way_and_the_same_one_each_time():
    plan = read()
    tools, _, settlers = start(plan)

    def evolved(site, turn=TURN):
        return islands.evolved(plan, tools, MODEL, settlers, turn, site=site).genomes

    first = evolved("a")
    others = [evolved("b"), evolved("a", Turn(name="islands/2", number=17))]
    assert np.array_equal(evolved("a"), first)  # whatever was computed in between
    assert not any(np.array_equal(first, other) for other in others)


def test_votes_decide_who_migrates():
    plan = read()
    tools, _, settlers = start(plan)
    pool = islands.evolved(plan, tools, MODEL, settlers, TURN, site="a")
    votes = np.where(pool.genomes[:, 0] == 2, 5.0, -1.0)
    chosen = islands.chosen(plan, tools, pool, TURN, site="a", votes=votes)
    even = islands.chosen(plan, tools, pool, TURN, site="a")
    assert chosen.shape == even.shape == islands.migrants_shape(plan, 2) == (100, 2)
    assert (chosen[:, 0] == 2).mean() > max(0.9, 2 * (even[:, 0] == 2).mean())


def test_without_votes_the_whole_sub_population_is_drawn_from():
    plan = read()
    tools, _, settlers = start(plan)
    even = islands.chosen(plan, tools, settlers, TURN, site="a")
    for cls in range(2):
        known = {tuple(row) for row in settlers.of_class(cls).genomes}
        assert {tuple(row) for row in even[50 * cls : 50 * (cls + 1)]} <= known


@given(st.lists(st.sampled_from("abc"), unique=True), st.integers(1, 400), st.integers(1, 400))
def test_migrants_take_places_of_their_class_and_at_most_half(names, first, second):
    plan = read()
    classes = np.repeat([0, 1], [first, second])
    population = Population(genomes=np.zeros((len(classes), 2)), classes=classes)
    migrants = {name: np.full((100, 2), float(ord(name))) for name in names}
    after = islands.merged(plan, population, migrants, TURN)
    assert np.array_equal(after.classes, classes)
    for cls, size in enumerate((first, second)):
        arrived = after.of_class(cls).genomes[:, 0] > 0
        assert arrived.sum() == min(50 * len(names), size // 2)
        assert np.array_equal(arrived, np.arange(size) < arrived.sum())  # they come first


def test_sites_take_turns_so_that_no_name_is_left_out():
    plan = read()
    population = Population(genomes=np.zeros((16, 2)), classes=np.repeat([0, 1], 8))
    for names in itertools.permutations("abc"):
        migrants = {name: np.full((100, 2), float(ord(name))) for name in names}
        after = islands.merged(plan, population, migrants, TURN)
        assert [chr(int(code)) for code in after.genomes[:4, 0]] == list("abca")


def test_migrants_keep_their_class():
    plan = read()
    _, population, _ = start(plan)
    migrants = {"a": np.repeat([[7.0, 7.0], [8.0, 8.0]], 50, axis=0)}
    after = islands.merged(plan, population, migrants, TURN)
    assert (after.of_class(0).genomes[:50] == 7.0).all()
    assert (after.of_class(1).genomes[:50] == 8.0).all()
    assert not (after.of_class(0).genomes == 8.0).any()


@dataclasses.dataclass
class _Inquiry:
    """A stand-in for the sites: notes what is sent to the islands and sends back what it is told to."""

    plan: object
    back: dict = dataclasses.field(default_factory=dict)
    sent: list = dataclasses.field(default_factory=list)

    @property
    def agreed(self):
        return self

    def evolve(self, name, arrays, shape):
        self.sent.append((name, arrays, shape))
        return self.back


def _learnt():
    return learning.Learnt(proportions=np.array([0.5, 0.5]), model=MODEL)


def test_an_exchange_sends_public_values_and_takes_migrants_in():
    plan = read()
    tools, population, _ = start(plan)
    inquiry = _Inquiry(plan, {"b": np.full((100, 2), 2.0)})
    after, asked = islands.exchange(inquiry, tools, _learnt(), population, 17)
    assert asked == ("islands/2",)
    ((name, arrays, shape),) = inquiry.sent
    assert (name, shape, sorted(arrays)) == ("islands/2", (100, 2), ["classes", "genomes", "model"])
    assert len(after) == len(population)
    assert (after.of_class(0).genomes[:50] == 2.0).all()
    for number in (15, 19, 20):
        assert islands.exchange(inquiry, tools, _learnt(), population, number) == (population, ())


def test_islands_that_nobody_comes_home_from_leave_the_population_as_it_is():
    plan = read()
    tools, population, _ = start(plan)
    after, _ = islands.exchange(_Inquiry(plan), tools, _learnt(), population, 16)
    assert np.array_equal(after.genomes, population.genomes)
