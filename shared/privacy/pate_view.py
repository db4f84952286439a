"""One screen about PATE: from teachers, noise and queries to ε by each analysis, the margin's effect, and q_max.

Pure: numbers in, a JSON-able dict out, and a dict in, text out. What depends on real votes comes apart from it, as a
``SiteOnly`` that only ``screen`` opens, so that ``--json`` cannot write it to a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant, calibrate, pate, tails, tight
from patevolve.shared.privacy.events import DiscreteGaussian, Event, LaplaceNoisyMax
from patevolve.shared.privacy.site_only import BADGE, SiteOnly

# (option, default, help): what `patevolve pate` asks; the command line builds its options from this list.
OPTIONS: tuple[tuple[str, object, str], ...] = (
    ("--teachers", 250, "Number of teachers K; each gives one vote per query."),
    ("--classes", 10, "Number of classes."),
    ("--sigma", None, "GNMax noise in votes (40 if neither --sigma nor --gamma is given)."),
    ("--gamma", None, "LNMax noise as Lap(2/gamma): an answer costs ε = gamma, so a LARGER gamma is LESS private."),
    ("--queries", 1000, "Number of answered queries q."),
    ("--delta", 1e-5, "δ of the (ε, δ) guarantee."),
    ("--budget", 8.0, "ε budget for which the largest q is computed."),
    ("--votes", None, "Counts with commas between: their data-dependent cost, on this screen only, not releasable."),
    ("--curve", None, "Also measure accuracy against ε on 'digits' or 'article' (under a minute)."),
    ("--json", False, "Print the releasable part as JSON."),
)
DEFAULT_SIGMA = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the reader wants to know. Exactly one of sigma (GNMax) and gamma (LNMax, Lap(2/gamma)) is given."""

    teachers: int
    classes: int
    queries: int
    delta: float
    budget: float
    sigma: float | None = None
    gamma: float | None = None

    def __post_init__(self) -> None:
        """Refuse numbers outside their domain."""
        checks.integer(teachers=self.teachers, at_least=1, at_most=10**6)
        checks.integer(classes=self.classes, at_least=2, at_most=10**4)
        checks.integer(queries=self.queries, at_least=1, at_most=10**12)
        checks.open_unit(delta=self.delta)
        checks.positive(budget=self.budget)
        if (self.sigma is None) == (self.gamma is None):
            raise ParameterError(
                f"sigma={self.sigma!r} and gamma={self.gamma!r} found; expected exactly one of them. "
                f"Give --sigma for Gaussian noise or --gamma for Laplace noise of scale 2/gamma."
            )
        if self.sigma is not None:
            checks.positive(sigma=self.sigma)
        if self.gamma is not None:
            checks.positive(gamma=self.gamma)

    def event(self, queries: int) -> Event:
        """Return the charge for this many answers."""
        if self.sigma is not None:
            return DiscreteGaussian(sigma=self.sigma, l2=math.sqrt(2.0), count=queries)
        return LaplaceNoisyMax(scale=self.scale, count=queries)

    @property
    def scale(self) -> float:
        """The noise's scale in votes: σ, or the Laplace scale 2/γ."""
        return float(self.sigma) if self.sigma is not None else 2.0 / float(self.gamma or math.nan)


def answer(question: Question) -> dict[str, Any]:
    """Return everything that depends on public numbers alone, as a JSON-able dict."""
    curve = accountant.compose([question.event(question.queries)])
    rdp = accountant.epsilon(curve, question.delta)
    single = accountant.epsilon(accountant.compose([question.event(1)]), question.delta).epsilon
    return {
        "teachers": question.teachers,
        "classes": question.classes,
        "queries": question.queries,
        "delta": question.delta,
        "budget": question.budget,
        "mechanism": "GNMax" if question.sigma is not None else "LNMax",
        "sigma": question.sigma,
        "gamma": question.gamma,
        "noise_scale": question.scale,
        "epsilon": {
            "one_answer": single,
            "naive_sum": question.queries * single,
            "advanced_composition": _advanced(question),
            "rdp": rdp.epsilon,
            "rdp_order": rdp.order,
            "exact_gaussian": _exact(question),
        },
        "q_max": _q_max(question),
        "margins": _margins(question),
    }


