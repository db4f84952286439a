"""Membership inference on a release: can an attacker tell records that took part from records that did not?

Scores are higher for what looks like a member. Members and non-members are from the same sites, so that a difference is
due to membership alone. An attack that finds nothing proves nothing; one that finds much at a small ε is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.audit import bounds
from patevolve.shared.audit.bounds import Interval, LowFalse

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
RATES = (0.01, 0.001)
_BLOCK = 256  # records at a time: 256 x 6,000 distances are 12 MB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Records as the attacker sees them: public features (n, d) and classes (n,)."""

    features: Floats
    classes: Labels

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack's result; chance is AUC 0.5, and TPR = FPR.

    above:   worst-case records: members that score above every non-member
    expect:  how many would by chance: members / (others + 1)
    """

    name: str
    members: int
    others: int
    auc: Interval
    low: tuple[LowFalse, ...]
    above: int
    expect: float


def attack(name: str, members: Floats, others: Floats, confidence: float = 0.95) -> Attack:
    """Return how well scores tell members from others."""
    return Attack(
        name=name,
        members=members.size,
        others=others.size,
        auc=bounds.auc(members, others, confidence),
        low=tuple(bounds.tpr_at(members, others, rate, confidence) for rate in RATES),
        above=int(np.sum(members > others.max())),
        expect=members.size / (others.size + 1),
    )


def nearest(targets: Group, release: Group) -> Floats:
    """Return the distance of each target to the nearest released sample of its class, (n,); infinite without one."""
    found = np.full(len(targets), np.inf)
    for rows, squares in _squares(targets, release):
        found[rows] = np.sqrt(np.maximum(squares.min(axis=1), 0.0))
    return found


def log_density(targets: Group, sample: Group, width: float) -> Floats:
    """Return log of the mean Gaussian kernel between each target and its class's sample, (n,), up to a constant."""
    found = np.full(len(targets), -np.inf)
    for rows, squares in _squares(targets, sample):
        exponent = -squares / (2.0 * width**2)
        top = exponent.max(axis=1, keepdims=True)
        found[rows] = top[:, 0] + np.log(np.exp(exponent - top).mean(axis=1))
    return found


def density_ratio(targets: Group, release: Group, reference: Group) -> Floats:
    """Return log density of the release over that of a reference sample of non-members (DOMIAS, van Breugel 2023).

    The kernel's width is half of the reference's median distance to its nearest neighbour, which the attacker
    knows; it is narrow enough that a copied record outweighs the crowd.
    """
    width = max(_width(reference) / 2.0, 1e-9)
    # A class that the reference lacks says nothing.
    ratio = log_density(targets, release, width) - log_density(targets, reference, width)
    return np.nan_to_num(ratio, nan=0.0, posinf=0.0, neginf=-1e9)


def student_scores(targets: Group, weights: Floats, bias: Floats) -> Floats:
    """Return the linear student's log-probability of each target's own class: members fit better if it memorised."""
    logits = targets.features @ weights + bias
    logits = logits - logits.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(logits, targets.classes[:, None], axis=1)[:, 0]
    return np.asarray(chosen - np.log(np.exp(logits).sum(axis=1)), dtype=np.float64)


def against_shadows(own: Floats, shadows: Floats) -> Floats:
    """Return how far each target's score stands above those that shadow students give it, in their spread, (n,).

    own:      (n,) log-probabilities under the student that is attacked;  shadows: (k, n) under students of other data
    The shadows never saw the targets: the offline likelihood ratio attack of Carlini et al. 2022 (LiRA), on logits.
    """
    values = _logit(shadows)
    spread = values.std(axis=0, ddof=1)
    return np.asarray((_logit(own) - values.mean(axis=0)) / np.maximum(spread, 1e-3), dtype=np.float64)


def _logit(log_probability: Floats) -> Floats:
    """Return log(p / (1 − p)), in which confidences are close to normal."""
    bounded = np.minimum(log_probability, -1e-12)
    logit: Floats = bounded - np.log(-np.expm1(bounded))
    return logit


def _squares(targets: Group, sample: Group) -> Iterator[tuple[Labels, Floats]]:
    """Yield (rows of targets, squared distances to the sample of their class), block by block."""
    for cls in np.unique(targets.classes):
        pool = sample.features[sample.classes == cls]
        if not len(pool):
            continue
        norms = np.einsum("pd,pd->p", pool, pool)
        own = np.flatnonzero(targets.classes == cls)
        for start in range(0, len(own), _BLOCK):
            rows = own[start : start + _BLOCK]
            x = targets.features[rows]
            yield rows, np.einsum("nd,nd->n", x, x)[:, None] + norms - 2.0 * x @ pool.T


def _width(reference: Group) -> float:
    widths = []
    for rows, squares in _squares(reference, reference):
        others = np.sort(squares, axis=1)[:, 1:2]  # the nearest is the record itself
        if rows.size > 1 and others.size:
            widths.append(np.sqrt(np.maximum(others[:, 0], 0.0)))
    return float(np.median(np.concatenate(widths))) if widths else 1.0


def mean_shift(targets: Group, release: Group, reference: Group) -> Floats:
    """Return how much nearer each target lies to its class's mean in the release than in the reference (Homer 2008).

    Per feature the difference is weighed by the reference's variance. It is the natural attack on released averages.
    """
    found = np.zeros(len(targets))
    for cls in np.unique(targets.classes):
        own = targets.classes == cls
        made, known = (group.features[group.classes == cls] for group in (release, reference))
        if not (len(made) and len(known)):
            continue
        shift = made.mean(axis=0) - known.mean(axis=0)
        weight = shift / (reference.features.var(axis=0) + 1.0 / len(reference))
        found[own] = (targets.features[own] - (made.mean(axis=0) + known.mean(axis=0)) / 2.0) @ weight
    return found
