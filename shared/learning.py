"""What a run learns of the records before evolution begins: class shares, prototypes, and a classifier step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.evolution.descend import averaged, classified, preconditioner, stepped
from patevolve.shared.evolution.population import Population
from patevolve.shared.generators.pool import Pool
from patevolve.shared.inquiry import Estimate, Inquiry
from patevolve.shared.plan import Plan
from patevolve.shared.protocols import Sums
from patevolve.shared.tools import Tools, features_of, samples
from patevolve.shared.votes.ballots import class_code
from patevolve.shared.votes.gradients import gradient_of

FEWEST = 10.0  # a class's noisy count is taken as at least this many units: a mean over fewer is noise
RAREST = 0.1  # a class's share is at least this fraction of an equal share: noise never empties a class
BATCH = 5000  # candidates whose embeddings are made at a time
PUBLIC = 10_000  # public draws that say how embeddings vary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learnt:
    """What was released before evolution began.

    proportions:  (classes,) class shares; equal if the plan does not ask for counts
    model:        (classes, m) what the encoder makes of the noisy prototypes, or None if the plan does not ask for them
    blur:         (classes,) expected squared length of the noise in a class's row of the model, where it is a mean
    classifier:   (classes, e) weights on embeddings, or None if the plan does not ask for gradients
    """

    proportions: NDArray[np.float64]
    model: NDArray[np.float64] | None
    blur: NDArray[np.float64] | float = 0.0
    classifier: NDArray[np.float64] | None = None


def learn(inquiry: Inquiry, tools: Tools) -> Learnt:
    """Ask for class counts, prototypes and the steps of a classifier, as far as the plan has them."""
    plan = inquiry.agreed.plan
    classes = len(plan.data.classes)
    counts = np.full(classes, plan.sites.count * plan.sites.expected_units / classes)
    asked = [name for name in ("counts", "prototypes") if inquiry.asked(name)]
    found = dict(zip(asked, inquiry.ask_all({name: {} for name in asked}), strict=True))
    if "counts" in found:
        counts = np.maximum(found["counts"].values, FEWEST)
    model, blur = None, np.zeros(classes)
    if "prototypes" in found:
        sums = _decoded(plan, found["prototypes"], counts)
        model, blur = tools.encoder.model(sums), sums.values.shape[1] * (sums.std / counts) ** 2
    proportions = np.clip(counts / counts.sum(), RAREST / classes, None)
    return Learnt(
        proportions=proportions / proportions.sum(),
        model=model,
        blur=blur,
        classifier=_descended(inquiry, tools, float(counts.sum())) if plan.questions.gradients.share else None,
    )


def _descended(inquiry: Inquiry, tools: Tools, units: float) -> NDArray[np.float64]:
    """Return the weights of a classifier after all of the plan's steps; each asks for the gradient where it stands."""
    plan = inquiry.agreed.plan
    public = tools.encoder.embed(_public_features(plan, tools))
    weights = np.zeros((len(plan.data.classes), public.shape[1]))
    path, inverse = [], None
    for number in range(1, plan.questions.gradients.times + 1):
        tally = inquiry.ask(f"gradients/{number}", {"weights": weights})
        if inverse is None:  # the noise is the same in every step
            inverse = preconditioner(public, gradient_of(tally.std, 1).item() / units)
        weights = stepped(weights, gradient_of(tally.values, len(weights)) / units, inverse)
        path.append(weights)
    return averaged(path)


def told_by(classifier: NDArray[np.float64], tools: Tools, candidates: Population) -> NDArray[np.int64]:
    """Return (P,) the class that the classifier sees in each candidate; free, the classifier being released."""
    parts = [np.zeros(0, np.int64)]
    for start in range(0, len(candidates), BATCH):
        some = candidates.pick(np.arange(start, min(start + BATCH, len(candidates))))
        parts.append(classified(tools.encoder.embed(features_of(tools, some.genomes, some.classes)), classifier))
    return np.concatenate(parts)


def _public_features(plan: Plan, tools: Tools) -> NDArray[np.float64]:
    """Return features of public candidates: a whole pool, or the generator's own draws of every class."""
    if isinstance(tools.generator, Pool):
        return features_of(tools, tools.generator.everything(), 0)
    classes = len(plan.data.classes)
    values, _ = samples(tools.generator, classes, -(-PUBLIC // classes), (plan.seed, "public features"))
    return tools.encoder.encode(values)


def _decoded(plan: Plan, tally: Estimate, counts: NDArray[np.float64]) -> Sums:
    """Return the sums per class that the class code had mixed, with the noise that each then carries."""
    inverse = np.linalg.inv(class_code(len(counts), plan.questions.prototypes.contrast))
    apart = inverse / counts[:, None] - inverse.sum(axis=0) / counts.sum()
    return Sums(
        values=inverse @ tally.values.reshape(len(counts), -1),
        counts=counts,
        std=tally.std * np.linalg.norm(inverse, axis=1),
        apart_std=tally.std * np.linalg.norm(apart, axis=1),
        pooled_std=tally.std * float(np.linalg.norm(inverse.sum(axis=0))) / float(counts.sum()),
    )
