"""One institution: bytes of a question in, bytes of an answer out, and nothing else.

Everything that could fail without privacy loss (the question's form, the plan's limits, the candidates) is checked
before the charge; everything after the charge is noise and storage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.client.guard import Guard
from patevolve.client.private_index import PrivateIndex
from patevolve.shared.encoder.head import Head
from patevolve.shared.errors import DataError, MessageError
from patevolve.shared.evolution.breed import variations
from patevolve.shared.evolution.population import shares as divided
from patevolve.shared.messages import Question, decode_question, digest
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.ledger import AnswerKey
from patevolve.shared.products import products
from patevolve.shared.protocols import Encoder, Generator, Genomes
from patevolve.shared.schedule import Ask, find
from patevolve.shared.tally import ExactTally
from patevolve.shared.votes import ballots
from patevolve.shared.votes.choices import choice_scores
from patevolve.shared.votes.confidence import confidence
from patevolve.shared.votes.copies import copies
from patevolve.shared.votes.gradients import gradients

Rendered = Callable[[Genomes, NDArray[np.int64]], NDArray[np.float64]]  # candidates to (P, d) public features
Teach = Callable[[NDArray[np.float64]], NDArray[np.int64]]  # (P, d) features -> (teachers, P) classes, −1 to abstain
Confide = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]  # (P, d), (P,) -> (teachers, P)

KEPT = 12  # sets of candidates whose features a process keeps: those of a question and its variations


@dataclass(frozen=True, slots=True, kw_only=True)
class Institution:
    """A site's side of the protocol.

    cohort:  hash of the plan and the sites that share the tally; part of what makes a question the same question
    head:    the site's private head, in whose space it votes for neighbours; None for a plan without one
    teach:   the site's PATE teachers, trained on first use
    confide: how sure the site's classifiers are of candidates; None where the plan never asks
    """

    agreed: Agreed
    asks: tuple[Ask, ...]
    cohort: str
    guard: Guard
    index: PrivateIndex
    encoder: Encoder
    generator: Generator
    teach: Teach
    rendered: Rendered
    head: Head | None = None
    confide: Confide | None = None

    def handle(self, data: bytes) -> bytes:
        """Return the answer to a question: the stored bytes if it was answered, else a newly charged answer.

        Raises MessageError for anything that is not a question of this plan, BudgetError and LedgerError from the
        guard. Nothing is charged when an error is raised before the charge.
        """
        question = decode_question(data)
        ask = self._permitted(question)
        key = AnswerKey(
            plan_sha256=self.agreed.sha256,
            run=question.run,
            question=question.name,
            question_sha256=digest(data),
            cohort_sha256=self.cohort,
        )
        stored = self.guard.stored(key)
        return stored if stored is not None else self.guard.release(question, ask, key, self._tally(question, ask))

    def check_plan(self, question: Question) -> None:
        """Raise MessageError unless the question is one of the site's own plan."""
        if question.plan != self.agreed.sha256:
            raise MessageError(
                f"a question of plan {question.plan[:12]}… found; this site agreed to {self.agreed.sha256[:12]}…."
            )

    def _permitted(self, question: Question) -> Ask:
        self.check_plan(question)
        ask = find(self.asks, question.name)
        if ask.kind != question.kind:
            raise MessageError(
                f"question {question.name!r} of kind {question.kind!r} found; the plan says {ask.kind!r}."
            )
        return ask

    def _tally(self, question: Question, ask: Ask) -> ExactTally:
        members, held_out = self.index.members, self.index.held_out
        classes = len(self.agreed.plan.data.classes)
        match ask.kind:
            case "counts":
                return ballots.counts(members.electorate, members.records.classes, ask.bounds)
            case "prototypes" | "gradients":
                return self._embedded(question, ask, classes)
            case "neighbours":
                features, labels = self._ahead(question, self._candidates(question, classes, ask.bounds.size))
                nearest = self.agreed.plan.questions.neighbours.nearest
                return ballots.neighbours(
                    members.electorate,
                    self._own_view(members.features),
                    members.records.classes,
                    (self._own_view(features), labels),
                    nearest=nearest,
                    bounds=ask.bounds,
                )
            case "choices" | "confidence" | "copies":
                return self._judged(question, ask, classes)
            case "labels":
                features, _ = self._candidates(question, classes, ask.bounds.size // classes)
                return ballots.labels(self.teach(features), classes, ask.bounds)
            case "score":
                weights, bias = _student(question, classes, self.encoder.dimension)
                predicted = np.argmax(products(held_out.features, weights.T) + bias, axis=1)  # label: own-prediction
                return ballots.score(held_out.electorate, predicted == held_out.records.classes, ask.bounds)
            case "islands":
                raise MessageError(f"{question.name!r} asked as a question found; islands have a request of their own.")

    def _embedded(self, question: Question, ask: Ask, classes: int) -> ExactTally:
        """Return sums over the records' embeddings: of each class, or of what would correct a public classifier."""
        members = self.index.members
        voters, own = members.electorate, members.records.classes
        if ask.kind == "gradients":
            weights = _classifier(question, classes, self.encoder.embedding_size)
            return gradients(voters, lambda some: self.encoder.embed(members.features[some]), own, weights, ask.bounds)
        code = ballots.class_code(classes, self.agreed.plan.questions.prototypes.contrast)
        return ballots.prototypes(voters, self.encoder.embed(members.features), own, code=code, bounds=ask.bounds)

    def _judged(self, question: Question, ask: Ask, classes: int) -> ExactTally:
        """Return what this site's own data say of candidates, without a ballot that adds up over sites by itself."""
        plan, members = self.agreed.plan, self.index.members
        features, labels = self._candidates(question, classes, ask.bounds.size)
        if ask.kind == "copies":
            within = plan.questions.copies.within
            return copies(members.electorate, members.features, features, within=within, bounds=ask.bounds)
        if ask.kind == "confidence":
            if self.confide is None:
                raise MessageError(f"question {question.name!r} to a site without classifiers found.")
            return confidence(self.confide(features, labels), ask.bounds)
        if not np.array_equal(labels, np.repeat(np.arange(classes), divided(len(labels), classes))):
            raise MessageError(f"question {question.name!r} with candidates out of the order of their classes found.")
        return choice_scores(
            members.features,
            members.records.classes,
            (features, labels),
            count=classes,
            tau=plan.evolution.tau,
        )

    def _own_view(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return features as the site's private head sees them, or as they are without one in the plan."""
        if not self.agreed.plan.encoder.head.share:
            return features
        if self.head is None:
            raise DataError("the plan asks for a private head and this site has none yet. Run patevolve client train.")
        return self.head.apply(features)

    def _candidates(self, question: Question, classes: int, most: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        genomes, labels = self.candidates_of(question, classes, most)
        return self.rendered(genomes, labels), labels

    def candidates_of(self, question: Question, classes: int, most: int) -> tuple[Genomes, NDArray[np.int64]]:
        """Return the candidates' genomes and classes. Raises MessageError unless they number what the plan says."""
        genomes, labels = question.arrays.get("genomes"), question.arrays.get("classes")
        if genomes is None or labels is None or genomes.ndim != 2 or labels.dtype != np.int64:
            raise MessageError(f"question {question.name!r} without genomes (P, G) and int64 classes (P,) found.")
        expected = (most, self.generator.genome_size)
        if genomes.shape != expected or labels.shape != (most,):
            raise MessageError(
                f"question {question.name!r} with genomes {genomes.shape} found; the plan says {expected}."
            )
        if not (np.isfinite(genomes).all() and (labels >= 0).all() and (labels < classes).all()):
            raise MessageError(
                f"question {question.name!r} with candidates outside the plan's classes or not finite found."
            )
        return genomes.astype(np.float64), labels

    def _ahead(
        self, question: Question, candidates: tuple[NDArray[np.float64], NDArray[np.int64]]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return candidates with the mean features of the plan's variations of them, if it looks ahead; all public."""
        plan, labels = self.agreed.plan, candidates[1]
        if not plan.evolution.lookahead:
            return candidates
        number = plan.evolution.generations - plan.questions.neighbours.times + int(question.name.rpartition("/")[2])
        genomes = question.arrays["genomes"].astype(np.float64)
        varied = variations(self.generator, genomes, labels, plan.evolution, (plan.seed, number))
        return np.mean([self.rendered(some, labels) for some in varied], axis=0, dtype=np.float64), labels


def _classifier(question: Question, classes: int, size: int) -> NDArray[Any]:
    weights = question.arrays.get("weights")
    if weights is None or weights.shape != (classes, size) or not np.isfinite(weights).all():
        raise MessageError(f"question {question.name!r} without finite weights of {classes} × {size} found.")
    return weights


def _student(question: Question, classes: int, dimension: int) -> tuple[NDArray[Any], NDArray[Any]]:
    weights, bias = question.arrays.get("weights"), question.arrays.get("bias")
    if weights is None or bias is None or weights.shape != (dimension, classes) or bias.shape != (classes,):
        raise MessageError(
            f"question {question.name!r} without a linear student of {dimension} × {classes} weights found."
        )
    if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise MessageError(f"question {question.name!r} with a student that is not finite found.")
    return weights, bias


def render_once(generator: Generator, encoder: Encoder) -> Rendered:
    """Return candidates' features, kept for the last few: sites of one process are asked the same question."""
    last: dict[bytes, NDArray[np.float64]] = {}

    def rendered(genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[np.float64]:
        key = hashlib.sha256(genomes.tobytes() + classes.tobytes()).digest()
        if key not in last:
            features = encoder.encode(generator.render(genomes, classes))
            if len(last) >= KEPT:
                del last[next(iter(last))]  # the oldest
            last[key] = features
        return last[key]

    return rendered
