"""The release gate: what every release must show before a folder is written.

Each check here reads the synthetic samples, the plan and public features alone. That is post-processing of what was
already released under the budget, so the gate costs nothing. Whether a sample lies close to a private record is a
question to the sites with a charge of its own (``copies``); unless it was asked, the gate says "not asked" and claims
nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError, ReleaseError
from patevolve.shared.plan import Plan
from patevolve.shared.release.samples import Samples
from patevolve.shared.release.sharpness import Discriminator
from patevolve.shared.release.values import blank, plain, schema_problems

SPREAD_SAMPLES = 2000  # samples per class, evenly spaced, whose pairwise distances are averaged
SHOWN = 3  # problems listed in one message
BLANKS = (
    0.01  # share of images of one value that are left out without a word of refusal: a generator may miss its canvas
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of one check; every text is public.

    passed:  True, False, or None for "not asked"
    reason:  why the check exists, for the report
    """

    name: str
    passed: bool | None
    found: str
    expected: str
    reason: str


def all_of(results: Sequence[CheckResult]) -> bool:
    """Return whether every check that was asked passed; False if none was asked, so an empty gate fails."""
    asked = [result for result in results if result.passed is not None]
    return bool(asked) and all(result.passed is True for result in asked)


def not_asked(results: Sequence[CheckResult]) -> tuple[str, ...]:
    """Return one sentence for each check that was not asked, for the list of what a release does not cover."""
    return tuple(f"{result.name}: {result.found}. {result.reason}" for result in results if result.passed is None)


def require(results: Sequence[CheckResult]) -> None:
    """Do nothing if the gate passes. Raises ReleaseError naming the failed checks, or that nothing was checked."""
    if all_of(results):
        return
    failed = [result for result in results if result.passed is False]
    if not failed:
        raise ReleaseError("the release gate has no check that was asked; expected at least one. Nothing is released.")
    listed = "; ".join(f"{result.name}: {result.found} found, expected {result.expected}" for result in failed)
    raise ReleaseError(f"the release gate did not pass: {listed}. Nothing is released; the answers are kept.")


def worth_showing(values: NDArray[Any], plan: Plan) -> NDArray[np.int64]:
    """Return the positions of the rendered samples to release: all, but for a few images of one value throughout.

    Where more than ``BLANKS`` of the images are such, none is left out, and ``run_gate`` refuses them.
    """
    every = np.arange(len(values))
    drawn = every if plan.data.kind != "image" else np.flatnonzero(~blank(values))
    return drawn if len(every) - len(drawn) <= BLANKS * len(every) else every


def run_gate(
    samples: Samples,
    plan: Plan,
    *,
    features: NDArray[np.float64],
    reference_spread: float | NDArray[np.float64],
    spread_fraction: float = 0.1,
    reference_duplicates: float = 0.0,
    max_duplicates: float = 0.5,
    sharpness: Discriminator | None = None,
    near_duplicates: CheckResult | None = None,
    left_out: int = 0,
) -> tuple[CheckResult, ...]:
    """Return the outcome of every check, passed or not.

    features:              (n, d) public features of the samples
    reference_spread:      mean pairwise distance within a class of public samples: one number, or one per class
    spread_fraction:       a class whose spread is below this fraction of the reference has collapsed
    reference_duplicates:  share of exact duplicates that the public generator alone gives (a coarse schema has many)
    max_duplicates:        share of exact duplicates allowed among the samples beyond those
    sharpness:             tells blurred images, trained in public; None leaves the check unasked
    near_duplicates:       what became of the charged question, from ``screened``; None if it was not asked
    left_out:              images that ``worth_showing`` left out, for the words alone

    Raises ParameterError for a reference or limit outside its domain.
    """
    count = len(plan.data.classes)
    floors = _fraction(spread_fraction=spread_fraction) * _reference(reference_spread, count)
    public = _fraction(reference_duplicates=reference_duplicates)
    limit = public + (1.0 - public) * _fraction(max_duplicates=max_duplicates)
    return (
        _values(samples, plan, left_out),
        _coverage(samples, plan),
        _features(samples, features),
        _collapse(samples, plan, features, floors),
        _duplicates(samples, limit),
        *([_sharpness(samples, plan, sharpness)] if plan.data.kind == "image" else []),
        near_duplicates or UNSCREENED,
    )


