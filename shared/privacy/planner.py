"""The budget arithmetic: from a plan's ε, δ and shares to the noise of each question.

Every share is a fraction of the largest zCDP parameter ρ that converts to the plan's (ε, δ); the parts' ρ add up
(Bun and Steinke 2016, Lemma 1.7), so any split of shares keeps the whole within the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from patevolve.shared.messages import KINDS, Kind
from patevolve.shared.plan import Asking, Plan
from patevolve.shared.privacy.calibrate import gaussian_noise_multiplier, rho_for


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


def asking(plan: Plan, kind: Kind) -> Asking:
    """Return the plan's settings for one kind of question."""
    settings: dict[Kind, Asking] = {
        "counts": plan.questions.counts,
        "prototypes": plan.questions.prototypes,
        "neighbours": plan.questions.neighbours,
        "labels": plan.questions.labels,
        "score": plan.questions.score,
    }
    return settings[kind]


def spend(plan: Plan) -> tuple[Part, ...]:
    """Return the parts of the plan that are asked, in order, with their noise."""
    rho = rho_for(plan.privacy.epsilon, plan.privacy.delta)
    parts = []
    for kind in KINDS:
        part = asking(plan, kind)
        if part.share > 0:
            own = rho * part.share
            multiplier = gaussian_noise_multiplier(own / part.times)
            parts.append(Part(kind=kind, share=part.share, times=part.times, rho=own, noise_multiplier=multiplier))
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """How the released samples get their labels, and why."""

    method: Literal["votes", "pate"]
    reason: str
    flip: float


def choose_labels(plan: Plan) -> LabelChoice:
    """Return whether PATE teachers label the samples; a function of the plan alone, so it costs nothing.

    Teachers pay where the noise seldom overturns even a unanimous vote: below 10 % of the labels.
    """
    part = next((part for part in spend(plan) if part.kind == "labels"), None)
    if part is None:
        return LabelChoice(
            method="votes", reason="class-conditional votes: the plan gives teacher labels no budget", flip=1.0
        )
    teachers = plan.sites.count * plan.questions.labels.teachers
    std = part.noise_multiplier * math.sqrt(2 * plan.questions.labels.candidates)
    if plan.privacy.trust == "each-site":
        std *= math.sqrt(plan.sites.count)
    flip = flip_probability(float(teachers), std, len(plan.data.classes))
    words = (
        f"{teachers} teachers in all, noise of standard deviation {std:.1f} votes: even a unanimous vote is overturned"
    )
    chosen = plan.release.labels if plan.release.labels != "auto" else ("pate" if flip < 0.1 else "votes")
    why = f"{words} with probability {flip:.0%}"
    name = "PATE labels (GNMax)" if chosen == "pate" else "class-conditional votes"
    return LabelChoice(method=chosen, reason=f"{name}: {why}", flip=flip)


def flip_probability(margin: float, std: float, classes: int) -> float:
    """Return the probability, by the union bound over rivals, that noise of ``std`` on each count beats a margin."""
    return min(1.0, (classes - 1) * 0.5 * math.erfc(margin / (2.0 * std)))
