"""Descriptions of what was released, sufficient to compute its privacy cost. They are what ledgers store.

Compatibility contract (a ledger outlives the software that wrote it):

1. A kind is never removed and never renamed.
2. The meaning of a kind or a field never changes; a correction is a new kind.
3. A new field is optional, and its default means what its absence meant.
4. An unknown kind, or an unknown or missing field, raises UnsupportedEventError: a cost that cannot be computed may
   not be composed with anything.

Lengths (``sigma``, ``share_sigma``, ``scale``, ``l1``, ``l2``) are in lattice units. Neighbouring data differ by
adding or removing one privacy unit, whose ballot ``l1`` and ``l2`` bound. ``count`` is a number of identical
repetitions that compose adaptively.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError, UnsupportedEventError


def _count(value: object) -> int:
    return checks.integer(count=value, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian:
    """Independent discrete Gaussian noise N_Z(0, sigma²) on every coordinate of one integer vector."""

    sigma: float
    l2: float
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        checks.positive(sigma=self.sigma)
        checks.positive(l2=self.l2)
        _count(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianSum:
    """The sum of ``shares`` discrete Gaussian noise vectors of ``share_sigma`` that the viewer does not know.

    shares: the least number of honest shares in the sum (sites less drop-outs less colluders)
    """

    share_sigma: float
    shares: int
    l2: float
    l1: float
    dimension: int
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        # Kairouz-Liu-Steinke 2021 Proposition 14 is stated for shares of at least 1/2.
        if not checks.positive(share_sigma=self.share_sigma) >= 0.5:
            raise ParameterError(
                f"share_sigma={self.share_sigma!r} found; expected at least 0.5 (lattice units). Use a finer lattice."
            )
        checks.integer(shares=self.shares, at_least=1)
        checks.positive(l2=self.l2)
        checks.positive(l1=self.l1)
        checks.integer(dimension=self.dimension, at_least=1)
        _count(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skellam:
    """Independent symmetric Skellam noise of this ``variance`` on every coordinate (sums of Skellams are Skellam)."""

    variance: float
    l1: float
    l2: float
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        checks.positive(variance=self.variance)
        checks.positive(l1=self.l1)
        checks.positive(l2=self.l2)
        _count(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLaplace:
    """Independent discrete Laplace noise, P(k) proportional to exp(-|k|/scale), on every coordinate."""

    scale: float
    l1: float
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        checks.positive(scale=self.scale)
        checks.positive(l1=self.l1)
        _count(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoisyMax:
    """The winner alone of a vote histogram under Laplace noise of ``scale`` votes (PATE's LNMax): 2/scale pure DP."""

    scale: float
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        checks.positive(scale=self.scale)
        _count(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """The exponential mechanism, or report-noisy-max with Gumbel noise, of pure-DP parameter ``epsilon``."""

    epsilon: float
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        checks.positive(epsilon=self.epsilon)
        _count(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampledGaussian:
    """``steps`` of the Gaussian mechanism, each on a fresh Poisson sample of the units (DP-SGD).

    noise_multiplier: noise standard deviation / L2 bound of one unit
    sample_rate:      probability with which each unit enters a step; 1 is no sampling
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        checks.positive(noise_multiplier=self.noise_multiplier)
        if not checks.positive(sample_rate=self.sample_rate) <= 1.0:
            raise ParameterError(f"sample_rate={self.sample_rate!r} found; expected a number in (0, 1].")
        checks.integer(steps=self.steps, at_least=1)
        _count(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothSensitivityRelease:
    """A number released with Gaussian noise of standard deviation ``sigma`` times its ``beta``-smooth sensitivity."""

    beta: float
    sigma: float
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse parameters outside the theorem's domain."""
        checks.positive(beta=self.beta)
        checks.positive(sigma=self.sigma)
        _count(self.count)


Event = (
    DiscreteGaussian
    | DiscreteGaussianSum
    | Skellam
    | DiscreteLaplace
    | LaplaceNoisyMax
    | Exponential
    | SubsampledGaussian
    | SmoothSensitivityRelease
)

KINDS: dict[str, type[Event]] = {
    "discrete_gaussian": DiscreteGaussian,
    "discrete_gaussian_sum": DiscreteGaussianSum,
    "skellam": Skellam,
    "discrete_laplace": DiscreteLaplace,
    "laplace_noisy_max": LaplaceNoisyMax,
    "exponential": Exponential,
    "subsampled_gaussian": SubsampledGaussian,
    "smooth_sensitivity_gaussian": SmoothSensitivityRelease,
}
_NAMES = {event_type: kind for kind, event_type in KINDS.items()}
_INTEGERS = frozenset({"shares", "dimension", "steps", "count"})


def _construct(event_type: type[Event], fields: dict[str, Any]) -> Event:
    return event_type(**fields)


def to_record(event: Event) -> dict[str, object]:
    """Return the event as a JSON object: its "kind" and every field, floats as floats, counts as ints.

    Raises UnsupportedEventError for anything that is not an event.
    """
    kind = _NAMES.get(type(event))
    if kind is None:
        raise UnsupportedEventError(
            f"{type(event).__name__} found; expected one of {sorted(KINDS)}. Its cost cannot be known."
        )
    record: dict[str, object] = {"kind": kind}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        record[field.name] = int(value) if field.name in _INTEGERS else float(value)
    return record


def from_record(record: Mapping[str, object]) -> Event:
    """Return the event that ``to_record`` wrote.

    Raises UnsupportedEventError for an unknown kind or field, a missing field, or a value outside its domain.
    """
    kind = record.get("kind")
    event_type = KINDS.get(kind) if isinstance(kind, str) else None
    if event_type is None:
        raise UnsupportedEventError(
            f"event kind {kind!r} found; expected one of {sorted(KINDS)}. Use a version of patevolve that knows it."
        )
    fields = {name: value for name, value in record.items() if name != "kind"}
    known = {field.name for field in dataclasses.fields(event_type)}
    if not set(fields) <= known:
        raise UnsupportedEventError(
            f"fields {sorted(set(fields) - known)} found in a {kind} event; expected only {sorted(known)}."
        )
    try:
        return _construct(event_type, fields)
    except (TypeError, ParameterError) as error:
        raise UnsupportedEventError(f"a {kind} event cannot be read: {error}") from error
