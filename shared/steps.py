"""The steps of a run: what is learnt once, how a generation comes about, and which candidates are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import PlanError
from patevolve.shared.evolution.breed import breed, spread, strength_at
from patevolve.shared.evolution.population import Population, join, shares
from patevolve.shared.evolution.select import histogram, match_mean, resample, smooth
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.plan import Plan
from patevolve.shared.protocols import Genomes
from patevolve.shared.randomness import stream
from patevolve.shared.tools import Tools

FEWEST = 20.0  # a class's noisy count is taken as at least this many units: a mean over fewer is noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learnt:
    """What was released before evolution began.

    proportions:  (classes,) class shares; equal if the plan does not ask for counts
    prototypes:   (classes, e) noisy class means of the public embedding, or None if the plan does not ask for them
    noise:        (classes,) standard deviation of the noise in each class's prototype
    """

    proportions: NDArray[np.float64]
    prototypes: NDArray[np.float64] | None
    noise: NDArray[np.float64]


def learn(inquiry: Inquiry, tools: Tools) -> Learnt:
    """Ask for class counts and prototypes, as far as the plan has them, and turn sums into means."""
    plan = inquiry.agreed.plan
    classes = len(plan.data.classes)
    expected = plan.sites.count * plan.sites.expected_units / classes
    counts = np.full(classes, expected)
    if inquiry.asked("counts"):
        counts = np.maximum(inquiry.ask("counts").values, FEWEST)
    prototypes, noise = None, np.zeros(classes)
    if inquiry.asked("prototypes"):
        sums = inquiry.ask("prototypes")
        noise = sums.std / counts
        means = sums.values.reshape(classes, -1) / counts[:, None]
        prototypes = tools.encoder.clean(means, noise)
    return Learnt(proportions=counts / counts.sum(), prototypes=prototypes, noise=noise)


def first(plan: Plan, tools: Tools, learnt: Learnt) -> Population:
    """Return generation 0: fresh draws, the same number for each class."""
    classes = len(plan.data.classes)
    parts = []
    for cls, count in enumerate(shares(plan.evolution.population, classes)):
        genomes = tools.generator.draw(stream(plan.seed, "first", cls), cls, count, _steer(learnt, cls))
        parts.append(Population(genomes=genomes, classes=np.full(count, cls)))
    return join(parts)


def generation(
    inquiry: Inquiry, tools: Tools, learnt: Learnt, population: Population, number: int
) -> tuple[Population, tuple[str, ...]]:
    """Return the next generation and the questions asked for it."""
    plan = inquiry.agreed.plan
    if plan.evolution.selection == "soft" and learnt.prototypes is not None:
        population = _matched(plan, tools, learnt, population, number)
    name = f"neighbours/{number - (plan.evolution.generations - plan.questions.neighbours.times)}"
    if not inquiry.asked(name):
        return population, ()
    return _voted(inquiry, tools, population, number, name), (name,)


def final(plan: Plan, tools: Tools, learnt: Learnt, population: Population) -> Population:
    """Return ``release.samples`` candidates in the learnt class shares, lightly varied so that none repeats."""
    del tools
    parts = []
    for cls, count in enumerate(_apportion(learnt.proportions, plan.release.samples)):
        own = population.of_class(cls)
        rng = stream(plan.seed, "final", cls)
        parts.append(own.pick(rng.permutation(resample(rng, np.ones(len(own)), count))))
    return join(parts)


def measure(population: Population, tools: Tools, learnt: Learnt) -> tuple[float, float]:
    """Return the population's spread within classes and its distance from the released prototypes (NaN without)."""
    spreads, distances = [], []
    for cls in range(len(learnt.proportions)):
        features = _features(tools, population.of_class(cls).genomes, cls)
        spreads.append(spread(features))
        if learnt.prototypes is not None:
            mean = tools.encoder.embed(features).mean(axis=0)
            distances.append(float(np.linalg.norm(mean - learnt.prototypes[cls])))
    return float(np.mean(spreads)), float(np.mean(distances)) if distances else float("nan")


def _matched(plan: Plan, tools: Tools, learnt: Learnt, population: Population, number: int) -> Population:
    """Return the candidates, old and new, whose mean embedding comes closest to each class's prototype: free."""
    settings, parts = plan.evolution, []
    for cls in range(len(plan.data.classes)):
        parents = population.of_class(cls)
        rng = stream(plan.seed, "generation", number, cls)
        count = settings.offspring * len(parents)
        children = breed(
            rng, tools.generator, parents.genomes, cls, count, settings=settings, strength=strength_at(settings, number)
        )
        candidates = np.concatenate([parents.genomes, children])
        embeddings = tools.encoder.embed(_features(tools, candidates, cls))
        weights = match_mean(embeddings, _prototype(learnt, cls))
        chosen = candidates[resample(rng, weights, len(parents))]
        parts.append(Population(genomes=chosen, classes=parents.classes))
    return join(parts)


def _voted(inquiry: Inquiry, tools: Tools, population: Population, number: int, name: str) -> Population:
    """Return the population after the sites voted on a pool bred from it."""
    plan = inquiry.agreed.plan
    pool = _pool(plan, tools, population, number)
    votes = inquiry.ask(name, {"genomes": pool.genomes, "classes": pool.classes}).values
    parts = []
    for cls in range(len(plan.data.classes)):
        own, ballots = pool.of_class(cls), votes[pool.classes == cls]
        if plan.evolution.selection == "histogram":
            weights = histogram(ballots, plan.evolution.threshold)
        else:
            weights = smooth(_features(tools, own.genomes, cls), ballots, plan.evolution.bandwidth)
        rng = stream(plan.seed, "chosen", number, cls)
        parts.append(own.pick(resample(rng, weights, int(np.sum(population.classes == cls)))))
    return join(parts)


def _pool(plan: Plan, tools: Tools, population: Population, number: int) -> Population:
    """Return as many candidates as a question carries: the population and its offspring."""
    parts, settings = [], plan.evolution
    for cls, count in enumerate(shares(plan.questions.neighbours.candidates, len(plan.data.classes))):
        parents = population.of_class(cls).genomes[:count]
        rng = stream(plan.seed, "pool", number, cls)
        more = count - len(parents)
        children = breed(
            rng, tools.generator, parents, cls, more, settings=settings, strength=strength_at(settings, number)
        )
        parts.append(Population(genomes=np.concatenate([parents, children]), classes=np.full(count, cls)))
    return join(parts)


def _features(tools: Tools, genomes: Genomes, cls: int) -> NDArray[np.float64]:
    features: NDArray[np.float64] = tools.encoder.encode(tools.generator.render(genomes, np.full(len(genomes), cls)))
    return features


def _steer(learnt: Learnt, cls: int) -> NDArray[np.float64] | None:
    return None if learnt.prototypes is None else learnt.prototypes[cls]


def _prototype(learnt: Learnt, cls: int) -> NDArray[np.float64]:
    if learnt.prototypes is None:
        raise PlanError("soft selection without prototypes found; give questions.prototypes a share.")
    return learnt.prototypes[cls]


def _apportion(proportions: NDArray[np.float64], total: int) -> list[int]:
    """Return whole numbers that add up to ``total`` in these proportions, at least 1 each (largest remainder)."""
    exact = proportions * (total - len(proportions))
    counts = np.floor(exact).astype(int)
    for position in np.argsort(counts - exact, kind="stable")[: total - len(proportions) - counts.sum()]:
        counts[position] += 1
    return [int(count) + 1 for count in counts]
