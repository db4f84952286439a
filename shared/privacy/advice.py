"""What a part's noise does to its answer, judged from the plan alone, and how many sites would make it useful.

Every figure uses the plan's public guess of the cohort, split evenly over classes, so it costs nothing. Guesses that no
plan holds carry names below and are explained in docs/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from patevolve.shared.messages import Kind
from patevolve.shared.plan import Plan
from patevolve.shared.plan_sections import Asking
from patevolve.shared.privacy import odds
from patevolve.shared.privacy.odds import Pool
from patevolve.shared.privacy.planner import Part, asking, label_noise, pooled

LONGEST = math.sqrt(2.0)  # of a residual, by which a gradient's ballot is divided (votes/gradients.py)
APART = 0.2  # distance of a class's mean ballot from the common one (heart .20 and .24, digits .15 to .33)
GOOD = 0.1  # share of the candidates taken to be truly good
RARE = 0.1  # a rare class, as a fraction of an equal share
RIGHT = 0.95  # how often a label must survive the noise
SCORE_NOISE = 0.1  # standard deviation of an accuracy beyond which it says nothing
MOST_SITES = 100_000

Verdict = Literal["usable", "weak", "noise"]
Figures = dict[str, float | int | None]

# Quality (higher is better) from which a part is usable, and below which it is mostly noise.
_LIMITS: dict[Kind, tuple[float, float]] = {
    "counts": (5.0, 2.0),  # units of a class per standard deviation
    "prototypes": (2.0, 1.0),  # length of a class's difference per length of the noise on it
    "gradients": (2.0, 1.0),  # the same, over all steps
    "neighbours": (0.9, 0.75),  # probability that a good candidate beats another one; ½ is a coin
    "choices": (10.0, 2.0),  # how much likelier than by chance the best candidate is chosen
    "confidence": (0.9, 0.75),  # probability that a candidate of full confidence beats one of half
    "labels": (RIGHT, 0.9),  # probability that a unanimous vote wins
    "copies": (0.9, 0.6),  # share of clean samples that stay, at the asked probability of catching a copy
    "score": (1 / 0.03, 1 / SCORE_NOISE),  # one over the standard deviation of the accuracy
    "islands": (0.9, 0.75),  # as for neighbours, at one site
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What noise does to one part.

    noise_to_signal:  standard deviation of the noise per length of what it must leave visible; grows as 1/√share
    useful_sites:     least number of sites of this size at which the part is usable; None if no number is
    """

    kind: Kind
    verdict: Verdict
    quality: float
    noise_to_signal: float
    useful_sites: int | None
    figures: Figures
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One part looked at: its quality, noise over signal, figures and words."""

    quality: float
    noise_to_signal: float
    figures: Figures
    words: str


def directions(plan: Plan) -> int:
    """Return in how many directions records can differ: a table's levels, or the image encoder's components.

    An image's Fourier features are functions of its components.
    """
    return sum(column.levels for column in plan.data.columns) if plan.data.kind == "table" else plan.encoder.dimension


def units_per_class(plan: Plan, sites: int | None = None) -> float:
    """Return how many voting units of one class the sites are expected to hold, held-out ones left out."""
    count = plan.sites.count if sites is None else sites
    return count * plan.sites.expected_units * (1.0 - plan.data.hold_out) / len(plan.data.classes)


def effect(plan: Plan, part: Part) -> Effect:
    """Return what noise does to a part of the plan."""

    def look(sites: int) -> _Look:
        return _LOOKS[part.kind](plan, part, sites)

    usable, noise = _LIMITS[part.kind]
    seen = look(plan.sites.count)
    verdict: Verdict = "usable" if seen.quality >= usable else "weak" if seen.quality >= noise else "noise"
    least = 1 + (0 if plan.privacy.trust == "each-site" else plan.privacy.dropouts + plan.privacy.colluders)
    return Effect(
        kind=part.kind,
        verdict=verdict,
        useful_sites=_first(least, lambda sites: look(sites).quality >= usable),
        **{name: getattr(seen, name) for name in ("quality", "noise_to_signal", "figures", "words")},
    )


def noise_to_signal(plan: Plan, part: Part) -> float:
    """Return the part's noise per length of what it must leave visible; infinite where it can show nothing."""
    return _LOOKS[part.kind](plan, part, plan.sites.count).noise_to_signal


