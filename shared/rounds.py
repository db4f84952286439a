"""The whole run in one sitting: learn once, evolve for free, vote, label.

``local``, ``simulate`` and a deployment run this same loop over another ``Institutions``. Private data enters only
through ``inquiry.ask`` (in steps.py and labels.py); everything else is public randomness and free post-processing of
released tallies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import copies, islands, labels, learning, steps
from patevolve.shared.copies import Screening
from patevolve.shared.evolution.population import Population
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.labels import Labelling
from patevolve.shared.learning import Learnt
from patevolve.shared.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """One generation: who was asked for it, and how it stands, from public values alone.

    spread:  root mean square distance of the candidates' features from their class mean
    match:   distance of the candidates' mean embedding from the released prototypes; NaN without prototypes
    margins: how much better each candidate fits its class's prototype than any other's; empty without prototypes
    """

    number: int
    asked: tuple[str, ...]
    population: Population
    spread: float
    match: float
    margins: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a run ends with: ``population`` holds the candidates to release, ``labelling`` their labels.

    screening:  how near-duplicates of private records were dropped; None if the plan does not ask
    """

    learnt: Learnt
    population: Population
    labelling: Labelling
    screening: Screening | None = None


def run(inquiry: Inquiry, tools: Tools, watch: Callable[[Generation], None]) -> Outcome:
    """Run the plan and return its outcome; ``watch`` sees every generation, 0 being the first draw.

    Resumes where the run folder ends: kept tallies are not asked again and kept generations are not evolved again.
    Raises QuorumError, or a site's own error in process, when a question cannot be answered.
    """
    plan = inquiry.agreed.plan
    learnt = learning.learn(inquiry, tools)
    population = steps.first(plan, tools, learnt)
    seen = [_seen(0, (), population, tools, learnt)]
    _show(inquiry, watch, seen[0])
    for number in range(1, plan.evolution.generations + 1):
        kept = inquiry.folder.load_generation(number)
        if kept is None:
            population, asked = steps.generation(inquiry, tools, learnt, population, number)
            population, evolved = islands.exchange(inquiry, tools, learnt, population, number)
            asked = (*asked, *evolved)
            inquiry.folder.save_generation(number, population.genomes, population.classes, asked)
        else:
            population, asked = kept
        seen.append(_seen(number, asked, population, tools, learnt))
        _show(inquiry, watch, seen[-1])
    chosen = steps.final(plan, tools, learnt, _best(seen).population if plan.evolution.rollback else population)
    labelling = labels.decide(inquiry, tools, learnt, chosen)
    stays, screening = copies.screen(inquiry, chosen)
    labelled = replace(labelling, classes=labelling.classes[stays])
    return Outcome(learnt=learnt, population=chosen.pick(stays), labelling=labelled, screening=screening)


def _best(seen: Sequence[Generation]) -> Generation:
    """Return the generation closest to the released prototypes; the last one if none says how close it is."""
    known = [generation for generation in seen if not np.isnan(generation.match)]
    return min(known, key=lambda generation: generation.match) if known else seen[-1]


def _show(inquiry: Inquiry, watch: Callable[[Generation], None], generation: Generation) -> None:
    measured = {"spread": generation.spread, "match": generation.match}
    inquiry.folder.note_progress({"generation": generation.number, "asked": list(generation.asked), **measured})
    watch(generation)


def _seen(number: int, asked: tuple[str, ...], population: Population, tools: Tools, learnt: Learnt) -> Generation:
    found = steps.measure(population, tools, learnt)
    return Generation(
        number=number,
        asked=asked,
        population=population,
        spread=found.spread,
        match=found.match,
        margins=found.margins,
    )
