"""What a plan needs of a site, held against what the site says in its greeting that it can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patevolve.shared.envelopes import MAX_REQUEST, OK, Capabilities
from patevolve.shared.errors import MessageError, PolicyError
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.planner import kinds_asked
from patevolve.shared.tools import Tools

OVERHEAD = 2048  # bytes of an envelope's and a question's fields
PER_SITE = 128  # bytes that each site's name, key and signature take in a request under secure sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What every site of a run has to be able to do; ``message``: bytes of the longest request, as foreseen."""

    kinds: tuple[str, ...]
    trust: str
    message: int


def needs_of(agreed: Agreed, tools: Tools) -> Needs:
    """Return what the plan needs, its candidates taken at four bytes a number.

    They may take less, so that no more is asked for than what any site can permit; and more, which is found out when
    the request is there.
    """
    plan, questions = agreed.plan, agreed.plan.questions
    asked = (questions.neighbours, questions.choices, questions.confidence, questions.labels)
    samples = plan.release.samples if questions.copies.share else 0
    candidates = max(samples, *(question.candidates if question.share else 0 for question in asked))
    classes, each = len(plan.data.classes), 4 * tools.generator.genome_size + 1
    classifier = tools.encoder.embedding_size * classes * 4 if questions.gradients.share else 0
    student = (tools.encoder.dimension + 1) * classes * 8 if questions.score.share else 0
    model = classes * max(tools.encoder.dimension, tools.encoder.embedding_size) * 8  # of the released prototypes
    island = plan.islands.candidates * each + model if plan.islands else 0
    size = OVERHEAD + PER_SITE * plan.sites.count + max(candidates * each, classifier, student, island)
    return Needs(kinds=kinds_asked(plan), trust=plan.privacy.trust, message=min(size, MAX_REQUEST))


def lacking(needs: Needs, can: Capabilities) -> tuple[str, str]:
    """Return the code under which a site is left out and the reason in words, or two empty texts."""
    if missing := [kind for kind in needs.kinds if kind not in can.kinds]:
        return PolicyError.code, f"it answers no {_listed(missing)}; the plan asks for it"
    if needs.trust not in can.trust:
        return PolicyError.code, f"it takes part under {_listed(can.trust)} alone; the plan says {needs.trust!r}"
    if can.message < needs.message:
        return MessageError.code, f"it reads requests of {can.message} bytes; the plan's take about {needs.message}"
    return OK, ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"
