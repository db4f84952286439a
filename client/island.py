"""A site's island: candidates in, migrants out; what becomes of them in between happens on the site's own device.

Without a share of the budget no private record is read. With one, the site's own units vote on the sub-population, the
tally gets the whole noise and its charge in the site's own ledger, and the migrants are chosen from that tally alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.client.institution import Institution
from patevolve.shared import islands
from patevolve.shared.envelopes import cohort_sha256
from patevolve.shared.errors import MessageError
from patevolve.shared.evolution.population import Population, shares
from patevolve.shared.islands import Turn
from patevolve.shared.messages import Migrants, Question, decode_question, digest, encode_migrants
from patevolve.shared.privacy.ledger import AnswerKey
from patevolve.shared.protocols import Genomes
from patevolve.shared.schedule import find
from patevolve.shared.tally import NoisyTally
from patevolve.shared.tools import Tools
from patevolve.shared.votes import ballots
from patevolve.shared.votes.lattice import estimate

ALONE = b"island"  # an island's votes stand in no sum: their cohort is this site alone, and no other question's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Island:
    """What was sent to the site, read and checked."""

    site: Institution
    question: Question
    turn: Turn
    settlers: Population
    model: NDArray[np.float64]

    @property
    def name(self) -> str:
        return self.site.guard.policy.site

    @property
    def tools(self) -> Tools:
        return Tools(generator=self.site.generator, encoder=self.site.encoder)

    def pool(self) -> Population:
        plan = self.site.agreed.plan
        return islands.evolved(plan, self.tools, self.model, self.settlers, self.turn, site=self.name)

    def chosen(self, pool: Population, votes: NDArray[np.float64] | None = None) -> Genomes:
        return islands.chosen(self.site.agreed.plan, self.tools, pool, self.turn, site=self.name, votes=votes)


def evolve(site: Institution, data: bytes) -> bytes:
    """Return the migrants of the site's island: the same bytes whenever it is asked again.

    Raises MessageError for anything but what the plan sends to islands, BudgetError and LedgerError from the guard.
    Nothing is charged when an error is raised before the charge.
    """
    island = _read(site, decode_question(data))
    if islands.settings(site.agreed.plan).share:
        return _voted(island, digest(data))
    genomes = island.chosen(island.pool())  # label: free-island
    return encode_migrants(Migrants(question=digest(data), site=island.name, genomes=genomes, head=""))


def _voted(island: _Island, question_sha256: str) -> bytes:
    site, plan = island.site, island.site.agreed.plan
    key = AnswerKey(
        plan_sha256=site.agreed.sha256,
        run=island.question.run,
        question=island.question.name,
        question_sha256=question_sha256,
        cohort_sha256=cohort_sha256(site.agreed.sha256, [island.name], ALONE),
    )
    stored = site.guard.stored(key)
    if stored is not None:
        return stored
    pool, ask = island.pool(), find(site.asks, island.question.name)
    members, nearest = site.index.members, islands.settings(plan).nearest
    exact = ballots.neighbours(  # label: island-votes
        members.electorate,
        members.features,
        members.records.classes,
        (site.rendered(pool.genomes, pool.classes), pool.classes),
        nearest=nearest,
        bounds=ask.bounds,
    )

    def choose(noisy: NoisyTally) -> Genomes:
        return island.chosen(pool, estimate(noisy, ask.bounds))

    return site.guard.emigrate(ask, key, exact, choose)


def _read(site: Institution, question: Question) -> _Island:
    """Return what was sent. Raises MessageError unless it is what the plan sends to islands."""
    site.check_plan(question)
    if question.kind != "islands":
        raise MessageError(f"a question of kind {question.kind!r} found; an island takes candidates.")
    plan = site.agreed.plan
    turn, most = islands.turn_of(plan, question.name), islands.settings(plan).candidates
    classes = len(plan.data.classes)
    genomes, labels = site.candidates_of(question, classes, most)
    if not np.array_equal(labels, np.repeat(np.arange(classes), shares(most, classes))):
        raise MessageError(f"{question.name!r} with other numbers of candidates of a class than the plan's found.")
    width = site.encoder.statistic(site.rendered(genomes[:1], labels[:1])).shape[1]
    model = question.arrays.get("model")
    if model is None or model.shape != (classes, width) or not np.isfinite(model).all():
        raise MessageError(f"{question.name!r} without a finite model of {classes} × {width} numbers found.")
    return _Island(
        site=site, question=question, turn=turn, settlers=Population(genomes=genomes, classes=labels), model=model
    )
