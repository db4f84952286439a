"""A proposed split of the budget, with its objective written down (docs/decisions/0002-budget-split.md).

Parts that steer the result share the budget so that the weighted sum of their expected squared errors is least. Under
zCDP a part with share s has noise variance ∝ 1/s, so its squared error is c/s with c that at share 1; Σ w·c/s over
shares that add up to 1 is least at s ∝ √(w·c) (Cauchy-Schwarz). Parts with a threshold (labels, score) first take what
makes them usable, or nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from patevolve.shared.messages import KINDS, Kind
from patevolve.shared.plan import Plan
from patevolve.shared.privacy import advice, odds
from patevolve.shared.privacy.calibrate import gaussian_noise_multiplier, rho_for
from patevolve.shared.privacy.planner import Part, asking

# How much a part's squared error matters to the result, as coarse as the evidence for it (docs/planning.md).
WEIGHTS: Mapping[str, Mapping[Kind, float]] = {
    "table": {"counts": 1.0, "prototypes": 1.0, "neighbours": 0.0},
    "image": {"counts": 1.0, "prototypes": 1.0, "neighbours": 4.0},
    "text": {"counts": 1.0, "prototypes": 1.0, "neighbours": 4.0},  # as images of a pool: no evidence of their own
}
ARTICLE: Mapping[Kind, float] = {"prototypes": 0.6, "neighbours": 0.4}  # the seed article: encoder 60 %, fitness 40 %
MOST_LABELS = 0.5  # teachers that need more of the budget than this are left out
MOST_SCORE = 0.1  # a score steers nothing, so it never takes more
SCORE_STD = 0.02  # standard deviation of the accuracy that a score aims for


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares by part, each part's noise relative to what it must show, and their weighted sum of squares.

    noise_to_signal:  of the parts that the plan could ask
    loss:             None where a weighted part is not asked: its error is not known from the plan
    """

    name: str
    shares: Mapping[Kind, float]
    noise_to_signal: Mapping[Kind, float]
    loss: float | None


def splits(plan: Plan) -> tuple[Split, ...]:
    """Return the plan's own split, the proposed one (if there is anything to propose) and the seed article's."""
    own = {kind: asking(plan, kind).share for kind in KINDS if asking(plan, kind).share > 0}
    found = [_split(plan, "this plan", own)]
    shares = propose(plan)
    if shares:
        found.append(_split(plan, "proposed", shares))
    if plan.evolution.selection == "soft":
        found.append(_split(plan, "seed article", ARTICLE))
    return tuple(found)


def propose(plan: Plan) -> dict[Kind, float]:
    """Return proposed shares in whole per cent that add up to 1; empty where nothing steers the result.

    A function of the plan alone. The plan's own shares do not enter, only which parts it could ask.
    """
    unit = {kind: _noise(plan, kind, 1.0) for kind in KINDS if _possible(plan, kind)}
    costs = {kind: weight * unit[kind] ** 2 for kind, weight in weights(plan).items() if math.isfinite(unit[kind])}
    if not costs:
        return {}
    fixed = _thresholds(plan, unit)
    rest = 1.0 - math.fsum(fixed.values())
    whole = math.fsum(math.sqrt(cost) for cost in costs.values())
    exact = fixed | {kind: rest * math.sqrt(cost) / whole for kind, cost in costs.items()}
    return _whole_percents({kind: exact[kind] for kind in KINDS if kind in exact})


def weights(plan: Plan) -> dict[Kind, float]:
    """Return the weights of the parts that steer this plan's result; parts of weight 0 are left out."""
    if plan.evolution.selection == "none" or (plan.questions.gradients.share and not plan.questions.prototypes.share):
        return {}  # nothing steers it, or a classifier alone: how many steps it takes is the plan's to say
    alone: dict[str, Kind] = {"histogram": "neighbours", "pcevolve": "choices", "classifier-laplace": "confidence"}
    if plan.evolution.selection in alone:  # votes alone steer it; counts only if the plan wants class shares
        kinds: tuple[Kind, ...] = ("counts", alone[plan.evolution.selection])
        return {kind: 1.0 for kind in kinds if asking(plan, kind).share > 0 and _possible(plan, kind)}
    found = WEIGHTS[plan.data.kind]
    return {kind: weight for kind, weight in found.items() if weight > 0 and _possible(plan, kind)}


