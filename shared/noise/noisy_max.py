"""PATE's aggregators: many teachers' votes in, one label or an abstention out (proofs in NOISY_MAX.md).

Noise is drawn on the integers from the given source, once per released answer. The winner, the test and the label
are post-processing of noisy integers. Ties of noisy counts are broken by fresh random bits: with small noise they are
common, and "the lowest class wins" would bias the labels.

Sources: Papernot 2017 (LNMax), Papernot 2018 (GNMax, Confident-GNMax: Algorithm 1, interactive: Algorithm 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import discrete_gaussian, discrete_laplace
from patevolve.shared.privacy.events import DiscreteGaussian, LaplaceNoisyMax

if TYPE_CHECKING:
    from patevolve.shared.randomness import NoiseSource
    from patevolve.shared.tally import ExactTally, IntVector

ABSTAINED = -1  # the label of a query that got no answer

BoolVector = NDArray[np.bool_]

VOTE_L1 = 2.0  # label: one-vote-moves
VOTE_L2 = math.sqrt(2.0)
MAXIMUM_L2 = 1.0  # label: maximum-moves-by-one


@dataclass(frozen=True, slots=True, kw_only=True)
class LNMax:
    """Laplace noisy max: the plurality of counts with discrete Laplace noise. Each answer is (2/scale)-DP.

    scale:    b of Pr[k] ∝ exp(−|k|/b), votes. The seed article's Lap(2/γ) is b = 2/γ, so an answer costs ε = γ
    """

    scale: float
    classes: int

    def __post_init__(self) -> None:
        """Refuse parameters outside their domain."""
        checks.positive(scale=self.scale)
        checks.integer(classes=self.classes, at_least=2)

    def event(self, answers: int) -> LaplaceNoisyMax:
        """Return the charge for this many answers."""
        return LaplaceNoisyMax(scale=self.scale, count=answers)

    def release(self, tally: ExactTally, source: NoiseSource) -> IntVector:
        """Return a label per query: (n,) int64. Charge ``event(n)`` first."""
        votes = _histograms(tally, self.classes)
        noisy = votes + discrete_laplace.sampler(self.scale).draw(votes.size, source).reshape(
            votes.shape
        )  # label: laplace-noise-once
        return _winners(noisy, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class GNMax:
    """Gaussian noisy max: the plurality of counts with discrete Gaussian noise. Each answer has RDP α/sigma²."""

    sigma: float
    classes: int

    def __post_init__(self) -> None:
        """Refuse parameters outside their domain."""
        checks.positive(sigma=self.sigma)
        checks.integer(classes=self.classes, at_least=2)

    def event(self, answers: int) -> DiscreteGaussian:
        """Return the charge for this many answers."""
        return DiscreteGaussian(sigma=self.sigma, l2=VOTE_L2, count=answers)

    def release(self, tally: ExactTally, source: NoiseSource) -> IntVector:
        """Return a label per query: (n,) int64. Charge ``event(n)`` first."""
        return self._label(_histograms(tally, self.classes), source)

    def _label(self, votes: NDArray[np.int64], source: NoiseSource) -> IntVector:
        noisy = votes + discrete_gaussian.sampler(self.sigma).draw(votes.size, source).reshape(
            votes.shape
        )  # label: gaussian-noise-once
        return _winners(noisy, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentGNMax:
    """Answer only where the noisy top count reaches a threshold; GNMax answers there, the rest abstain.

    threshold:        votes that the noisy maximum must reach
    sigma_threshold:  noise of that test (σ₁), costs α/(2σ₁²) for every query, answered or not
    sigma:            noise of the answers (σ₂), costs α/σ₂² for each answer
    """

    threshold: int
    sigma_threshold: float
    sigma: float
    classes: int

    def __post_init__(self) -> None:
        """Refuse parameters outside their domain."""
        checks.integer(threshold=self.threshold, at_least=-(2**31), at_most=2**31)
        checks.positive(sigma_threshold=self.sigma_threshold)
        checks.positive(sigma=self.sigma)
        checks.integer(classes=self.classes, at_least=2)

    def test_event(self, queries: int) -> DiscreteGaussian:
        """Return the charge for testing this many queries."""
        return DiscreteGaussian(sigma=self.sigma_threshold, l2=MAXIMUM_L2, count=queries)

    def answer_event(self, answers: int) -> DiscreteGaussian:
        """Return the charge for this many answers."""
        return DiscreteGaussian(sigma=self.sigma, l2=VOTE_L2, count=answers)

    def screen(self, tally: ExactTally, source: NoiseSource) -> BoolVector:
        """Return which queries pass the test: (n,) bool, public. Charge ``test_event(n)`` first."""
        return self._passes(_histograms(tally, self.classes), source)

    def answer(self, tally: ExactTally, asked: ArrayLike, source: NoiseSource) -> IntVector:
        """Return labels where ``asked`` (public), ABSTAINED elsewhere: (n,). Charge ``answer_event(asked)`` first."""
        votes, mask = _histograms(tally, self.classes), np.asarray(asked, dtype=bool)
        if mask.shape != votes.shape[:1]:
            raise ParameterError(f"asked of shape {mask.shape} found; expected {votes.shape[:1]}, one per query.")
        labels = np.full(votes.shape[0], ABSTAINED, dtype=np.int64)
        if mask.any():
            labels[mask] = GNMax(sigma=self.sigma, classes=self.classes)._label(votes[mask], source)  # noqa: SLF001
        return labels

    def _passes(self, votes: NDArray[np.int64], source: NoiseSource) -> BoolVector:
        top = votes.max(axis=1)
        return np.asarray(  # label: test-noise-once
            top + discrete_gaussian.sampler(self.sigma_threshold).draw(top.size, source) >= self.threshold
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveGNMax:
    """Ask the teachers only where they disagree with the student; reinforce the student where it is sure and right.

    inner:       the test and the answers; its threshold bounds the noisy largest (votes − teachers·p) from below
    confidence:  a student's class probability from which a query that failed the test is labelled by the student
    """

    inner: ConfidentGNMax
    confidence: float

    def __post_init__(self) -> None:
        """Refuse parameters outside their domain."""
        checks.open_unit(confidence=self.confidence)

    def screen(self, tally: ExactTally, student: ArrayLike, source: NoiseSource) -> BoolVector:
        """Return which queries surprise the student: (n,) bool, public. Charge ``inner.test_event(n)`` first."""
        votes = _histograms(tally, self.inner.classes)
        surprise = votes - baseline(student, votes.sum(axis=1))  # label: public-baseline
        return self.inner._passes(surprise, source)  # noqa: SLF001 - the same test on shifted counts

    def answer(self, tally: ExactTally, student: ArrayLike, asked: ArrayLike, source: NoiseSource) -> IntVector:
        """Return labels: the teachers' where ``asked``, the sure student's own elsewhere, or ABSTAINED."""
        labels = self.inner.answer(tally, asked, source)
        p = np.asarray(student, dtype=np.float64)
        kept = ~np.asarray(asked, dtype=bool) & (p.max(axis=1) >= self.confidence)
        labels[kept] = p.argmax(axis=1)[kept]
        return labels


def baseline(student: ArrayLike, teachers: IntVector) -> NDArray[np.int64]:
    """Return the student's expected votes, teachers·p, as whole votes that sum to ``teachers``: (n, classes).

    Largest remainders are rounded up, so that the shifted counts stay on the integer lattice.
    Raises ParameterError unless each row is a probability vector.
    """
    p = np.asarray(student, dtype=np.float64)
    if p.ndim != 2 or not np.all(p >= 0.0) or not np.all(np.abs(p.sum(axis=1) - 1.0) <= 1e-6):
        raise ParameterError(f"student probabilities of shape {p.shape} found; expected rows >= 0 that sum to 1.")
    exact = p / p.sum(axis=1, keepdims=True) * teachers[:, None]
    whole = np.floor(exact)
    rank = np.argsort(np.argsort(whole - exact, axis=1, kind="stable"), axis=1, kind="stable")
    missing = teachers - whole.sum(axis=1)
    return np.asarray(whole + (rank < missing[:, None]), dtype=np.int64)


def _histograms(tally: ExactTally, classes: int) -> NDArray[np.int64]:
    """Return the tally as (n, classes). Raises ParameterError if a unit can move more than one vote per query."""
    if tally.values.size == 0 or tally.values.size % classes:
        raise ParameterError(
            f"{tally.values.size} counts found; expected a multiple of classes={classes}, at least one."
        )
    queries = tally.values.size // classes
    if not (
        tally.l1 <= VOTE_L1 * queries and tally.l2 <= VOTE_L2 * math.sqrt(queries) * (1 + 1e-12)
    ):  # label: ballot-bound-checked
        raise ParameterError(
            f"a tally with l1={tally.l1}, l2={tally.l2} over {queries} queries found; expected at most one moved vote "
            f"per query (l1 <= 2·queries, l2 <= sqrt(2·queries)). Bound the ballots."
        )
    return tally.values.reshape(queries, classes)


def _winners(noisy: NDArray[np.int64], source: NoiseSource) -> IntVector:
    """Return the largest entry's index per row; ties are broken by 63 fresh random bits per entry."""
    bits = np.frombuffer(source.read(8 * noisy.size), dtype="<u8").reshape(noisy.shape) >> np.uint64(1)
    tied = noisy == noisy.max(axis=1, keepdims=True)
    return np.asarray(np.where(tied, bits.astype(np.int64), -1).argmax(axis=1), dtype=np.int64)
