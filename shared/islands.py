"""Islands: what the coordinator sends to them, how a site evolves its own, and how the migrants come home.

Everything here is public: it reads the plan, candidates, the released prototypes and, at a site whose plan pays for it,
a tally that has its noise already. Every random choice comes from a stream that names the site, so that a site that is
asked again sends the same migrants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import steps
from patevolve.shared.errors import MessageError, PlanError
from patevolve.shared.evolution.population import Population, join, shares
from patevolve.shared.evolution.select import resample, smooth
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.learning import Learnt
from patevolve.shared.plan import Plan
from patevolve.shared.plan_sections import Islands
from patevolve.shared.protocols import Genomes
from patevolve.shared.randomness import stream
from patevolve.shared.tools import Tools, features_of

Votes = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange with the islands: its name, as a site's ledger has it, and the generation that it belongs to."""

    name: str
    number: int


def settings(plan: Plan) -> Islands:
    """Return the plan's islands. Raises PlanError if it has none."""
    if plan.islands is None:
        raise PlanError("a plan without [islands] found; expected the section.")
    return plan.islands


def turns(plan: Plan) -> tuple[Turn, ...]:
    """Return the plan's exchanges: one in each of the last generations before those that are voted on."""
    if plan.islands is None:
        return ()
    voted = plan.questions.neighbours.times if plan.questions.neighbours.share else 0
    start = plan.evolution.generations - voted - plan.islands.times
    return tuple(Turn(name=f"islands/{turn}", number=start + turn) for turn in range(1, plan.islands.times + 1))


def turn_of(plan: Plan, name: str) -> Turn:
    """Return the exchange of this name. Raises MessageError if the plan has none."""
    for turn in turns(plan):
        if turn.name == name:
            return turn
    raise MessageError(f"island {name!r} found; the plan has {len(turns(plan))} exchanges, named islands/1 and so on.")


def exchange(
    inquiry: Inquiry, tools: Tools, learnt: Learnt, population: Population, number: int
) -> tuple[Population, tuple[str, ...]]:
    """Return the population with the islands' migrants in it, if this generation has an exchange; else as it is."""
    plan = inquiry.agreed.plan
    turn = next((turn for turn in turns(plan) if turn.number == number), None)
    if turn is None:
        return population, ()
    if learnt.model is None:
        raise PlanError("islands without released prototypes found; expected a share for questions.prototypes.")
    sent = settlers(plan, population, turn)
    arrays = {"genomes": sent.genomes, "classes": sent.classes, "model": learnt.model}
    migrants = inquiry.evolve(turn.name, arrays, migrants_shape(plan, tools.generator.genome_size))
    return merged(plan, population, migrants, turn), (turn.name,)


def settlers(plan: Plan, population: Population, turn: Turn) -> Population:
    """Return the candidates that every island starts from, equally many of each class, drawn from the population."""
    parts = []
    for cls, count in enumerate(shares(settings(plan).candidates, len(plan.data.classes))):
        own = population.of_class(cls)
        order = stream(plan.seed, "settlers", turn.number, cls).permutation(len(own))
        parts.append(own.pick(order[np.arange(count) % len(own)]))
    return join(parts)


def evolved(
    plan: Plan, tools: Tools, model: NDArray[np.float64], population: Population, turn: Turn, *, site: str
) -> Population:
    """Return the site's sub-population after its generations towards the released prototypes.

    A function of what the coordinator sent, the plan and the site's name: no private record is read.
    """
    for step in range(1, settings(plan).generations + 1):
        population = steps.steered(plan, tools, model, population, turn.number, place=("island", site, step))
    return population


def chosen(
    plan: Plan, tools: Tools, population: Population, turn: Turn, *, site: str, votes: Votes | None = None
) -> Genomes:
    """Return (classes · migrants, G) migrants, class by class: drawn in proportion to smoothed votes, or evenly.

    votes: (P,) noised votes of the site's own units on its sub-population; None where the plan pays for none
    """
    parts = []
    for cls in range(len(plan.data.classes)):
        own = population.of_class(cls)
        weights = np.ones(len(own))
        if votes is not None:
            features = features_of(tools, own.genomes, cls)
            weights = smooth(features, votes[population.classes == cls], plan.evolution.bandwidth)
        rng = stream(plan.seed, "migrants", turn.number, cls, "island", site)
        parts.append(own.genomes[rng.permutation(resample(rng, weights, settings(plan).migrants))])
    return np.concatenate(parts)


def merged(plan: Plan, population: Population, migrants: Mapping[str, Genomes], turn: Turn) -> Population:
    """Return the population in which migrants took the places of as many others of their class, at most of half.

    Sites take turns in the order of their names, so that none is left out where a class has few places. Migrants come
    first: what is voted on next begins there.
    """
    parts = []
    for cls in range(len(plan.data.classes)):
        own = population.of_class(cls)
        if not migrants:
            parts.append(own)
            continue
        each = settings(plan).migrants
        rows = [migrants[site][cls * each : (cls + 1) * each] for site in sorted(migrants)]
        arriving = np.stack(rows, axis=1).reshape(-1, population.genomes.shape[1])[: len(own) // 2]
        order = stream(plan.seed, "arrivals", turn.number, cls).permutation(len(own))
        staying = np.sort(order[: len(own) - len(arriving)])
        genomes = np.concatenate([arriving, own.genomes[staying]])
        parts.append(Population(genomes=genomes, classes=own.classes))
    return join(parts)


def migrants_shape(plan: Plan, genome_size: int) -> tuple[int, int]:
    """Return the shape of what a site sends home: a public number of candidates, whatever it holds."""
    return len(plan.data.classes) * settings(plan).migrants, genome_size
