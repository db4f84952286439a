"""What a plan asks, costs and can show, for people and for machines: the screen of ``patevolve plan``."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from typing import Any

from patevolve.shared.messages import KINDS
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.plan_sections import Islands
from patevolve.shared.privacy import accountant, advice, odds, split, tight
from patevolve.shared.privacy.advice import Effect
from patevolve.shared.privacy.calibrate import rho_for
from patevolve.shared.privacy.events import DiscreteLaplace, Event, Exponential
from patevolve.shared.privacy.head_part import head_events, head_part
from patevolve.shared.privacy.planner import PURE, LabelChoice, Part, choose_labels, composed, honest, pooled, spend
from patevolve.shared.privacy.split import Split

WIDTH = 100
HEAD = "In the measured tasks no private head has beaten the public features with the whole budget (docs/encoder.md)."
_AS_GOOD = 1.05  # a split whose expected squared error is within this factor of the proposed one's is as good


def describe(agreed: Agreed) -> dict[str, Any]:
    """Return the plan's budget, its noise and what that noise does, as a JSON-able mapping. Reads no data."""
    plan, parts = agreed.plan, spend(agreed.plan)
    effects = [advice.effect(plan, part) for part in parts]
    choice, splits = choose_labels(plan), split.splits(plan)
    found: dict[str, Any] = _plain(
        {
            "name": plan.name,
            "sha256": agreed.sha256,
            "epsilon": plan.privacy.epsilon,
            "delta": plan.privacy.delta,
            "unit": plan.privacy.unit,
            "trust": plan.privacy.trust,
            "sites": plan.sites.count,
            "dropouts": plan.privacy.dropouts,
            "colluders": plan.privacy.colluders,
            "units_per_site": plan.sites.expected_units,
            "units_per_class": advice.units_per_class(plan),
            "classes": list(plan.data.classes),
            "generations": plan.evolution.generations,
            "directions": advice.directions(plan),
            "parts": [_part(plan, parts, part, effect) for part, effect in zip(parts, effects, strict=True)],
            "head": _head(plan),
            "files": _files(plan),
            "composed": _composed(plan, parts, choice),
            "labels": dataclasses.asdict(choice),
            "pooling": _pooling(plan, parts),
            "splits": [dataclasses.asdict(row) for row in splits],
            "advice": _advice(plan, effects, choice, splits),
            **({} if plan.islands is None else {"islands": _islands(plan, plan.islands)}),
        }
    )
    return found


def _files(plan: Plan) -> dict[str, str]:
    """Return the SHA-256 of every public file that a machine needs for this plan, by the plan's key."""
    keys = [("generator", "asset"), ("encoder", "asset"), ("encoder", "tokenizer"), ("encoder", "fitted")]
    found = {f"{section}.{key}": str(getattr(getattr(plan, section), key)) for section, key in keys}
    return {key: sha256 for key, sha256 in found.items() if sha256}


def _islands(plan: Plan, islands: Islands) -> dict[str, Any]:
    """Return what islands ask, as figures and in words: an institution decides by the words."""
    part = next((part for part in spend(plan) if part.kind == "islands"), None)
    sent, evolved = islands.migrants * len(plan.data.classes), f"{islands.generations} generation(s)"
    what = (
        f"Islands: {islands.times}×, each site evolves {islands.candidates} synthetic candidates for {evolved} on its "
        f"own device and sends {sent} of them home."
    )
    if part is None:
        paid = "They follow what was released before; no record of the site is read, so they cost nothing."
    else:
        paid = (
            f"Which ones is decided by votes of the site's own {plan.privacy.unit}s with the whole noise of "
            f"{_short(part.noise_multiplier)} {plan.privacy.unit}s, whatever the trust model: ε = "
            f"{composed((part,), plan.privacy.delta).epsilon:.3g} alone, charged in the site's own ledger and within "
            f"the plan's ε."
        )
    return {**dataclasses.asdict(islands), "charged": part is not None, "words": f"{what} {paid}"}


def _part(plan: Plan, parts: tuple[Part, ...], part: Part, effect: Effect) -> dict[str, Any]:
    alone = composed((part,), plan.privacy.delta)
    noise = _own_noise(plan, part) if part.kind in PURE else _gaussian_noise(plan, part)
    return {
        **dataclasses.asdict(part),
        "noise": noise,
        "epsilon_alone": alone.epsilon,
        "order_alone": alone.order,
        "left": _left(plan, parts, part),
        "effect": dataclasses.asdict(effect),
    }


