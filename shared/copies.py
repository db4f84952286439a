"""Near-duplicates of private records among the chosen candidates: asked of the sites, and dropped.

A candidate is dropped if its noisy count of units that are close to it exceeds a threshold. The threshold follows from
the noise and from how surely the plan wants a copy to be caught: both error rates are known before anything is asked.
Differential privacy itself forbids a cheap and sharp test: what finds one record surely cannot hide that record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from patevolve.shared.evolution.population import Population
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.privacy.advice import clean_share, copy_threshold

QUESTION = "copies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """What became of the question: public, since it is made from the noisy answer.

    asked, dropped:  candidates
    catch:           probability that a candidate to which one unit is close was dropped
    lost:            probability that a candidate to which no unit is close was dropped
    """

    asked: int
    dropped: int
    catch: float
    lost: float


def screen(inquiry: Inquiry, chosen: Population) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], Screening | None]:
    """Return which candidates stay, (P,) bool, and how they were screened; all stay if the plan does not ask."""
    if not inquiry.asked(QUESTION):
        return np.ones(len(chosen), bool), None
    tally = inquiry.ask(QUESTION, {"genomes": chosen.genomes, "classes": chosen.classes})
    catch = inquiry.agreed.plan.questions.copies.catch
    stays = tally.values <= copy_threshold(tally.std, catch)
    return stays, Screening(
        asked=len(chosen), dropped=int(np.sum(~stays)), catch=catch, lost=1.0 - clean_share(tally.std, catch)
    )