NEAR = "near-duplicates"
UNSCREENED = CheckResult(
    name=NEAR,
    passed=None,
    found="not asked",
    expected="a charged question to the sites",
    reason="Closeness of a sample to a private record was not measured; only ε and δ bound it.",
)


def screened(*, asked: int, dropped: int, catch: float, lost: float) -> CheckResult:
    """Return the outcome of the near-duplicate question: it passes unless nothing is left.

    catch, lost: probability that a copy of a record, and a sample close to none, was dropped
    """
    return CheckResult(
        name=NEAR,
        passed=dropped < asked,
        found=f"{dropped} of {asked} candidates dropped",
        expected="those dropped to which more units seemed close than noise explains",
        reason=f"A copy of one unit's record was dropped with probability {catch:.3g}, and by noise alone so was a "
        f"sample close to no record with probability {lost:.3g}. A sharper test costs more of ε.",
    )


def _sharpness(samples: Samples, plan: Plan, discriminator: Discriminator | None) -> CheckResult:
    reason = "Blurred images teach a student the wrong texture, and no other check looks at texture."
    if discriminator is None or samples.images is None or schema_problems(samples, plan):
        return CheckResult(
            name="sharpness",
            passed=None,
            found="not asked",
            expected="images as sharp as the public generator's",
            reason=reason,
        )
    share, limit = float(np.mean(discriminator.blurred(samples.images))), plan.release.blurred
    return CheckResult(
        name="sharpness",
        passed=share <= discriminator.false_alarm + limit,  # NaN fails
        found=f"{share:.3g} of the images look blurred; of public ones {discriminator.false_alarm:.3g}, of blurred "
        f"copies {discriminator.caught:.3g}",
        expected=f"at most {discriminator.false_alarm + limit:.3g}",
        reason=reason,
    )


def _fraction(**named: float) -> float:
    ((name, value),) = named.items()
    if not 0.0 <= checks.finite(**named) <= 1.0:
        raise ParameterError(f"{name}={value!r} found; expected a fraction from 0 to 1. Correct {name}.")
    return float(value)


def _reference(spread_of: float | NDArray[np.float64], count: int) -> NDArray[np.float64]:
    given = np.asarray(spread_of, np.float64)
    if given.shape not in {(), (count,)}:
        raise ParameterError(f"reference_spread of shape {given.shape} found; expected one number, or ({count},).")
    values = np.broadcast_to(given, (count,))
    return np.array([checks.positive(reference_spread=value) for value in values.tolist()])


def _values(samples: Samples, plan: Plan, left_out: int) -> CheckResult:
    problems = schema_problems(samples, plan)
    table = "the plan's columns and classes; each cell in the public schema, missing only where it says so"
    empty = plain(plan.data.shape)
    texts = f"the plan's column and classes; texts in normal form, none empty or above {plan.data.length} bytes"
    images = f"the plan's classes; uint8 images of {' × '.join(map(str, plan.data.shape))}, none of {empty}"
    return CheckResult(
        name="values",
        passed=not problems,
        found="; ".join(problems[:SHOWN]) + (f"; {len(problems) - SHOWN} more" if len(problems) > SHOWN else "")
        if problems
        else "every sample as expected" + (f"; {left_out} of {empty} left out" if left_out else ""),
        expected={"table": table, "text": texts, "image": images}[plan.data.kind],
        reason="A value outside the public description cannot come from the public generator: it would be a fault.",
    )