def _event(plan: Plan, part: Part) -> Event:
    """Return the kind of event that a part's questions are charged as: no exact Gaussian figure holds for others."""
    match part.kind:
        case "choices":
            classes = len(plan.data.classes)
            return Exponential(epsilon=2.0 / (part.noise_multiplier * math.sqrt(classes)), count=part.times * classes)
        case "confidence":
            length = float(plan.questions.confidence.candidates)
            return DiscreteLaplace(scale=part.noise_multiplier * length, l1=length, count=part.times)
        case _:
            return part.event


def _gaussian_noise(plan: Plan, part: Part) -> dict[str, float]:
    whole = part.noise_multiplier * (math.sqrt(2 * plan.questions.labels.candidates) if part.kind == "labels" else 1.0)
    summed = part.kind != "islands"  # each site's votes on its own island stand by themselves
    return {
        "one_site": whole / math.sqrt(honest(plan)) if summed and plan.privacy.trust == "secure-sum" else whole,
        "sum": whole * pooled(plan) if summed else whole,
        "sum_if_each_site": whole * pooled(plan, trust="each-site") if summed else whole,
        "sum_if_secure_sum": whole * pooled(plan, trust="secure-sum") if summed else whole,
    }


def _own_noise(plan: Plan, part: Part) -> dict[str, float]:
    """Return the same for pure-DP mechanisms: whole at each site; none is added to a choice."""
    candidates = plan.questions.confidence.candidates if part.kind == "confidence" else 0
    whole = math.sqrt(2.0) * part.noise_multiplier * candidates
    total = whole * math.sqrt(plan.sites.count)
    return {"one_site": whole, "sum": total, "sum_if_each_site": total, "sum_if_secure_sum": total}


def _left(plan: Plan, parts: tuple[Part, ...], part: Part) -> dict[str, int | None]:
    """Return how many questions like this part's fit: beside the plan's, in its whole ε, and by adding up ε alone."""
    # A billionth more noise, as the schedule adds, lets a question fit that an equal share would pay for.
    noise = part.noise_multiplier * (1 + 1e-9)
    one = dataclasses.replace(part, times=1, rho=1 / (2 * noise**2), noise_multiplier=noise)
    single = composed((one,), plan.privacy.delta).epsilon
    return {
        "beside_the_plan": _fitting(plan, parts, one),
        "in_the_whole_budget": _fitting(plan, (), one),
        "by_adding_up_epsilon": math.floor(plan.privacy.epsilon / single) if single > 0 else None,
    }


def _fitting(plan: Plan, parts: tuple[Part, ...], one: Part) -> int:
    """Return the most repetitions of ``one`` beside ``parts`` within the plan's ε, as the accountant composes them."""
    limit = rho_for(plan.privacy.epsilon, plan.privacy.delta)
    free = limit * (1.0 - plan.encoder.head.share) - math.fsum(part.rho for part in parts)
    count = max(0, math.floor(free / one.rho * (1 + 1e-12)))
    while count and not _with(plan, parts, one, count) <= plan.privacy.epsilon:
        count -= 1
    return count


def _with(plan: Plan, parts: tuple[Part, ...], one: Part, count: int) -> float:
    return _epsilon(plan, (*parts, dataclasses.replace(one, times=count))).epsilon


def _epsilon(plan: Plan, parts: tuple[Part, ...]) -> accountant.Epsilon:
    """Return the ε of these parts together with the plan's private head."""
    events = [*(part.event for part in parts), *head_events(plan)]
    return accountant.epsilon(accountant.compose(events), plan.privacy.delta)


def _head(plan: Plan) -> dict[str, Any] | None:
    """Return what training a private head costs and how loud its noise is, or None for a plan without one.

    noise_to_signal: length of a step's noise over the longest that the sum of the expected units' gradients can be
    """
    part = head_part(plan)
    if part is None:
        return None
    alone = accountant.epsilon(accountant.compose(part.events), plan.privacy.delta)
    return {
        "share": part.share,
        "steps": len(part.rates),
        "noise_multiplier": part.noise_multiplier,
        "sample_rates": sorted(set(part.rates)),
        "epsilon_alone": alone.epsilon,
        "noise_to_signal": part.noise_multiplier * plan.encoder.dimension / min(part.batches),
    }