def _advanced(question: Question) -> float | None:
    """Return Dwork-Rothblum-Vadhan 2010's ε for q answers of pure ε₀-DP; None for Gaussian noise (not pure)."""
    if question.gamma is None:
        return None
    e, q = question.gamma, question.queries
    if e > 500.0:
        return q * e
    return min(q * e, e * math.sqrt(2.0 * q * math.log(1.0 / question.delta)) + q * e * math.expm1(e))


def _exact(question: Question) -> float | None:
    if question.sigma is None:
        return None
    return tight.gaussian_epsilon(question.sigma / math.sqrt(2.0 * question.queries), question.delta)


def _q_max(question: Question) -> dict[str, int | None]:
    event, budget, delta = question.event(1), question.budget, question.delta
    exact = None
    if question.sigma is not None:
        exact = tight.gaussian_q_max(question.sigma, math.sqrt(2.0), budget, delta)
    return {
        "naive": calibrate.q_max_naive(event, budget, delta),
        "rdp": calibrate.q_max(event, budget, delta),
        "exact_gaussian": exact,
    }


def _margins(question: Question) -> list[dict[str, float]]:
    """Return rows for hypothetical votes whose two leaders share all votes: no data, so nothing private."""
    margins = [round(question.teachers * share) for share in (0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)]
    leads = sorted({(question.teachers + margin + 1) // 2 for margin in margins})
    return [_margin(question, lead) for lead in leads]


def _margin(question: Question, lead: int) -> dict[str, float]:
    counts = np.zeros(question.classes, dtype=np.int64)
    counts[0], counts[1] = lead, question.teachers - lead
    gap = int(counts[0] - counts[1])
    curve = _dependent(question, counts, question.queries)
    row = {
        "margin": gap,
        "flip_probability": _flip(question, gap),
        "epsilon_data_dependent": accountant.epsilon(curve, question.delta).epsilon,
    }
    if question.gamma is not None:
        # The seed article's formula, per answer, beside the cost that the theorem gives for one answer.
        row["article_formula"] = 2.0 / question.gamma * math.exp(-gap / question.gamma)
        row["one_answer_pure_epsilon"] = question.gamma
    return row


def _flip(question: Question, gap: int) -> float:
    """Return Pr[the second of two classes wins], ties counted half, for the integer noise that is drawn."""
    law = tails.discrete_gaussian_difference if question.sigma is not None else tails.discrete_laplace_difference
    table = law(question.scale, gap + 1) if _tabulated(question, gap) else None
    if table is None:  # wide noise: the continuous law differs by less than 1e-5 there
        if question.sigma is not None:
            return 0.5 * math.erfc(gap / (2.0 * question.scale))
        return (0.5 + 0.25 * gap / question.scale) * math.exp(-gap / question.scale)
    return 0.5 * (math.exp(table[gap]) + math.exp(table[gap + 1]))


def _tabulated(question: Question, gap: int) -> bool:
    return question.scale <= 60.0 and gap <= 2_000


def _dependent(question: Question, counts: Any, queries: int) -> accountant.Curve:
    """Return the data-dependent curve of ``queries`` answers to one histogram, for the integer noise if tabulated."""
    largest = int(np.max(counts) - np.min(counts))
    orders = np.array(accountant.ORDERS)
    integer = _tabulated(question, largest)
    if question.sigma is not None:
        one = pate.gnmax_dependent(counts, question.sigma, orders, integer=integer)
    else:
        one = pate.lnmax_dependent(counts, question.scale, orders, integer=integer)
    return queries * one.open_at_site()


def private_part(question: Question, votes: list[int]) -> SiteOnly[dict[str, float]]:
    """Return what the given votes cost, for this screen alone. Raises ParameterError unless they fit the question."""
    counts = pate.histograms(votes)
    if counts.shape != (1, question.classes) or counts.min() < 0 or counts.sum() != question.teachers:
        raise ParameterError(
            f"{len(votes)} counts that sum to {int(counts.sum())} found; expected classes={question.classes} counts "
            f">= 0 that sum to teachers={question.teachers}. Correct --votes."
        )
    ordered = np.sort(counts[0])[::-1]
    result = accountant.epsilon(_dependent(question, counts, question.queries), question.delta)
    return SiteOnly(
        {
            "margin": float(ordered[0] - ordered[1]),
            "flip_probability": _flip(question, int(ordered[0] - ordered[1])),
            "epsilon": result.epsilon,
            "order": result.order,
        }
    )


def screen(record: dict[str, Any], private: SiteOnly[dict[str, float]] | None = None) -> str:
    """Return the text of one screen. ``private`` is opened here, for the terminal of the site."""
    lines = [_title(record), "", *_costs(record), "", *_limits(record), "", *_margin_table(record)]
    if private is not None:
        lines += ["", *_given_votes(private.open_at_site())]
    if record.get("curve"):
        lines += ["", *curve_table(record["curve"])]
    return "\n".join(lines)


def _title(record: dict[str, Any]) -> str:
    if record["gamma"] is None:
        noise = f"GNMax, Gaussian noise σ = {record['sigma']:g} votes: Rényi cost α/σ² per answer"
    else:
        noise = (
            f"LNMax, Laplace noise of scale 2/γ = {record['noise_scale']:g} votes: each answer costs ε = γ = "
            f"{record['gamma']:g}\n(a LARGER γ is LESS private)"
        )
    return (
        f"PATE: {record['teachers']} teachers, {record['classes']} classes, {record['queries']} answers, "
        f"δ = {record['delta']:g}\n{noise}"
    )


def _number(value: float | None, *, fmt: str = ".4g") -> str:
    return "not applicable" if value is None else format(value, fmt)


def _costs(record: dict[str, Any]) -> list[str]:
    cost = record["epsilon"]
    return [
        f"ε of {record['queries']} answers, whatever the votes are",
        f"  one answer alone            {_number(cost['one_answer'])}",
        f"  naive sum (q·ε₁)            {_number(cost['naive_sum'])}",
        f"  advanced composition        {_number(cost['advanced_composition'])}",
        f"  Rényi, best order {cost['rdp_order']:<9g} {_number(cost['rdp'])}   <- what the ledger charges",
        f"  exact Gaussian composition  {_number(cost['exact_gaussian'])}",
    ]


def _limits(record: dict[str, Any]) -> list[str]:
    limit = record["q_max"]
    return [
        f"Most answers within ε = {record['budget']:g}",
        f"  naive (ε/ε₁)    {limit['naive']}",
        f"  Rényi           {limit['rdp']}",
        f"  exact Gaussian  {_number(limit['exact_gaussian'], fmt='d')}",
    ]


def _margin_table(record: dict[str, Any]) -> list[str]:
    lines = [
        "Margin between the two leaders (hypothetical votes), and what it does",
        f"  {'margin':>7}  {'noise flips it':>14}  {'ε if all answers were like this (data-dependent)':<48}",
    ]
    for row in record["margins"]:
        text = f"  {row['margin']:>7}  {row['flip_probability']:>14.3g}  {row['epsilon_data_dependent']:<10.4g}"
        if "article_formula" in row:
            text += f"  article's (2/γ)e^(−m/γ) for one answer: {row['article_formula']:.3g}"
        lines.append(text.rstrip())
    return lines


def _given_votes(private: dict[str, float]) -> list[str]:
    return [
        f"These votes [{BADGE}]",
        f"  margin {private['margin']:g}, noise flips it with probability {private['flip_probability']:.3g}",
        f"  data-dependent ε {private['epsilon']:.4g} at order {private['order']:g}; it is a function of the votes",
    ]


def curve_table(curve: dict[str, Any]) -> list[str]:
    """Return the lines of an accuracy-ε curve (``pate_curve.accuracy_curve``)."""
    title = (
        f"Accuracy against ε on {curve['data_set']}: {curve['teachers']} teachers, {curve['queries']} answers, "
        f"{curve['seeds']} seeds (mean ± sd; higher is better)"
    )
    lines = [title, f"  {'σ':>6}  {'ε':>8}  {'labels right':>15}  {'student':>15}"]
    for p in curve["points"]:
        labels = f"{p['label_accuracy']:.3f} ± {p['label_sd']:.3f}"
        student = f"{p['student_accuracy']:.3f} ± {p['student_sd']:.3f}"
        lines.append(f"  {p['sigma']:>6g}  {p['epsilon']:>8.3g}  {labels:>15}  {student:>15}")
    for name, (mean, sd) in curve["baselines"].items():
        lines.append(f"  {name:<34}{mean:.3f} ± {sd:.3f}")
    return lines