def _first(least: int, good: Callable[[int], bool]) -> int | None:
    """Return the least whole number from ``least`` on that is good, where good stays good; None beyond MOST_SITES."""
    if good(least):
        return least
    low, high = least, 2 * least
    while not good(high):
        low, high = high, 2 * high
        if high > MOST_SITES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def _counts(plan: Plan, part: Part, sites: int) -> _Look:
    std, units = part.noise_multiplier * pooled(plan, sites), units_per_class(plan, sites)
    empty = odds.upper_tail(RARE * units / std)
    return _Look(
        quality=units / std,
        noise_to_signal=std / units,
        figures={"std": std, "units_per_class": units, "relative_error": std / units, "rare_looks_empty": empty},
        words=f"a class's count is off by {std / units:.0%}; one of {RARE * units:.3g} looks empty in {empty:.0%}",
    )


def _prototypes(plan: Plan, part: Part, sites: int) -> _Look:
    std, classes = part.noise_multiplier * pooled(plan, sites), len(plan.data.classes)
    contrast = plan.questions.prototypes.contrast or 1.0 - 1.0 / classes
    # Noise on a class's difference from the mean of all, once the class code is undone (its eigenvalue there is
    # sqrt(contrast/(1 − 1/classes)) on a projection that keeps 1 − 1/classes of the variance).
    apart = std * (1.0 - 1.0 / classes) / math.sqrt(contrast)
    return _told_apart(plan, sites, std, apart, "what tells a class apart")


def _gradients(plan: Plan, part: Part, sites: int) -> _Look:
    # The first step asks what a class's embeddings add up to; later ones correct it, and their noise averages out.
    std = LONGEST * part.noise_multiplier * pooled(plan, sites) / math.sqrt(part.times)
    return _told_apart(plan, sites, std, std, "over all steps, what tells a class apart")


def _told_apart(plan: Plan, sites: int, std: float, apart: float, words: str) -> _Look:
    """Judge how far a class's sum stands out of the noise ``apart`` on its difference from the others."""
    units = units_per_class(plan, sites)
    ratio = units * APART / (apart * math.sqrt(directions(plan)))
    return _Look(
        quality=ratio,
        noise_to_signal=1.0 / ratio,
        figures={"std": std, "units_per_class": units, "directions": directions(plan), "signal_to_noise": ratio},
        words=f"{words} is {ratio:.2g} times its noise, coordinate by coordinate",
    )


def _neighbours(plan: Plan, part: Part, sites: int) -> _Look:
    std, pool = part.noise_multiplier * pooled(plan, sites), pool_of(plan, sites)
    wins, share = pool.beats(std), pool.recovered(std)
    return _Look(
        quality=wins,
        noise_to_signal=std / pool.gap if pool.gap > 0 else math.inf,
        figures={"std": std, "lead": pool.gap, "good_beats_other": wins, "recovered": share, "good": pool.good},
        words=f"a good candidate beats another in {wins:.0%} (a coin: 50%); {share:.0%} of the best tenth is found",
    )


def _islands(plan: Plan, part: Part, sites: int) -> _Look:
    """Judge a site's votes on its own island: its units against its own whole noise, however many sites there are."""
    del sites
    pool, std = _pool(plan, asking(plan, "islands"), 1), part.noise_multiplier
    wins, share = pool.beats(std), pool.recovered(std)
    return _Look(
        quality=wins,
        noise_to_signal=std / pool.gap if pool.gap > 0 else math.inf,
        figures={"std": std, "lead": pool.gap, "good_beats_other": wins, "recovered": share, "good": pool.good},
        words=f"at each site by itself, a good candidate beats another in {wins:.0%}; {share:.0%} of the best tenth is "
        f"found",
    )


def _labels(plan: Plan, part: Part, sites: int) -> _Look:
    std, classes = label_noise(plan, part, sites), len(plan.data.classes)
    votes = sites * plan.questions.labels.teachers
    wins, contested = odds.unanimous(votes, std, classes), odds.sixty_forty(votes, std, classes)
    figures: Figures = {"std": std, "teachers": votes, "unanimous_wins": wins, "sixty_forty_wins": contested}
    for name, split in (("unanimous", False), ("sixty_forty", True)):
        figures[f"useful_teachers_{name}"] = math.ceil(std * odds.ratio_for(RIGHT, classes, contested=split))
    # The noise grows as the square root of the number of candidates.
    figures["useful_candidates"] = math.floor(
        plan.questions.labels.candidates * (votes / (std * odds.ratio_for(RIGHT, classes, contested=False))) ** 2
    )
    return _Look(
        quality=wins,
        noise_to_signal=std / votes,
        figures=figures,
        words=f"noise overturns {1 - wins:.0%} of unanimous votes and {1 - contested:.0%} of 60:40 ones",
    )