def loss(plan: Plan, shares: Mapping[Kind, float]) -> float | None:
    """Return Σ w·(noise/signal)² over the parts that steer the result; None where one is not asked, or none steers."""
    total, steering = 0.0, weights(plan)
    if not steering:
        return None
    for kind, weight in steering.items():
        if not shares.get(kind):
            return None
        total += weight * _noise(plan, kind, shares[kind]) ** 2
    return total if math.isfinite(total) else None


def _split(plan: Plan, name: str, shares: Mapping[Kind, float]) -> Split:
    asked = {kind: share for kind, share in shares.items() if _possible(plan, kind)}
    noise = {kind: _noise(plan, kind, share) for kind, share in asked.items()}
    return Split(name=name, shares=dict(shares), noise_to_signal=noise, loss=loss(plan, shares))


def _possible(plan: Plan, kind: Kind) -> bool:
    """Return whether the plan says all that a question of this kind needs besides a share."""
    questions = plan.questions
    match kind:
        case "neighbours":
            asked = questions.neighbours.candidates >= len(plan.data.classes) and questions.neighbours.nearest >= 1
            return asked and questions.neighbours.times <= plan.evolution.generations
        case "choices" | "confidence" | "copies" | "islands" | "gradients":
            return asking(plan, kind).share > 0
        case "labels":
            return questions.labels.teachers >= 1 and questions.labels.candidates == plan.release.samples
        case "score":
            return plan.data.hold_out > 0 and questions.score.share > 0
        case _:
            return True


def _noise(plan: Plan, kind: Kind, share: float) -> float:
    """Return the noise to signal of a part, were it given this share."""
    rho = rho_for(plan.privacy.epsilon, plan.privacy.delta) * share
    times = asking(plan, kind).times
    multiplier = gaussian_noise_multiplier(rho / times)
    part = Part(kind=kind, share=share, times=times, rho=rho, noise_multiplier=multiplier)
    return advice.noise_to_signal(plan, part)


def _thresholds(plan: Plan, unit: Mapping[Kind, float]) -> dict[Kind, float]:
    """Return the least shares that make labels and score usable, and the plan's own of what is chosen by hand."""
    chosen: tuple[Kind, ...] = ("islands", "copies", "gradients")
    shares: dict[Kind, float] = {kind: asking(plan, kind).share for kind in chosen if kind in unit}
    if "labels" in unit and asking(plan, "labels").share > 0:
        needed = (unit["labels"] * odds.ratio_for(advice.RIGHT, len(plan.data.classes), contested=False)) ** 2
        if needed <= MOST_LABELS and plan.release.labels != "votes":
            shares["labels"] = _percent_up(needed)
        elif plan.release.labels == "pate":
            shares["labels"] = MOST_LABELS
    if "score" in unit:
        share = min(MOST_SCORE, _percent_up((unit["score"] / SCORE_STD) ** 2))
        if unit["score"] / math.sqrt(share) <= advice.SCORE_NOISE:
            shares["score"] = share
    return shares


def _percent_up(share: float) -> float:
    return math.ceil(100 * share) / 100


def _whole_percents(exact: Mapping[Kind, float]) -> dict[Kind, float]:
    """Return the shares in whole per cent, at least 1 each, that add up to 1: the largest takes the rounding."""
    percents = {kind: max(1, round(100 * share)) for kind, share in exact.items()}
    largest = max(percents, key=lambda kind: percents[kind])
    percents[largest] += 100 - sum(percents.values())
    return {kind: percent / 100 for kind, percent in percents.items()}


def with_shares(plan: Plan, shares: Mapping[Kind, float]) -> Plan:
    """Return the plan with these shares and no others. Raises PlanError where they contradict the plan."""
    kinds = [kind for kind in KINDS if kind != "islands"]
    questions = {kind: dataclasses.replace(asking(plan, kind), share=shares.get(kind, 0.0)) for kind in kinds}
    islands = plan.islands
    if islands is not None and islands.share:
        share = shares.get("islands", 0.0)
        islands = dataclasses.replace(islands, share=share, nearest=islands.nearest if share else 0)
    return dataclasses.replace(plan, questions=dataclasses.replace(plan.questions, **questions), islands=islands)
