"""The steps of a run: how a generation comes about, and which candidates are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import contrast
from patevolve.shared.encoder.pairs import PairEncoder
from patevolve.shared.errors import PlanError
from patevolve.shared.evolution.breed import breed, exchange, spread, strength_at
from patevolve.shared.evolution.discriminate import discriminant, refined, surest
from patevolve.shared.evolution.population import Population, join, shares
from patevolve.shared.evolution.select import diverse, histogram, match_mean, resample, smooth
from patevolve.shared.generators.blend import Blended
from patevolve.shared.generators.pool import Pool
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.learning import Learnt, told_by
from patevolve.shared.messages import Kind
from patevolve.shared.plan import VOTES, Plan
from patevolve.shared.privacy.planner import asking
from patevolve.shared.protocols import Genomes
from patevolve.shared.randomness import stream
from patevolve.shared.tools import Tools, features_of

REFERENCE = 200  # the generator's own draws with whose spread a class is compared
FRESH = 3  # the first generation draws this many times more candidates than later ones breed
Names = tuple[str | int, ...]


def first(plan: Plan, tools: Tools, learnt: Learnt) -> Population:
    """Return generation 0: fresh draws of the generator alone, in the learnt class shares."""
    parts = []
    for cls, count in enumerate(apportion(learnt.proportions, plan.evolution.population)):
        genomes = tools.generator.draw(stream(plan.seed, "first", cls), cls, count)
        parts.append(Population(genomes=genomes, classes=np.full(count, cls)))
    return join(parts)


def generation(
    inquiry: Inquiry, tools: Tools, learnt: Learnt, population: Population, number: int
) -> tuple[Population, tuple[str, ...]]:
    """Return the next generation and the questions asked for it: the last ones of a run are voted on."""
    plan = inquiry.agreed.plan
    kind = VOTES.get(plan.evolution.selection)
    if kind is not None:
        name = f"{kind}/{number - (plan.evolution.generations - asking(plan, kind).times)}"
        if inquiry.asked(name):
            return _voted(inquiry, tools, learnt, population, Vote(number=number, name=name, kind=kind)), (name,)
    if plan.evolution.selection == "soft" and learnt.model is not None:
        return steered(plan, tools, learnt.model, population, number), ()
    if plan.evolution.selection == "pcevolve-prototype":
        return _contrasted(plan, tools, learnt, population, number), ()
    if plan.evolution.selection == "discriminant":
        return _told_apart(plan, tools, learnt), ()
    if plan.evolution.selection == "classifier":
        return _recognised(tools, learnt, population), ()
    return population, ()


def final(plan: Plan, tools: Tools, learnt: Learnt, population: Population) -> Population:
    """Return ``release.samples`` candidates in the learnt class shares."""
    parts = []
    for cls, count in enumerate(apportion(learnt.proportions, plan.release.samples)):
        own = population.of_class(cls)
        rng = stream(plan.seed, "final", cls)
        chosen = own.pick(rng.permutation(resample(rng, np.ones(len(own)), count)))
        if plan.evolution.jitter:
            moved = tools.generator.mutate(rng, chosen.genomes, cls, plan.evolution.jitter)
            chosen = Population(genomes=moved, classes=chosen.classes)
        parts.append(chosen)
    return join(parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measures:
    """How a population stands, from public values alone.

    spread:   root mean square distance of the candidates' features from their class mean
    match:    distance of the candidates' mean statistic from the released model; NaN without one
    margins:  (P,) how much better each candidate fits its own class's released model than any other's; empty without
    """

    spread: float
    match: float
    margins: NDArray[np.float64]


def measure(population: Population, tools: Tools, learnt: Learnt) -> Measures:
    """Return the population's measures."""
    spreads, distances, margins = [], [], []
    for cls in range(len(learnt.proportions)):
        features = features_of(tools, population.of_class(cls).genomes, cls)
        spreads.append(spread(features))
        if learnt.model is not None:
            mean = tools.encoder.statistic(features).mean(axis=0)
            distances.append(float(np.linalg.norm(mean - learnt.model[cls])))
            margins.append(contrast.margins(_apart(tools, learnt, features), np.full(len(features), cls)))
    return Measures(
        spread=float(np.mean(spreads)),
        match=float(np.mean(distances)) if distances else float("nan"),
        margins=np.concatenate(margins) if margins else np.zeros(0),
    )


