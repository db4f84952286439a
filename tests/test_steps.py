"""The steps of a run over a stand-in for the sites: no private data, known tallies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared import labels, learning, participation, steps
from patevolve.shared.evolution.population import Population
from patevolve.shared.inquiry import Estimate
from patevolve.shared.plan import agree
from patevolve.shared.protocols import Sums
from patevolve.shared.randomness import stream
from patevolve.shared.tools import features_of, tools_of
from patevolve.shared.votes.ballots import class_code

PLAN = """
format = 1
name = "p"
seed = 7
[privacy]
epsilon = 2.0
delta = 1e-5
[sites]
count = 2
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
share = 0.2
[questions.prototypes]
share = 0.4
contrast = 0.8
[questions.neighbours]
share = 0.4
times = 2
candidates = 60
nearest = 3
[evolution]
selection = "SELECTION"
population = 4000
generations = 40
mutation = [0.3]
[release]
samples = 100
"""


class Sites:
    """A stand-in for Inquiry: answers from a dictionary, and writes down what it was asked."""

    def __init__(self, agreed, answers):
        self.agreed, self.answers, self.log = agreed, answers, []

    def asked(self, name):
        return name in self.answers

    def ask(self, name, arrays=None):
        self.log.append((name, arrays))
        answer = self.answers[name]
        return answer(arrays) if callable(answer) else answer

    def ask_all(self, questions):
        return [self.ask(name, arrays or None) for name, arrays in questions.items()]


def setting(answers=None, selection="soft"):
    agreed = agree(PLAN.replace("SELECTION", selection))
    return Sites(agreed, answers or {}), tools_of(agreed.plan)


def estimate(values, std=0.0):
    return Estimate(values=np.asarray(values, np.float64), std=std)


TRUTH = np.array([[0.1, 0.2, 0.3, 0.4, 0.6, 0.3, 0.1], [0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.8]])
COUNTS = np.array([900.0, 300.0])


def prototypes(tools, std=0.0):
    """Return the tally of prototypes of classes with exactly these level shares."""
    sums = tools.encoder.embed(TRUTH) * COUNTS[:, None]
    return estimate((class_code(2, 0.8) @ sums).ravel(), std)


def test_learning_undoes_the_class_code():
    sites, tools = setting()
    sites.answers = {"counts": estimate(COUNTS), "prototypes": prototypes(tools)}
    learnt = learning.learn(sites, tools)
    assert learnt.proportions.tolist() == [0.75, 0.25]
    assert np.abs(learnt.model - TRUTH).max() < 2 / 300


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("contrast", [0.0, 0.2, 0.8])
def test_the_noise_of_decoded_sums_is_what_is_stated(seed, contrast):
    """1,000 noises through the same decoding: measured spreads within 6 of their standard errors."""
    plan = agree(PLAN.replace("SELECTION", "soft").replace("contrast = 0.8", f"contrast = {contrast}")).plan
    noise = np.random.default_rng(seed).normal(0, 3.0, (2, 1000))
    sums = learning._decoded(plan, Estimate(values=noise.ravel(), std=3.0), COUNTS)
    assert isinstance(sums, Sums)
    pooled = sums.values.sum(axis=0) / COUNTS.sum()
    apart = sums.values / COUNTS[:, None] - pooled
    for cls in range(2):
        assert abs(sums.values[cls].std() / sums.std[cls] - 1) < 6 / np.sqrt(2000)
        assert abs(apart[cls].std() / sums.apart_std[cls] - 1) < 6 / np.sqrt(2000)


def test_without_questions_nothing_is_asked_and_classes_are_equal():
    sites, tools = setting()
    learnt = learning.learn(sites, tools)
    assert learnt.proportions.tolist() == [0.5, 0.5]
    assert learnt.model is None
    assert sites.log == []


@pytest.mark.parametrize("counts", [[-50.0, 900.0], [0.0, 0.0], [-9.0, -9.0], [1e12, 1.0]])
def test_noise_never_empties_a_class(counts):
    sites, tools = setting({"counts": estimate(counts)})
    proportions = learning.learn(sites, tools).proportions
    assert proportions.sum() == pytest.approx(1.0)
    assert proportions.min() > 0.9 * learning.RAREST / 2


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12), st.integers(0, 500))
def test_apportioned_numbers_add_up(weights, more):
    proportions = np.array(weights) / sum(weights)
    total = len(weights) + more
    found = steps.apportion(proportions, total)
    assert sum(found) == total
    assert min(found) >= 1
    assert np.abs(np.array(found) - 1 - proportions * more).max() < 1 + 1e-9


def test_the_first_population_follows_the_learnt_shares():
    sites, tools = setting({"counts": estimate([300.0, 100.0])})
    learnt = learning.learn(sites, tools)
    population = steps.first(sites.agreed.plan, tools, learnt)
    assert [len(population.of_class(cls)) for cls in range(2)] == [3000, 1000]


def test_metropolis_steps_converge_to_the_model():
    """After 38 free generations the level frequencies of 2,000 candidates a class stand where the model does.

    Systematic drift would show as more than 6 standard deviations of a frequency over 2,000 draws, 0.067 at most; the
    uniform start is up to 0.47 away.
    """
    sites, tools = setting()
    learnt = learning.Learnt(proportions=np.array([0.5, 0.5]), model=TRUTH)
    population = steps.first(sites.agreed.plan, tools, learnt)

    def miss(found):
        return max(
            float(np.abs(features_of(tools, found.of_class(cls).genomes, cls).mean(axis=0) - TRUTH[cls]).max())
            for cls in range(2)
        )

    assert miss(population) > 0.3
    for number in range(1, 39):
        population, asked = steps.generation(sites, tools, learnt, population, number)
        assert asked == ()
    assert miss(population) < 6 * 0.5 / np.sqrt(2000)
    assert [len(population.of_class(cls)) for cls in range(2)] == [2000, 2000]


def test_the_exchange_between_columns_leaves_them_independent():
    """What the model says of single columns must not become a tie between them."""
    sites, tools = setting()
    learnt = learning.Learnt(proportions=np.array([0.5, 0.5]), model=TRUTH)
    population = steps.first(sites.agreed.plan, tools, learnt)
    for number in range(1, 30):
        population, _ = steps.generation(sites, tools, learnt, population, number)
    genomes = population.of_class(0).genomes
    assert abs(np.corrcoef(genomes[:, 0], genomes[:, 1])[0, 1]) < 6 / np.sqrt(2000)


def voting(selection, favourite):
    """Return sites that vote for the candidates of level ``favourite`` in the first column."""

    def answer(arrays):
        return estimate(np.where(arrays["genomes"][:, 0] == favourite, 5.0, -1.0), 1.0)

    return setting({"neighbours/1": answer, "neighbours/2": answer}, selection)


@pytest.mark.parametrize("selection", ["soft", "histogram"])
def test_votes_decide_who_stays(selection):
    sites, tools = voting(selection, 2)
    learnt = learning.learn(sites, tools)
    population = steps.first(sites.agreed.plan, tools, learnt)
    before = (population.genomes[:, 0] == 2).mean()
    after, asked = steps.generation(sites, tools, learnt, population, 39)
    assert asked == ("neighbours/1",)
    assert (after.genomes[:, 0] == 2).mean() > max(0.9, 2 * before)
    name, arrays = sites.log[-1]
    assert name == "neighbours/1"
    assert arrays["genomes"].shape == (60, 2)
    assert np.bincount(arrays["classes"]).tolist() == [30, 30]
    after, asked = steps.generation(sites, tools, learnt, after, 40)
    assert asked == ("neighbours/2",)


def test_a_generation_depends_on_its_parents_and_number_alone():
    """Streams are named: what was computed before does not move what comes next (a resumed run gives the same)."""
    sites, tools = voting("soft", 1)
    learnt = learning.Learnt(proportions=np.array([0.5, 0.5]), model=TRUTH)
    start = steps.first(sites.agreed.plan, tools, learnt)
    one, _ = steps.generation(sites, tools, learnt, start, 5)
    steps.final(sites.agreed.plan, tools, learnt, start)
    steps.generation(sites, tools, learnt, start, 9)
    two, _ = steps.generation(sites, tools, learnt, start, 5)
    assert np.array_equal(one.genomes, two.genomes)
    other, _ = steps.generation(sites, tools, learnt, start, 6)
    assert not np.array_equal(one.genomes, other.genomes)


def test_the_final_choice_has_the_asked_number_in_the_learnt_shares():
    sites, tools = setting({"counts": estimate([300.0, 100.0])})
    learnt = learning.learn(sites, tools)
    chosen = steps.final(sites.agreed.plan, tools, learnt, steps.first(sites.agreed.plan, tools, learnt))
    assert len(chosen) == 100
    assert np.bincount(chosen.classes).tolist() == steps.apportion(learnt.proportions, 100)


def test_measures():
    sites, tools = setting()
    learnt = learning.Learnt(proportions=np.array([0.5, 0.5]), model=TRUTH)
    same = Population(genomes=np.zeros((6, 2)), classes=np.array([0, 0, 0, 1, 1, 1]))
    found = steps.measure(same, tools, learnt)
    one_hot = np.array([1.0, 0, 0, 0, 1, 0, 0])
    assert found.spread == 0.0
    assert found.match == pytest.approx(np.mean([np.linalg.norm(one_hot - TRUTH[cls]) for cls in range(2)]))
    without = learning.Learnt(proportions=learnt.proportions, model=None)
    assert np.isnan(steps.measure(same, tools, without).match)
    assert steps.measure(same, tools, without).margins.size == 0
    # Minus log-likelihoods: the row of the first column's first level and the second's second.
    expected = -(np.log(TRUTH[1]) - np.log(TRUTH[0])) @ one_hot
    assert found.margins[:3] == pytest.approx(expected)
    assert found.margins[3:] == pytest.approx(-expected)
    assert sites.log == []


def contrastive(**changes):
    text = PLAN.replace("SELECTION", "pcevolve-prototype").replace("population = 4000", "population = 40")
    for key, value in changes.items():
        text = text.replace("[release]", f"{key} = {str(value).lower()}\n[release]")
    agreed = agree(text.replace("[questions.neighbours]\nshare = 0.4\ntimes = 2\ncandidates = 60\nnearest = 3\n", ""))
    return Sites(agreed, {}), tools_of(agreed.plan), learning.Learnt(proportions=np.array([0.5, 0.5]), model=TRUTH)


def test_the_contrastive_selection_is_free_and_separates_the_classes():
    """After three generations nearly every candidate fits its own class better; at first about half do."""
    sites, tools, learnt = contrastive()
    population = steps.first(sites.agreed.plan, tools, learnt)
    before = (steps.measure(population, tools, learnt).margins > 0).mean()
    for number in range(1, 4):
        population, asked = steps.generation(sites, tools, learnt, population, number)
        assert asked == ()
    assert sites.log == []
    assert before < 0.75
    assert (steps.measure(population, tools, learnt).margins > 0).mean() > 0.95
    assert np.bincount(population.classes).tolist() == [20, 20]


def test_a_collapsed_class_is_restarted_and_a_lively_one_is_not():
    sites, tools, learnt = contrastive(collapse=0.5, restart=0.5)
    plan = sites.agreed.plan
    lively = steps.first(plan, tools, learnt)
    stuck = Population(genomes=np.zeros_like(lively.genomes), classes=lively.classes)
    fresh = tools.generator.draw(stream(plan.seed, "restart", 5, 0), 0, 10)
    after, _ = steps.generation(sites, tools, learnt, stuck, 5)
    assert np.array_equal(after.of_class(0).genomes[-10:], fresh)
    other, _ = steps.generation(sites, tools, learnt, lively, 5)
    assert not np.array_equal(other.of_class(0).genomes[-10:], fresh)
    without, _ = steps.generation(contrastive()[0], tools, learnt, stuck, 5)
    assert not np.array_equal(without.of_class(0).genomes[-10:], fresh)


def test_more_diversity_gives_more_spread():
    spreads = []
    for weight in (0.0, 3.0):
        sites, tools, learnt = contrastive(diversity=weight)
        population = steps.first(sites.agreed.plan, tools, learnt)
        for number in range(1, 4):
            population, _ = steps.generation(sites, tools, learnt, population, number)
        spreads.append(steps.measure(population, tools, learnt).spread)
    assert spreads[1] > spreads[0]


def test_noisier_classes_do_not_look_further_away():
    """Distances from a noisy mean, less what the noise adds on average: as from the mean itself, within its noise."""
    rng = np.random.default_rng(0)
    tools = tools_of(agree(IMAGES).plan)
    size = tools.encoder.embedding_size
    clean = np.zeros((2, size))
    features = np.zeros((1, tools.encoder.dimension))
    found = []
    for _ in range(40):
        noisy = clean + np.array([[0.0], [0.05]]) * rng.normal(size=(2, size))
        learnt = learning.Learnt(proportions=np.array([0.5, 0.5]), model=noisy, blur=np.array([0.0, size * 0.05**2]))
        found.append(steps._apart(tools, learnt, features)[0])
        bare = learning.Learnt(proportions=learnt.proportions, model=noisy)
        assert np.diff(steps._apart(tools, bare, features)[0]) > 0.5  # the planted twin: the noise counts as distance
    mean = np.mean(found, axis=0)
    assert mean[0] == pytest.approx(1.0)
    assert mean[1] == pytest.approx(1.0, abs=0.05)


def unsteered(selection, generations):
    """Return the plan with gradients in place of prototypes, and without votes."""
    text = PLAN.replace("SELECTION", selection).replace("generations = 40", f"generations = {generations}")
    text = text.replace("contrast = 0.8", "times = 3").replace("questions.prototypes", "questions.gradients")
    return agree(text.replace("[questions.neighbours]\nshare = 0.4\ntimes = 2\ncandidates = 60\nnearest = 3\n", ""))


def test_the_classifier_keeps_what_it_takes_for_what_it_was_drawn_as():
    """Weights that look at one level of the first column; a class for which nothing passes keeps its own draws."""
    agreed = unsteered("classifier", 1)
    sites, tools, weights = Sites(agreed, {}), tools_of(agreed.plan), np.zeros((2, 7))
    weights[1, 0] = 1.0
    learnt = learning.Learnt(proportions=np.array([0.5, 0.5]), model=None, classifier=weights)
    before = steps.first(agreed.plan, tools, learnt)
    after, asked = steps.generation(sites, tools, learnt, before, 1)
    assert asked == ()
    assert sites.log == []
    assert (after.of_class(0).genomes[:, 0] != 0).all()
    assert (after.of_class(1).genomes[:, 0] == 0).all()
    assert 0 < len(after) < len(before)
    never = np.zeros((2, 7))
    never[1] = -1.0
    nothing = learning.Learnt(proportions=learnt.proportions, model=None, classifier=never)
    kept = steps.generation(sites, tools, nothing, before, 1)[0]
    assert np.array_equal(kept.genomes, before.genomes)


def test_a_class_that_noise_drowned_keeps_what_was_drawn_for_it():
    agreed = unsteered("none", 0)
    sites, tools, never = Sites(agreed, {}), tools_of(agreed.plan), np.zeros((2, 7))
    never[1] = -1.0
    learnt = learning.Learnt(proportions=np.array([0.5, 0.5]), model=None, classifier=never)
    chosen = steps.first(agreed.plan, tools, learnt)
    assert np.array_equal(labels.decide(sites, tools, learnt, chosen).classes, chosen.classes)
    seen = learning.Learnt(proportions=learnt.proportions, model=None, classifier=np.eye(2, 7))
    told = labels.decide(sites, tools, seen, chosen).classes
    assert np.array_equal(told, learning.told_by(np.eye(2, 7), tools, chosen))
    assert sites.log == []


def test_a_classifier_descends_by_what_the_sites_answer():
    """Answers are made from known records; each step starts where the last one ended."""
    agreed = unsteered("none", 0)
    tools, rng = tools_of(agreed.plan), np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 4, 300), rng.integers(0, 3, 300)])
    classes = (rows[:, 0] > 1).astype(int)
    embedded = tools.encoder.embed(tools.encoder.encode(rows))
    seen = []

    def answer(arrays):
        seen.append(arrays["weights"])
        odds = np.exp(embedded @ arrays["weights"].T)
        residuals = odds / odds.sum(axis=1, keepdims=True) - np.eye(2)[classes]
        return estimate((residuals.T @ embedded).ravel() / np.sqrt(2), 1e-3)

    answers = {f"gradients/{number}": answer for number in (1, 2, 3)} | {"counts": estimate([150.0, 150.0])}
    sites = Sites(agreed, answers)
    learnt = learning.learn(sites, tools)
    assert [name for name, _ in sites.log] == ["counts", "gradients/1", "gradients/2", "gradients/3"]
    assert not seen[0].any()
    assert not np.array_equal(seen[1], seen[2])
    candidates = Population(genomes=rows.astype(float), classes=np.zeros(300, int))
    assert np.mean(learning.told_by(learnt.classifier, tools, candidates) == classes) > 0.95


IMAGES = """
format = 1
name = "i"
seed = 1
[privacy]
epsilon = 2.0
delta = 1e-5
unit = "record"
[sites]
count = 2
expected_units = 400
[data]
kind = "image"
classes = ["0", "1"]
label = "y"
height = 16
width = 16
[generator]
kind = "simulator"
[release]
samples = 100
"""


def test_the_seed_articles_selection_keeps_the_surest_and_breeds_them():
    text = PLAN.replace("SELECTION", "classifier-laplace").replace("population = 4000", "population = 20")
    agreed = agree(text.replace("nearest = 3", "teachers = 2").replace("questions.neighbours", "questions.confidence"))
    tools = tools_of(agreed.plan)

    def answer(arrays):
        return estimate(np.where(arrays["genomes"][:, 0] == 2, 4.0, 0.0), 0.1)

    sites = Sites(agreed, {"confidence/1": answer, "confidence/2": answer})
    learnt = learning.learn(sites, tools)
    population = steps.first(agreed.plan, tools, learnt)
    after, asked = steps.generation(sites, tools, learnt, population, 39)
    assert asked == ("confidence/1",)
    assert sites.log[-1][1]["genomes"].shape == (60, 2)
    again, _ = steps.generation(sites, tools, learnt, after, 40)
    assert (again.genomes[:, 0] == 2).all()


def test_the_published_selection_varies_what_the_sites_chose():
    text = PLAN.replace("SELECTION", "pcevolve").replace("nearest = 3\n", "")
    agreed = agree(
        text.replace("questions.neighbours", "questions.choices").replace("mutation = [0.3]", "mutation = [0.05]")
    )
    tools = tools_of(agreed.plan)

    def answer(arrays):
        values = np.zeros(60)
        values[[7, 40]] = 2.0  # both sites chose the same candidate of each class
        return estimate(values)

    sites = Sites(agreed, {"choices/1": answer, "choices/2": answer})
    learnt = learning.learn(sites, tools)
    after, asked = steps.generation(sites, tools, learnt, steps.first(agreed.plan, tools, learnt), 39)
    assert asked == ("choices/1",)
    chosen = sites.log[-1][1]["genomes"][[7, 40]]
    for cls in range(2):
        same = (after.of_class(cls).genomes == chosen[cls]).all(axis=1)
        assert 0.8 < same.mean() < 1.0


@pytest.mark.parametrize("kind", ["neighbours", "choices", "confidence"])
def test_the_report_says_in_which_generation_a_round_was_asked(kind):
    extra = {"neighbours": "", "choices": "", "confidence": "teachers = 1\n"}[kind]
    selection = {"neighbours": "soft", "choices": "pcevolve", "confidence": "classifier-laplace"}[kind]
    text = PLAN.replace("SELECTION", selection).replace(
        "nearest = 3\n", extra or ("nearest = 3\n" * (kind == "neighbours"))
    )
    plan = agree(text.replace("[questions.neighbours]", f"[questions.{kind}]")).plan
    assert participation._when(plan, f"{kind}/1") == "generation 39"
    assert participation._when(plan, "copies") == "after the last generation"