def _coverage(samples: Samples, plan: Plan) -> CheckResult:
    counts = [int(np.sum(samples.classes == position)) for position in range(len(plan.data.classes))]
    return CheckResult(
        name="coverage",
        passed=all(count >= 1 for count in counts),
        found=", ".join(f"{name}: {count}" for name, count in zip(plan.data.classes, counts, strict=True)),
        expected="at least one sample of every class",
        reason="A class without samples cannot be learnt from the release, and its loss would go unnoticed.",
    )


def _features(samples: Samples, features: NDArray[np.float64]) -> CheckResult:
    whole = _measurable(samples, features)
    bad = 0 if not whole else int(np.sum(~np.isfinite(features).all(axis=1)))
    return CheckResult(
        name="features",
        passed=whole and len(samples) > 0 and bad == 0,
        found=f"shape {np.shape(features)}, {bad} samples with a feature that is not finite",
        expected=f"one row of finite public features for each of {len(samples)} samples",
        reason="A feature that is not finite would silently switch off the checks that compare distances.",
    )


def _measurable(samples: Samples, features: NDArray[np.float64]) -> bool:
    return features.ndim == 2 and len(features) == len(samples) and features.dtype.kind in "fiu"


def _collapse(samples: Samples, plan: Plan, features: NDArray[np.float64], floors: NDArray[np.float64]) -> CheckResult:
    count = len(plan.data.classes)
    spreads = np.full(count, math.nan)
    if _measurable(samples, features):
        spreads = spread(features, samples.classes, count)
    one = len(set(floors.tolist())) == 1
    least = ", ".join(f"{floor:.3g}" for floor in (floors[:1] if one else floors).tolist())
    listed = zip(plan.data.classes, spreads.tolist(), strict=True)
    return CheckResult(
        name="spread",
        passed=bool(np.all(spreads >= floors)),  # NaN fails
        found=", ".join(f"{name}: {value:.3g}" for name, value in listed),
        expected=f"at least {least} in each class, of two or more samples",
        reason="Samples of a class that are nearly alike mean that the evolution collapsed.",
    )


def spread(features: NDArray[np.float64], classes: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the mean pairwise Euclidean distance within each class: (count,), NaN for a class of fewer than two.

    Of a larger class, ``SPREAD_SAMPLES`` evenly spaced samples are measured.
    """
    return np.array([_mean_distance(features[classes == position]) for position in range(count)], np.float64)


def _mean_distance(points: NDArray[np.float64]) -> float:
    points = np.asarray(points, np.float64)
    if len(points) > SPREAD_SAMPLES:
        points = points[np.linspace(0, len(points) - 1, SPREAD_SAMPLES).astype(np.int64)]
    n = len(points)
    if n < 2 or not np.isfinite(points).all():
        return math.nan
    points = points - points.mean(axis=0)  # centred: less cancellation below
    squares = np.einsum("ij,ij->i", points, points)
    total = 0.0
    for start in range(0, n, 256):
        block = slice(start, start + 256)
        squared = squares[block, None] + squares[None, :] - 2.0 * points[block] @ points.T
        total += float(np.sqrt(np.maximum(squared, 0.0)).sum())
    return total / (n * (n - 1))


def _duplicates(samples: Samples, limit: float) -> CheckResult:
    share = duplicate_share(samples)
    return CheckResult(
        name="duplicates",
        passed=share <= limit,  # NaN fails
        found=f"{share:.3g} of the samples repeat an earlier one",
        expected=f"at most {limit:.3g}",
        reason="Many copies of one sample add no information and mean that the evolution collapsed.",
    )


def duplicate_share(samples: Samples) -> float:
    """Return the fraction of samples, class included, that equal an earlier one; NaN without samples."""
    if not len(samples):
        return math.nan
    images = samples.images
    contents = samples.rows if images is None else (hashlib.sha256(image.tobytes()).digest() for image in images)
    distinct = set(zip(samples.classes.tolist(), contents, strict=True))
    return 1.0 - len(distinct) / len(samples)