def _composed(plan: Plan, parts: tuple[Part, ...], choice: LabelChoice) -> dict[str, Any]:
    delta, whole = plan.privacy.delta, _epsilon(plan, parts)
    events = [*(_event(plan, part) for part in parts), *head_events(plan)]
    head = [accountant.epsilon(accountant.compose(head_events(plan)), delta).epsilon] if head_events(plan) else []
    asked = tuple(part for part in parts if part.kind != "labels" or choice.method == "pate")
    return {
        "epsilon": whole.epsilon,
        "order": whole.order if parts else None,
        "epsilon_as_run": _epsilon(plan, asked).epsilon,
        "epsilon_by_adding_up": math.fsum([*(composed((part,), delta).epsilon for part in parts), *head]),
        "rho": math.fsum(part.rho for part in parts),
        "share": math.fsum([*(part.share for part in parts), plan.encoder.head.share]),
        "conversion": accountant.CONVERSION,
        "tight": dataclasses.asdict(tight.figure(events, delta)) if parts else None,
    }


def _pooling(plan: Plan, parts: tuple[Part, ...]) -> list[dict[str, float]]:
    part = next((part for part in parts if part.kind == "neighbours"), None)
    if part is None:
        return []
    counts = sorted({1, 5, 10, 20, plan.sites.count})
    return odds.pooling(part.noise_multiplier, advice.pool_of(plan, 1), counts)


def _advice(plan: Plan, effects: list[Effect], choice: LabelChoice, splits: tuple[Split, ...]) -> list[str]:
    words = [_judged(plan, effect) for effect in effects if effect.verdict != "usable" and effect.kind != "labels"]
    labels = next((effect for effect in effects if effect.kind == "labels"), None)
    if labels is not None:
        words.append(_on_labels(plan, labels, choice))
    steers = plan.data.kind == "table" and plan.evolution.selection == "soft"
    if steers and any(effect.kind == "neighbours" for effect in effects):
        words.append("On tables no share for neighbours has been found to beat none (docs/planning.md).")
    if plan.encoder.head.share:
        words.append(HEAD)
    unspent = 1.0 - math.fsum([*splits[0].shares.values(), plan.encoder.head.share])
    if effects and unspent > 1e-9:
        words.append(f"{unspent:.0%} of the budget is not given to any part: less is spent than the plan allows.")
    proposed = next((row for row in splits if row.name == "proposed"), None)
    if proposed is not None:
        words.append(_on_split(splits[0], proposed))
    return words


def _judged(plan: Plan, effect: Effect) -> str:
    how = "would be mostly noise" if effect.verdict == "noise" else "would be noisy"
    if effect.useful_sites is None:
        return f"{effect.kind} {how}: no number of sites of this size makes it usable."
    return (
        f"{effect.kind} {how}: usable with {effect.useful_sites:,} sites of {plan.sites.expected_units} "
        f"{plan.privacy.unit}s (now {plan.sites.count}), with a larger share, or at a larger ε."
    )


def _on_labels(plan: Plan, effect: Effect, choice: LabelChoice) -> str:
    figures = effect.figures
    if effect.verdict == "usable":
        return f"Teacher labels survive the noise; {figures['useful_teachers_unanimous']:,} teachers would be enough."
    unused = "They are not asked, and their share stays unspent. " if choice.method == "votes" else ""
    fewer = figures["useful_candidates"]
    few = f", or with {plan.sites.count * plan.questions.labels.teachers:,} at most {fewer:,} samples" if fewer else ""
    how = "mostly noise" if effect.verdict == "noise" else "noisy"
    return (
        f"Teacher labels would be {how}. {unused}Right in "
        f"{advice.RIGHT:.0%} takes {figures['useful_teachers_unanimous']:,} teachers in all when they agree "
        f"({figures['useful_teachers_sixty_forty']:,} when 60:40){few}."
    )


def _on_split(own: Split, proposed: Split) -> str:
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in proposed.shares.items())
    if own.loss is None or proposed.loss is None:
        return f"Proposed split: {shares}."
    if own.loss <= _AS_GOOD * proposed.loss:
        return f"The split is as good as the planner's own ({shares})."
    return f"Proposed split: {shares}; expected squared error {proposed.loss:.2g} instead of {own.loss:.2g}."


