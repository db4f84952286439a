"""The guarantee in words, item by item as NIST SP 800-226 (2025) asks for, from the plan and the charged events."""

from __future__ import annotations

from collections.abc import Sequence

from patevolve.shared.plan import Plan
from patevolve.shared.privacy.accountant import CONVERSION, Epsilon
from patevolve.shared.report import words

UNITS = {
    "patient": "one patient at one site, with all records of that patient there",
    "record": "one record",
}
TRUST = {
    "each-site": "Each site adds the whole noise itself. Neither the coordinator nor any other site is trusted.",
    "secure-sum": "Each site adds a share of the noise, and only the masked sum over the sites is seen (in a "
    "simulation, its process alone sees the sum). The guarantee needs the sum to be formed over at least "
    "{reporters} sites of which at most {colluders} reveal their shares.",
}
ISLANDS = (
    " What a site's island sends home is chosen by the site's own votes with the whole noise: no sum is trusted there, "
    "and its loss is counted beside that of the sums."
)
MODES = {
    "simulated": "This run was simulated in one process, where the sum is formed in the clear; a deployment masks it.",
    "local": "This run was made by one institution alone; there was no other party.",
    "deployed": "This run was coordinated over a network; each site answered on its own machine.",
}


def statement(
    plan: Plan, spent: Epsilon, sampler_delta: float, *, label_method: str, unasked: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return (item, text) pairs for the release, its card and the report.

    unasked: sentences on checks of the release that nobody made
    How the sites were reached is no part of it: one plan gives one release, byte for byte, in every mode.
    """
    privacy, q = plan.privacy, plan.questions
    asked = [name for name, part in (("class counts", q.counts), ("class prototypes", q.prototypes)) if part.share]
    asked += [f"{q.gradients.times} step(s) of a classifier"] if q.gradients.share else []
    asked += [f"{q.neighbours.times} round(s) of votes on candidates"] if q.neighbours.share else []
    asked += [f"{q.choices.times} round(s) of one choice per class at each site"] if q.choices.share else []
    asked += [f"{q.confidence.times} round(s) of classifiers' confidence"] if q.confidence.share else []
    islands = plan.islands.times if plan.islands and plan.islands.share else 0  # others read no record
    asked += [f"{islands} round(s) of each site's votes on its own island"] if islands else []
    steps = plan.encoder.head.steps
    asked += [f"{steps} steps by which each site trains its own head"] if plan.encoder.head.share else []
    asked += ["teacher labels"] if q.labels.share and label_method == "pate" else []
    asked += ["which samples are close to a record"] if q.copies.share else []
    asked += ["whether a student is right on held-out units"] if q.score.share else []
    trust = TRUST[privacy.trust].format(reporters=plan.sites.count - privacy.dropouts, colluders=privacy.colluders)
    trust += ISLANDS if islands else ""
    return [
        (
            "Privacy unit",
            f"{UNITS[privacy.unit].capitalize()}; at most {privacy.records_per_unit} record(s) each count.",
        ),
        ("Neighbouring relation", f"Two data sets that differ by {UNITS[privacy.unit]}, added or removed."),
        (
            "Privacy loss",
            f"ε = {words.epsilon(spent.epsilon)} at δ = {privacy.delta:g}, for everything this run asked together.",
        ),
        (
            "δ",
            (
                f"δ = {privacy.delta:g}, below one in the units of each site and in the plan's expected total; the "
                f"noise sampler's distance from its ideal law adds {sampler_delta:.1e}."
            ),
        ),
        ("Accounting", f"Rényi differential privacy; converted by {CONVERSION}, best order {spent.order:g}."),
        ("Mechanism", f"{_mechanisms(plan)}, drawn from the operating system's generator."),
        ("Trust model", trust),
        ("What was charged", f"{'; '.join(asked) or 'nothing was asked'}."),
        (
            "What is public",
            "The plan, its schema and generator, the class names, the number of sites, and every released value.",
        ),
        (
            "What is not covered",
            (
                "Facts that hold for whole groups; what a site or a patient reveals elsewhere; side channels such as "
                "running time; a patient treated at several sites of the run (the loss adds up over them)."
                + "".join(f" Not checked: {sentence}" for sentence in unasked)
            ),
        ),
    ]


def _mechanisms(plan: Plan) -> str:
    """Return the mechanisms of the plan's questions in words; a site draws the last two by itself, whole."""
    found = ["Discrete Gaussian noise on integer sums"]
    found += ["the exponential mechanism over integer scores"] if plan.questions.choices.share else []
    found += ["the same on sums of clipped gradients of a secret sample"] if plan.encoder.head.share else []
    found += ["discrete Laplace noise on integer sums"] if plan.questions.confidence.share else []
    return ", ".join(found)
