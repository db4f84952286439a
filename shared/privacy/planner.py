"""The budget arithmetic: from a plan's ε, δ and shares to the noise of each question.

Every share is a fraction of the largest zCDP parameter ρ that converts to the plan's (ε, δ); the parts' ρ add up
(Bun and Steinke 2016, Lemma 1.7), so any split of shares keeps the whole within the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from patevolve.shared import checks
from patevolve.shared.messages import KINDS, Kind
from patevolve.shared.plan import Plan
from patevolve.shared.plan_sections import Asking, Islands
from patevolve.shared.privacy import accountant, odds
from patevolve.shared.privacy.calibrate import gaussian_noise_multiplier, rho_for
from patevolve.shared.privacy.events import DiscreteGaussian

Trust = Literal["each-site", "secure-sum"]
PURE: frozenset[Kind] = frozenset({"choices", "confidence"})  # pure-DP mechanisms, whole at each site
MOST_FLIPS = 0.1  # PATE labels pay where noise overturns fewer of the unanimous votes than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part of the plan may spend.

    share, rho:        of the plan's ρ, for all ``times`` questions of this kind together
    noise_multiplier:  σ per unit of L2 sensitivity, of each of them
    """

    kind: Kind
    share: float
    times: int
    rho: float
    noise_multiplier: float

    @property
    def event(self) -> DiscreteGaussian:
        """Cost of all its questions: that of Gaussian noise; other mechanisms of the same ρ cost at most as much."""
        return DiscreteGaussian(sigma=self.noise_multiplier, l2=1.0, count=self.times)


def asking(plan: Plan, kind: Kind) -> Asking:
    """Return the plan's settings for one kind of question."""
    settings: dict[Kind, Asking] = {
        "counts": plan.questions.counts,
        "prototypes": plan.questions.prototypes,
        "gradients": plan.questions.gradients,
        "neighbours": plan.questions.neighbours,
        "choices": plan.questions.choices,
        "confidence": plan.questions.confidence,
        "labels": plan.questions.labels,
        "copies": plan.questions.copies,
        "score": plan.questions.score,
        "islands": _of_islands(plan.islands),
    }
    return settings[kind]


def _of_islands(islands: Islands | None) -> Asking:
    """Return what islands ask of private records: nothing where the plan has none, or gives them no share."""
    if islands is None or not islands.share:
        return Asking()
    return Asking(share=islands.share, times=islands.times, candidates=islands.candidates, nearest=islands.nearest)


def kinds_asked(plan: Plan) -> tuple[Kind, ...]:
    """Return the kinds of question for which the plan has a share: what its answers may tell about."""
    return tuple(kind for kind in KINDS if asking(plan, kind).share > 0)


def spend(plan: Plan) -> tuple[Part, ...]:
    """Return the parts of the plan that are asked, in order, with their noise.

    Guarantee: the accountant's ε of all of them together is at most the plan's.
    """
    shares = math.fsum(asking(plan, kind).share for kind in KINDS)
    rho = rho_for(plan.privacy.epsilon, plan.privacy.delta) / max(1.0, shares)
    parts = _parts(plan, rho)
    # Rounding of the parts can end above the whole by a few ulp.
    while not composed(parts, plan.privacy.delta).epsilon <= plan.privacy.epsilon:
        rho *= 1 - 2**-50
        parts = _parts(plan, rho)
    return parts


def _parts(plan: Plan, rho: float) -> tuple[Part, ...]:
    parts = []
    for kind in kinds_asked(plan):
        part = asking(plan, kind)
        own = rho * part.share
        multiplier = gaussian_noise_multiplier(own / part.times)
        parts.append(Part(kind=kind, share=part.share, times=part.times, rho=own, noise_multiplier=multiplier))
    return tuple(parts)


def composed(parts: tuple[Part, ...], delta: float) -> accountant.Epsilon:
    """Return the ε of these parts together and the Rényi order at which it is reached; 0 for none."""
    return accountant.epsilon(accountant.compose([part.event for part in parts]), delta)


def pooled(plan: Plan, sites: int | None = None, trust: Trust | None = None) -> float:
    """Return how much larger the noise of the sum over ``sites`` is than a question's own; defaults: the plan's.

    Islands have no sum over sites: a site's votes on its own carry its own whole noise, whatever is returned here.
    each-site:   √sites, since every site adds the whole noise
    secure-sum:  √(n/(n − d − t)), since the shares of droppable and colluding sites come on top when they are there
    """
    count = plan.sites.count if sites is None else checks.integer(sites=sites, at_least=1)
    if (trust or plan.privacy.trust) == "each-site":
        return math.sqrt(count)
    return math.sqrt(count / honest(plan, count))


def honest(plan: Plan, sites: int | None = None) -> int:
    """Return the number of sites less drop-outs less colluders. Raises ParameterError unless at least one is left."""
    count = plan.sites.count if sites is None else sites
    return checks.integer(honest=count - plan.privacy.dropouts - plan.privacy.colluders, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """How the released samples get their labels, and why; ``flip``: how often noise overturns a unanimous vote.

    It is 0 for a classifier: its noise shows in the classifier itself.
    """

    method: Literal["votes", "pate", "classifier"]
    reason: str
    flip: float


def choose_labels(plan: Plan) -> LabelChoice:
    """Return whether PATE teachers label the samples; a function of the plan alone, so it costs nothing.

    Teachers pay where the noise seldom overturns even a unanimous vote: fewer than 10 % of the labels.
    """
    part = next((part for part in spend(plan) if part.kind == "labels"), None)
    steps = plan.questions.gradients
    if steps.share and (plan.release.labels == "classifier" or (plan.release.labels == "auto" and part is None)):
        why = f"the classifier of {steps.times} step(s) says what each sample shows"
        return LabelChoice(method="classifier", reason=why, flip=0.0)
    if part is None:
        return LabelChoice(
            method="votes", reason="class-conditional votes: the plan gives teacher labels no budget", flip=1.0
        )
    teachers, std = plan.sites.count * plan.questions.labels.teachers, label_noise(plan, part)
    flip = flip_probability(float(teachers), std, len(plan.data.classes))
    words = (
        f"{teachers} teachers in all, noise of standard deviation {std:.1f} votes: even a unanimous vote is overturned"
    )
    chosen = plan.release.labels if plan.release.labels != "auto" else ("pate" if flip < MOST_FLIPS else "votes")
    why = f"{words} with probability {flip:.0%}"
    name = "PATE labels (GNMax)" if chosen == "pate" else "class-conditional votes"
    return LabelChoice(method=chosen, reason=f"{name}: {why}", flip=flip)


def label_noise(plan: Plan, part: Part, sites: int | None = None) -> float:
    """Return the standard deviation, in votes, of the noise on each summed count: Δ₂ = √(2Q) for Q candidates."""
    return part.noise_multiplier * math.sqrt(2 * plan.questions.labels.candidates) * pooled(plan, sites)


def flip_probability(margin: float, std: float, classes: int) -> float:
    """Return the probability that noise of ``std`` on each count lets a rival beat a class ahead of all by a margin."""
    return 1.0 - odds.unanimous(margin, std, classes)