def _plain(value: Any) -> Any:
    """Return the value with None for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe_text(agreed: Agreed) -> str:
    """Return the same in words, within 100 columns and about a screen."""
    found = describe(agreed)
    unit = found["unit"]
    lines = [
        *_wrapped(f"Plan {found['name']} ({found['sha256'][:12]}…)"),
        *_wrapped(
            f"ε = {found['epsilon']:g} at δ = {found['delta']:g} per {unit}; {found['sites']} site(s), "
            f"{found['trust']}, about {found['units_per_site']:,} {unit}s each, {found['units_per_class']:,.0f} a "
            f"class; {found['generations']} generations, which cost nothing beyond what is asked."
        ),
        "",
        *_table(found),
        "",
        *_compared(found),
        "",
        *_wrapped(f"Labels: {found['labels']['reason']}."),
        *(
            line
            for key, sha256 in found["files"].items()
            for line in _wrapped(f"Every machine needs the public file {key} = {sha256} (patevolve assets list).")
        ),
        *(_wrapped(found["islands"]["words"]) if "islands" in found else []),
        *(line for words in found["advice"] for line in _wrapped(f"• {words}", "  ")),
    ]
    return "\n".join(lines)


def _table(found: dict[str, Any]) -> list[str]:
    if not found["parts"]:
        return ["Nothing is asked: ε = 0."]
    lines = [f"{'part':<11}{'share':>6}{'asked':>7}{'noise':>9}{'ε alone':>9}{'more':>6}  what the noise does"]
    for part in found["parts"]:
        start = (
            f"{part['kind']:<11}{part['share']:>6.0%}{part['times']:>6}×{_short(part['noise']['sum']):>9}"
            f"{part['epsilon_alone']:>9.3g}{part['left']['beside_the_plan']:>6}  "
        )
        effect = part["effect"]
        lines += textwrap.wrap(
            f"{effect['verdict']}: {effect['words']}", WIDTH, initial_indent=start, subsequent_indent=" " * len(start)
        )
    if found["head"]:
        lines += _head_line(found["head"])
    return [*lines, *_together(found), *_wrapped(_legend(found))]


def _head_line(head: dict[str, Any]) -> list[str]:
    start = f"{'head':<11}{head['share']:>6.0%}{head['steps']:>6}×{'':>9}{head['epsilon_alone']:>9.3g}{'':>6}  "
    words = (
        f"a step's noise is {head['noise_to_signal']:.2g} times the most that all gradients together can be; "
        f"trained at each site, and it stays there"
    )
    return textwrap.wrap(words, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def _together(found: dict[str, Any]) -> list[str]:
    whole = found["composed"]
    start = f"{'together':<11}{whole['share']:>6.0%}{'':>16}{whole['epsilon']:>9.3g}"
    exact, added = whole["tight"], whole["epsilon_by_adding_up"]
    known = "" if exact["accountant"] == "rdp" else f" {exact['epsilon']:.3g} exactly,"
    words = f"at order {whole['order']:g};{known} {added:.3g} by adding up"
    return _wrapped(f"{start}{'':>8}{words}", " " * 50)


def _legend(found: dict[str, Any]) -> str:
    told = [part["noise"] for part in found["parts"] if part["kind"] not in PURE]
    secure = found["trust"] == "secure-sum"
    other, value = ("each-site", "sum_if_each_site") if secure else ("secure-sum", "sum_if_secure_sum")
    beside = f"; with trust = {other} {told[0][value] / told[0]['sum']:.2g} times that" if told else ""
    alone = "; islands: at each site" if any(part["kind"] == "islands" for part in found["parts"]) else ""
    return (
        f"noise: standard deviation in the sum over the sites, in whole {found['unit']}s (labels: votes; confidence: "
        f"classifiers{alone}){beside}. more: questions that still fit, by RDP."
    )


def _compared(found: dict[str, Any]) -> list[str]:
    """Return the table of splits: the plan's, the proposed and the seed article's."""
    kinds = [kind for kind in KINDS if any(kind in row["shares"] for row in found["splits"])]
    lines = [f"{'split':<14}{''.join(f'{kind:>12}' for kind in kinds)}{'squared error':>16}"]
    for row in found["splits"]:
        cells = "".join(f"{row['shares'][kind]:>12.0%}" if kind in row["shares"] else f"{'–':>12}" for kind in kinds)
        lines.append(f"{row['name']:<14}{cells}{'–' if row['loss'] is None else format(row['loss'], '.2g'):>16}")
    return lines


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, drop_whitespace=True)
