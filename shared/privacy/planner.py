"""The budget arithmetic: from a plan's ε, δ and shares to the noise of each question.

Every share is a fraction of the largest zCDP parameter ρ that converts to the plan's (ε, δ); the parts' ρ add up
(Bun and Steinke 2016, Lemma 1.7), so any split of shares keeps the whole within the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

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