def _choices(plan: Plan, part: Part, sites: int) -> _Look:
    classes, candidates = len(plan.data.classes), max(1, plan.questions.choices.candidates // len(plan.data.classes))
    each = 2.0 / (part.noise_multiplier * math.sqrt(classes))
    # The best scores 1, and with τ = 10 most others close to 0: the mechanism's odds are e^(ε/2) to 1.
    likelier = candidates * math.exp(each / 2) / (math.exp(each / 2) + candidates - 1)
    return _Look(
        quality=likelier,
        noise_to_signal=2.0 / each,
        figures={"epsilon_of_a_choice": each, "likelier_than_chance": likelier, "choices": sites * classes},
        words=f"a site chooses the best of {candidates} candidates {likelier:.2f} times as often as chance would",
    )


def _confidence(plan: Plan, part: Part, sites: int) -> _Look:
    asking = plan.questions.confidence
    std = math.sqrt(2.0 * sites) * part.noise_multiplier * asking.candidates  # every site adds its own Laplace noise
    lead = 0.5 * sites * asking.teachers
    wins = 1.0 - odds.upper_tail(lead / (std * math.sqrt(2.0)))
    return _Look(
        quality=wins,
        noise_to_signal=std / lead,
        figures={"std": std, "lead": lead, "sure_beats_unsure": wins},
        words=f"a candidate of which all classifiers are sure beats one of half that in {wins:.0%} (a coin: 50%)",
    )


def clean_share(std: float, catch: float) -> float:
    """Return the share of clean samples that stay where a copy is dropped with probability ``catch``."""
    return 1.0 - odds.upper_tail(copy_threshold(std, catch) / std)


def copy_threshold(std: float, catch: float) -> float:
    """Return the noisy count above which a sample is dropped: a copy's count of 1 exceeds it with ``catch``."""
    return 1.0 - std * NormalDist().inv_cdf(catch)


def _copies(plan: Plan, part: Part, sites: int) -> _Look:
    std, catch = part.noise_multiplier * pooled(plan, sites), plan.questions.copies.catch
    stays = clean_share(std, catch)
    return _Look(
        quality=stays,
        noise_to_signal=std,
        figures={"std": std, "catch": catch, "clean_samples_that_stay": stays},
        words=f"a copy is dropped with probability {catch:.0%}, and so are {1.0 - stays:.0%} of the other samples",
    )


def _score(plan: Plan, part: Part, sites: int) -> _Look:
    std, units = part.noise_multiplier * pooled(plan, sites), sites * plan.sites.expected_units * plan.data.hold_out
    error = std / units  # the worst case over accuracies, for counts large against their noise
    return _Look(
        quality=1.0 / error,
        noise_to_signal=error,
        figures={"std": std, "held_out_units": units, "accuracy_std": error},
        words=f"the accuracy on held-out units is off by {100 * error:.2g} points",
    )


def pool_of(plan: Plan, sites: int | None = None) -> Pool:
    """Return how the plan's neighbour votes of one class are expected to fall."""
    return _pool(plan, plan.questions.neighbours, sites)


def _pool(plan: Plan, voting: Asking, sites: int | None) -> Pool:
    candidates = max(1, voting.candidates // len(plan.data.classes))
    return Pool(
        units=units_per_class(plan, sites),
        candidates=candidates,
        good=max(1, round(GOOD * candidates)),
        nearest=max(1, voting.nearest),
    )


_LOOKS: dict[Kind, Callable[[Plan, Part, int], _Look]] = {
    "counts": _counts,
    "prototypes": _prototypes,
    "gradients": _gradients,
    "neighbours": _neighbours,
    "choices": _choices,
    "confidence": _confidence,
    "labels": _labels,
    "copies": _copies,
    "score": _score,
    "islands": _islands,
}
