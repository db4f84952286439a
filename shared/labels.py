"""Labels for the chosen candidates: the class they were voted for, noisy votes of PATE teachers, or a classifier's.

The choice depends on the plan alone. With few teachers the noise drowns their votes; class-conditional votes then
give better labels at no extra cost, and the planner says so in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.evolution.population import Population
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.learning import Learnt, told_by
from patevolve.shared.privacy.planner import choose_labels
from patevolve.shared.tools import Tools

FEWEST = 2  # samples of a class that a classifier has to see: the gate asks for as many


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelling:
    """The released classes of the candidates.

    method:  "votes", "pate" or "classifier"
    reason:  why, in words for the report
    classes: (P,) int64
    """

    method: Literal["votes", "pate", "classifier"]
    reason: str
    classes: NDArray[np.int64]


def decide(inquiry: Inquiry, tools: Tools, learnt: Learnt, chosen: Population) -> Labelling:
    """Return the labels of the chosen candidates, asking the teachers only if the plan makes that worth its cost."""
    plan = inquiry.agreed.plan
    choice = choose_labels(plan)
    if choice.method == "votes":
        return Labelling(method="votes", reason=choice.reason, classes=chosen.classes)
    if choice.method == "classifier" and learnt.classifier is not None:
        told = told_by(learnt.classifier, tools, chosen)
        for cls in range(len(plan.data.classes)):
            if np.count_nonzero(told == cls) < FEWEST:  # noise drowned it: better what was drawn for it than none
                told[chosen.classes == cls] = cls
        return Labelling(method="classifier", reason=choice.reason, classes=told)
    votes = inquiry.ask("labels", {"genomes": chosen.genomes, "classes": chosen.classes}).values
    # The noisy histogram is released, so the argmax is free (GNMax, Papernot et al. 2018).
    winners = np.argmax(votes.reshape(len(chosen), len(plan.data.classes)), axis=1).astype(np.int64)
    return Labelling(method="pate", reason=choice.reason, classes=winners)
