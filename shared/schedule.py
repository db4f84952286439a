"""What a plan asks, question by question, with the noise of each: a pure function of the plan.

The coordinator asks from it and every site answers from its own copy, so that no message can lower the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from patevolve.shared.errors import MessageError, ParameterError, PlanError
from patevolve.shared.evolution.population import shares as divided
from patevolve.shared.messages import Kind
from patevolve.shared.noise.choice import ChoiceMechanism
from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.noise.discrete_laplace import DiscreteLaplaceMechanism
from patevolve.shared.noise.distributed import DiscreteGaussianShare
from patevolve.shared.noise.mechanism import Mechanism
from patevolve.shared.plan import Plan
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import Event
from patevolve.shared.privacy.filters import FixedOrderFilter
from patevolve.shared.privacy.head_part import head_events
from patevolve.shared.privacy.ledger_rows import Scope
from patevolve.shared.privacy.planner import PURE, asking, spend
from patevolve.shared.votes import ballots
from patevolve.shared.votes.choices import choices_bounds
from patevolve.shared.votes.confidence import confidence_bounds
from patevolve.shared.votes.copies import copies_bounds
from patevolve.shared.votes.gradients import gradients_bounds
from patevolve.shared.votes.lattice import LATTICE, Bounds

REPEATED: frozenset[Kind] = frozenset({"gradients", "neighbours", "choices", "confidence", "islands"})  # numbered
_LEAST_NARROW, _HALVINGS = 1 / 256, 24
_WIDEN = 1 + 1e-9  # first step by which noise grows where integer shares cost slightly more than the Gaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question of the plan.

    name:       such as ``neighbours/2``; asked at most once per run
    part:       the part of the budget it belongs to
    bounds:     what one unit can change in its tally
    mechanism:  what a site adds to its sum
    full:       whether one site's answer carries the whole noise
    scope:      "shared": one sum over the sites; "local": each site's own answer stands by itself
    """

    name: str
    kind: Kind
    part: str
    bounds: Bounds
    mechanism: Mechanism
    full: bool
    scope: Scope = "shared"

    @property
    def event(self) -> Event:
        """What the question costs the units of one site."""
        return self.mechanism.event()


def schedule(plan: Plan, embedding_size: int) -> tuple[Ask, ...]:
    """Return every question of the plan; ``embedding_size`` is that of the plan's encoder.

    Guarantee: the composed ε of all of them, and of the plan's private head, is at most the plan's ε (verified by the
    accountant that charges them).
    Raises PlanError if the noise cannot be drawn (beyond the samplers' reach, or a local share below 2 lattice steps).
    """
    widen = _WIDEN
    while True:
        asks = _asks(plan, embedding_size, widen, 1.0)
        if _fits(plan, asks):
            return _narrowed(plan, embedding_size, widen) if any(ask.kind in PURE for ask in asks) else asks
        if widen > 2:
            raise PlanError(
                f"ε = {plan.privacy.epsilon} cannot be kept with integer shares this small. Use fewer sites."
            )
        widen = 1 + (widen - 1) * 2


def _asks(plan: Plan, embedding_size: int, widen: float, narrow: float) -> tuple[Ask, ...]:
    return tuple(
        _ask(plan, part.kind, number, embedding_size, part.noise_multiplier * (narrow if part.kind in PURE else widen))
        for part in spend(plan)
        for number in range(1, part.times + 1)
    )


def _fits(plan: Plan, asks: tuple[Ask, ...]) -> bool:
    curve = accountant.compose([*(ask.event for ask in asks), *head_events(plan)])
    return accountant.epsilon(curve, plan.privacy.delta).epsilon <= plan.privacy.epsilon


def _narrowed(plan: Plan, embedding_size: int, widen: float) -> tuple[Ask, ...]:
    """Return the questions with the noise of pure-DP mechanisms as small as the whole budget allows.

    Their curves bend below the line ρα by which the shares are counted, so that they would leave part of ε unspent. A
    site's ledger admits charges at one fixed order, so they must fit there.
    """
    ledger = FixedOrderFilter(epsilon=plan.privacy.epsilon, delta=plan.privacy.delta)
    low, high = _LEAST_NARROW, 1.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        asks = _asks(plan, embedding_size, widen, middle)
        events = [*(ask.event for ask in asks), *head_events(plan)]
        fits = math.fsum(ledger.cost(event) for event in events) <= ledger.budget / _WIDEN
        low, high = (low, middle) if fits else (middle, high)
    return _asks(plan, embedding_size, widen, high)