def _apart(tools: Tools, learnt: Learnt, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (P, classes) how far candidates are from each class's released model; free.

    Where the model is a distribution: minus the log-likelihood. Else the distance from the noisy mean, less what the
    noise adds to its square on average: a class of few units, whose mean is noisier, is not further away for that.
    """
    if learnt.model is None:
        raise PlanError("a contrastive score without released prototypes asked for; give questions.prototypes a share.")
    likely = [tools.encoder.log_likelihood(features, row) for row in learnt.model]
    known = [row for row in likely if row is not None]
    if len(known) == len(likely):
        return -np.stack(known, axis=1)
    apart = contrast.distances(tools.encoder.statistic(features), learnt.model)
    return np.sqrt(np.maximum(apart**2 - learnt.blur, 0.0))


def _contrasted(plan: Plan, tools: Tools, learnt: Learnt, population: Population, number: int) -> Population:
    """Return those of parents and offspring that fit their own class's released model best, and differ: free."""
    parts, settings = [], plan.evolution
    for cls in range(len(plan.data.classes)):
        rng, parents = stream(plan.seed, "generation", number, cls), population.of_class(cls).genomes
        count, strength = settings.offspring * len(parents), strength_at(settings, number)
        if number == 1:
            more = tools.generator.draw(rng, cls, FRESH * count)
        else:
            more = breed(rng, tools.generator, parents, cls, count, settings=settings, strength=strength)
        candidates = _distinct(np.concatenate([parents, more]), len(parents))
        features = features_of(tools, candidates, cls)
        scores = contrast.scores(_apart(tools, learnt, features), np.full(len(candidates), cls), settings.tau)
        few = _collapsed(plan, tools, features_of(tools, parents, cls), cls)
        weight = settings.diversity_collapsed if few else settings.diversity
        chosen = diverse(scores, features, len(parents), weight=weight, elites=settings.elites)
        genomes = _restarted(plan, tools, candidates[chosen], (number, cls)) if few else candidates[chosen]
        parts.append(Population(genomes=genomes, classes=np.full(len(genomes), cls)))
    return join(parts)


def _told_apart(plan: Plan, tools: Tools, learnt: Learnt) -> Population:
    """Return the images of the public pool that what was released tells apart best, each in its class: free."""
    if not isinstance(tools.generator, Pool):
        raise PlanError("selection 'discriminant' without a pool found; the plan needs one.")
    everything = tools.generator.everything()
    embeddings = tools.encoder.embed(features_of(tools, everything, 0))
    scores = _scores(learnt, embeddings)
    for _ in range(plan.evolution.refine):
        scores = refined(embeddings, scores)
    found = surest(scores, apportion(learnt.proportions, plan.evolution.population))
    return Population(
        genomes=everything[np.concatenate(found)],
        classes=np.concatenate([np.full(len(own), cls) for cls, own in enumerate(found)]),
    )


def _recognised(tools: Tools, learnt: Learnt, population: Population) -> Population:
    """Return what the classifier takes for the class that it was drawn for, and blends, which were drawn for none."""
    if learnt.classifier is None:
        raise PlanError("selection 'classifier' without gradients found; the plan needs them.")
    right, generator = told_by(learnt.classifier, tools, population) == population.classes, tools.generator
    kept = right | generator.mixed(population.genomes) if isinstance(generator, Blended) else right
    for cls in range(len(learnt.classifier)):
        own = population.classes == cls
        if not (kept & own).any():  # nothing passes for it: better what was drawn for it than none
            kept |= own
    return population.pick(np.flatnonzero(kept))


def _scores(learnt: Learnt, embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (P, classes) scores by the released classifier, or without one by the released prototypes."""
    if learnt.classifier is not None:
        scores: NDArray[np.float64] = embeddings @ learnt.classifier.T
        return scores
    if learnt.model is None:
        raise PlanError("selection 'discriminant' without prototypes or gradients found; the plan needs one of them.")
    joint = learnt.model * learnt.proportions[:, None]
    noise = learnt.proportions * np.sqrt(learnt.blur / embeddings.shape[1])
    return discriminant(embeddings, joint, float(np.mean(noise)))


def _distinct(genomes: Genomes, least: int) -> Genomes:
    """Return the genomes without repetitions, in order, if that leaves ``least`` of them: copies all score alike."""
    first = np.sort(np.unique(genomes, axis=0, return_index=True)[1])
    return genomes[first] if len(first) >= least else genomes


def _collapsed(plan: Plan, tools: Tools, features: NDArray[np.float64], cls: int) -> bool:
    """Return whether a class spreads less than the plan's fraction of what the generator's own draws do."""
    if not plan.evolution.collapse:
        return False
    fresh = tools.generator.draw(stream(plan.seed, "reference spread", cls), cls, REFERENCE)
    return spread(features) < plan.evolution.collapse * spread(features_of(tools, fresh, cls))


def _restarted(plan: Plan, tools: Tools, genomes: Genomes, place: tuple[int, int]) -> Genomes:
    """Return genomes, best first, of which the plan's last fraction is drawn afresh."""
    number, cls = place
    count = int(np.ceil(plan.evolution.restart * len(genomes)))
    if not count:
        return genomes
    fresh = tools.generator.draw(stream(plan.seed, "restart", number, cls), cls, count)
    return np.concatenate([genomes[: len(genomes) - count], fresh])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Niche:
    """One class in one generation: its parents and the released model that they evolve towards.

    place:  where it happens, as further names of its random streams; none at the coordinator
    """

    cls: int
    number: int
    parents: Genomes
    model: NDArray[np.float64]
    place: Names = ()


def steered(
    plan: Plan, tools: Tools, model: NDArray[np.float64], population: Population, number: int, *, place: Names = ()
) -> Population:
    """Return the population one generation closer to the released model: free."""
    parts = []
    for cls in range(len(plan.data.classes)):
        parents = population.of_class(cls).genomes
        niche = Niche(cls=cls, number=number, parents=parents, model=model[cls], place=place)
        likely = tools.encoder.log_likelihood(features_of(tools, niche.parents, cls), niche.model)
        genomes = _matched(plan, tools, niche) if likely is None else _tempered(plan, tools, niche, likely)
        parts.append(Population(genomes=genomes, classes=np.full(len(genomes), cls)))
    return join(parts)


def _tempered(plan: Plan, tools: Tools, niche: Niche, likely: NDArray[np.float64]) -> Genomes:
    """Return parents and mutants by the Metropolis rule, then crossed in pairs: the model's law is stationary."""
    rng = stream(plan.seed, "generation", niche.number, niche.cls, *niche.place)
    name = (plan.seed, "exchange", niche.number, niche.cls, *niche.place)

    def likelihood(genomes: Genomes) -> NDArray[np.float64]:
        found = tools.encoder.log_likelihood(features_of(tools, genomes, niche.cls), niche.model)
        if found is None:
            raise PlanError("an encoder whose model is no distribution found; it cannot weigh mutants.")
        return found

    if isinstance(tools.encoder, PairEncoder) and niche.number == 1:
        drawn: Genomes = tools.encoder.sample(rng, niche.model, len(niche.parents)).astype(np.float64)
        return drawn
    mutants = tools.generator.mutate(rng, niche.parents, niche.cls, strength_at(plan.evolution, niche.number))
    wins = np.log(rng.random(len(likely))) < likelihood(mutants) - likely
    kept = np.where(wins[:, None], mutants, niche.parents)
    tied = isinstance(tools.encoder, PairEncoder)  # its law is no product of columns, so crossing could tear it apart
    return exchange(tools.generator, plan.evolution, kept, name, likelihood if tied else None)


def _matched(plan: Plan, tools: Tools, niche: Niche) -> Genomes:
    """Return those of parents and offspring (at first: fresh draws) whose mean statistic comes closest to the model."""
    rng = stream(plan.seed, "generation", niche.number, niche.cls, *niche.place)
    settings, strength = plan.evolution, strength_at(plan.evolution, niche.number)
    count = settings.offspring * len(niche.parents)
    if niche.number == 1:
        more = tools.generator.draw(rng, niche.cls, FRESH * count)
    else:
        more = breed(rng, tools.generator, niche.parents, niche.cls, count, settings=settings, strength=strength)
    candidates = np.concatenate([niche.parents, more])
    features = features_of(tools, candidates, niche.cls)
    weights = match_mean(tools.encoder.statistic(features), niche.model)
    picked = resample(rng, weights, len(niche.parents))
    chosen: Genomes = candidates[picked]
    if not _collapsed(plan, tools, features[: len(niche.parents)], niche.cls):
        return chosen
    best_first = np.argsort(-weights[picked], kind="stable")
    return _restarted(plan, tools, chosen[best_first], (niche.number, niche.cls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The generation that the sites are asked about, and the question's name and kind."""

    number: int
    name: str
    kind: Kind


def _voted(inquiry: Inquiry, tools: Tools, learnt: Learnt, population: Population, vote: Vote) -> Population:
    """Return what the sites' votes keep of a pool bred from the population; at least as many as will be released."""
    plan = inquiry.agreed.plan
    pool = _pool(plan, tools, population, vote)
    tally = inquiry.ask(vote.name, {"genomes": pool.genomes, "classes": pool.classes})
    released = apportion(learnt.proportions, plan.release.samples)
    parts = []
    for cls in range(len(plan.data.classes)):
        own, votes = pool.of_class(cls), tally.values[pool.classes == cls]
        kept = max(int(np.sum(population.classes == cls)), released[cls] if plan.evolution.selection == "soft" else 0)
        parts.append(_kept(plan, tools, own, Ballots(votes=votes, std=tally.std, kept=kept), (vote.number, cls)))
    return join(parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ballots:
    """What the sites said of one class's candidates (P,), its noise, and how many candidates are to be kept."""

    votes: NDArray[np.float64]
    std: float
    kept: int


def _kept(plan: Plan, tools: Tools, own: Population, ballots: Ballots, place: tuple[int, int]) -> Population:
    """Return what one class keeps of its candidates, by the plan's selection; free, the answer being released."""
    settings, (number, cls) = plan.evolution, place
    rng = stream(plan.seed, "chosen", number, cls)
    if settings.selection == "histogram":
        return own.pick(resample(rng, histogram(ballots.votes, settings.threshold * ballots.std), ballots.kept))
    if settings.selection == "pcevolve":
        # Image to image, as published: the next candidates are variations of those that were chosen.
        chosen = own.pick(resample(rng, ballots.votes, ballots.kept))
        varied = tools.generator.mutate(rng, chosen.genomes, cls, strength_at(settings, number))
        return Population(genomes=varied, classes=chosen.classes)
    features = features_of(tools, own.genomes, cls)
    if settings.selection == "soft":
        return own.pick(resample(rng, smooth(features, ballots.votes, settings.bandwidth), ballots.kept))
    few = _collapsed(plan, tools, features, cls)
    weight = settings.diversity_collapsed if few else settings.diversity
    scores = ballots.votes / (plan.sites.count * plan.questions.confidence.teachers)
    best = own.pick(diverse(scores, features, ballots.kept, weight=weight, elites=settings.elites))
    genomes = _restarted(plan, tools, best.genomes, place) if few else best.genomes
    return Population(genomes=genomes, classes=best.classes)


def _pool(plan: Plan, tools: Tools, population: Population, vote: Vote) -> Population:
    """Return as many candidates as a question carries.

    "soft" asks about the population and as many mutants as fit; Private Evolution asks about mutants of what it last
    selected, and first about the first draw itself; classifiers are asked about the population and its offspring.
    """
    parts, settings, number = [], plan.evolution, vote.number
    for cls, count in enumerate(shares(asking(plan, vote.kind).candidates, len(plan.data.classes))):
        rng, strength = stream(plan.seed, "pool", number, cls), strength_at(settings, number)
        parents = population.of_class(cls).genomes[:count]
        if settings.selection == "histogram" and number > 1:
            parents = tools.generator.mutate(rng, parents, cls, strength)
        if settings.selection == "classifier-laplace":
            spare = count - len(parents)
            mutants = breed(rng, tools.generator, parents, cls, spare, settings=settings, strength=strength)
        else:
            more = parents[np.arange(count - len(parents)) % len(parents)]
            mutants = tools.generator.mutate(rng, more, cls, strength)
        parts.append(Population(genomes=np.concatenate([parents, mutants]), classes=np.full(count, cls)))
    return join(parts)


def apportion(proportions: NDArray[np.float64], total: int) -> list[int]:
    """Return whole numbers that add up to ``total`` in these proportions, at least 1 each (largest remainder)."""
    exact = proportions * (total - len(proportions))
    counts = np.floor(exact).astype(int)
    for position in np.argsort(counts - exact, kind="stable")[: total - len(proportions) - counts.sum()]:
        counts[position] += 1
    return [int(count) + 1 for count in counts]