def _ask(plan: Plan, kind: Kind, number: int, embedding_size: int, noise_multiplier: float) -> Ask:
    bounds = bounds_of(plan, kind, embedding_size)
    local = kind == "islands"
    name = f"{kind}/{number}" if kind in REPEATED else kind
    try:
        own = _own(plan, kind, bounds, noise_multiplier)
        shares = plan.privacy.trust == "secure-sum" and not local and own is None  # label: whole-noise-on-islands
        mechanism = own or (_share(plan, bounds, noise_multiplier) if shares else _whole(bounds, noise_multiplier))
    except ParameterError as error:
        raise PlanError(
            f"a share of {asking(plan, kind).share:g} of ε = {plan.privacy.epsilon:g} for {kind} found, which asks for "
            f"noise that cannot be drawn ({error}) Give it a larger share, or the plan a larger ε."
        ) from error
    return Ask(
        name=name,
        kind=kind,
        part=kind,
        bounds=bounds,
        mechanism=mechanism,
        full=not shares,
        scope="local" if local else "shared",
    )


def _own(plan: Plan, kind: Kind, bounds: Bounds, noise_multiplier: float) -> Mechanism | None:
    """Return the mechanism of a kind whose noise does not add up over sites, so that each site's is whole; or None.

    A Gaussian part of multiplier m costs ρ = 1/2m². ``choices``: C choices of ε each cost Cε²/8, so ε = 2/(m√C)
    (Cesar-Rogers 2021); ``confidence``: pure ε costs at most ε²/2, so ε = 1/m (Bun-Steinke 2016, Proposition 1.4).
    """
    if kind == "choices":
        groups = tuple(divided(bounds.size, len(plan.data.classes)))
        return ChoiceMechanism(epsilon=2.0 / (noise_multiplier * len(groups) ** 0.5), change=LATTICE, groups=groups)
    if kind == "confidence":
        return DiscreteLaplaceMechanism(scale=noise_multiplier * bounds.lattice_l1, l1=bounds.lattice_l1)
    return None


def _whole(bounds: Bounds, noise_multiplier: float) -> Mechanism:
    return DiscreteGaussianMechanism(sigma=noise_multiplier * bounds.lattice_l2, l2=bounds.lattice_l2)


def _share(plan: Plan, bounds: Bounds, noise_multiplier: float) -> Mechanism:
    return DiscreteGaussianShare(
        total_sigma=noise_multiplier * bounds.lattice_l2,
        sites=plan.sites.count,
        dropouts=plan.privacy.dropouts,
        colluders=plan.privacy.colluders,
        l2=bounds.lattice_l2,
        l1=bounds.lattice_l1,
        dimension=bounds.size,
    )


def bounds_of(plan: Plan, kind: Kind, embedding_size: int) -> Bounds:  # noqa: C901, PLR0911 - one return per kind is the table
    """Return the bounds of the plan's question of this kind."""
    q, classes, per_unit = plan.questions, len(plan.data.classes), plan.privacy.records_per_unit
    match kind:
        case "counts":
            return ballots.counts_bounds(classes, per_unit)
        case "prototypes":
            return ballots.prototypes_bounds(classes, embedding_size, per_unit, q.prototypes.contrast)
        case "gradients":
            return gradients_bounds(classes, embedding_size)
        case "neighbours":
            return ballots.neighbours_bounds(q.neighbours.candidates, q.neighbours.nearest, per_unit)
        case "choices":
            return choices_bounds(q.choices.candidates, classes)
        case "confidence":
            return confidence_bounds(q.confidence.candidates)
        case "labels":
            return ballots.labels_bounds(q.labels.candidates, classes)
        case "copies":
            return copies_bounds(plan.release.samples)
        case "score":
            return ballots.score_bounds(per_unit)
        case "islands":
            own = asking(plan, "islands")
            return ballots.neighbours_bounds(own.candidates, own.nearest, per_unit)


def find(asks: tuple[Ask, ...], name: str) -> Ask:
    """Return the plan's question of this name. Raises MessageError if the plan has none."""
    for ask in asks:
        if ask.name == name:
            return ask
    raise MessageError(f"question {name!r} found; the plan asks {', '.join(ask.name for ask in asks) or 'nothing'}.")
