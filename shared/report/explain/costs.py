"""Tables of the page's privacy figures: Rényi costs, flip probabilities, win odds. All of them come from privacy/.

The page adds up rows, adds the conversion's offset and takes the least over the orders; it knows no theorem. The votes
here are those of a made-up data set, so that data-dependent figures may be shown; a real site's may not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.privacy import accountant, odds, pate, tails
from patevolve.shared.privacy.accountant import ORDERS
from patevolve.shared.privacy.events import DiscreteGaussian, LaplaceNoisyMax

TEACHERS = (10, 25, 50, 100, 250)
CLASSES = (2, 3, 5)
SIGMAS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
GAMMAS = (4.0, 2.0, 1.0, 0.4, 0.2, 0.1, 0.04)  # scales 2/γ of 0.5 to 50 votes: noise grows from left to right
DELTAS = (1e-3, 1e-4, 1e-5, 1e-6)
SITES = (1, 2, 4, 8, 16)
MOST_ABSENT = 2  # drop-outs and colluders, each
TEST_NOISE = 3.0  # the confident test's σ₁ in units of σ
THRESHOLD = 0.6  # of the teachers
ANSWERED = 0.5  # a confident plan fixes beforehand that at most half of the queries tested are answered
QUERIES = (10, 20, 50, 100, 200, 400, 700, 1000, 2000, 4000)  # even, for the halves
DIGITS = 12  # significant digits of a Rényi cost in the page

Histograms = Mapping[tuple[int, int], NDArray[np.int64]]  # (classes, teachers) -> (samples, classes) votes
Share = Callable[..., float]
_GRID = np.array(ORDERS)


def threshold(teachers: int) -> int:
    """Return the votes that the noisy largest count must reach before the confident aggregator answers."""
    return round(THRESHOLD * teachers)


def figures(votes: Histograms, share_sigma: Share) -> dict[str, Any]:
    """Return every table of costs and odds, JSON-able.

    votes:        of the made-up samples
    share_sigma:  ``noise.distributed.share_sigma`` (a mechanism is passed in)
    """
    return {
        "orders": list(ORDERS),
        "teachers": TEACHERS,
        "classes": CLASSES,
        "sigmas": SIGMAS,
        "gammas": GAMMAS,
        "deltas": DELTAS,
        "sites": SITES,
        "testNoise": TEST_NOISE,
        "answers": ANSWERED,
        "queries": QUERIES,
        "thresholds": [threshold(teachers) for teachers in TEACHERS],
        "offsets": [_short(accountant.conversion_offset(delta, _GRID)) for delta in DELTAS],
        "rows": _independent(),
        "flips": _flips(),
        "pooled": _pooled(share_sigma),
        **_dependent(votes),
    }


def _short(values: Any, digits: int = DIGITS) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=np.float64)]


def _independent() -> dict[str, list[list[float]]]:
    """Return the Rényi cost of one answer, whatever the votes are, by noise stop and order."""
    return {
        "gnmax": [_short(accountant.rdp(DiscreteGaussian(sigma=s, l2=math.sqrt(2.0)))) for s in SIGMAS],
        "lnmax": [_short(accountant.rdp(LaplaceNoisyMax(scale=2.0 / g))) for g in GAMMAS],
        "confident": [
            _short(
                pate.confident_independent(tests=2, answers=1, sigma_threshold=TEST_NOISE * s, sigma=s, orders=_GRID)
                / 2
            )
            for s in SIGMAS
        ],
    }


def _flips() -> dict[str, list[list[float]]]:
    """Return Pr[the runner-up overtakes] by noise stop and margin in votes."""
    most = max(TEACHERS) + 1
    return {
        "gnmax": [_flip(tails.discrete_gaussian_difference(s, most)) for s in SIGMAS],
        "lnmax": [_flip(tails.discrete_laplace_difference(2.0 / g, most)) for g in GAMMAS],
    }


def _flip(log_reaches: NDArray[np.float64]) -> list[float]:
    """Return the probability of a change by margin from that of reaching it: a tie is broken by a fair coin."""
    reaches = np.exp(log_reaches)
    return _short((reaches[:-1] + reaches[1:]) / 2, 9)


def _pooled(share_sigma: Share) -> dict[str, Any]:
    """Return each site's noise share, the sum's noise, and the odds that a 60:40 vote survives it.

    Keys are "sites/drop-outs/colluders"; each-site noise is under "sites".
    """
    absent = range(MOST_ABSENT + 1)
    cases = [(n, d, t) for n in SITES for d in absent for t in absent if n - d - t >= 1]
    found: dict[str, Any] = {"share": {}, "std": {}, "wins": {}}
    for n in SITES:
        _case(found, str(n), n, [(sigma, sigma) for sigma in SIGMAS])
    for n, d, t in cases:
        lattice = 1024.0  # as votes are: a share's own lower bound concerns lattice steps
        shares = [share_sigma(total_sigma=lattice * s, sites=n, dropouts=d, colluders=t) / lattice for s in SIGMAS]
        _case(found, f"{n}/{d}/{t}", n, list(zip(shares, SIGMAS, strict=True)))
    return found


def _case(found: dict[str, Any], key: str, sites: int, shares: Sequence[tuple[float, float]]) -> None:
    found["share"][key] = _short([share for share, _ in shares])
    found["std"][key] = _short([share * math.sqrt(sites) for share, _ in shares])
    found["wins"][key] = [
        [
            _short([odds.sixty_forty(sites * teachers, share * math.sqrt(sites), classes) for classes in CLASSES])
            for teachers in TEACHERS
        ]
        for share, _ in shares
    ]


def _dependent(votes: Histograms) -> dict[str, Any]:
    """Return the data-dependent cost per query as sparse rows, and which row holds for a sample.

    Places are by aggregator, noise, classes, teachers and sample.
    """
    rows: list[list[float]] = []
    places: dict[tuple[float, ...], int] = {}

    def table(law: Callable[[int, int, NDArray[np.int64]], NDArray[np.float64]]) -> list[Any]:
        stops = range(len(SIGMAS))
        return [
            [[[_sparse(row, rows, places) for row in law(i, k, votes[c, k])] for k in TEACHERS] for c in CLASSES]
            for i in stops
        ]

    return {
        "dependent": {"gnmax": table(_gnmax), "lnmax": table(_lnmax), "confident": table(_confident)},
        "sparse": rows,
        "answered": [
            [[_short(np.exp(_log_answered(s, k, votes[c, k])), 9) for k in TEACHERS] for c in CLASSES] for s in SIGMAS
        ],
    }


def _sparse(row: NDArray[np.float64], rows: list[list[float]], places: dict[tuple[float, ...], int]) -> int:
    """Return the place of [order's place, cost, order's place, cost ...] at the orders that win for some (q, δ)."""
    totals = np.multiply.outer(np.array(QUERIES, dtype=np.float64), row)
    winners = {
        int(place)
        for delta in DELTAS
        for place in np.argmin(
            np.where(-np.expm1(-totals) <= delta**2, 0.0, totals + accountant.conversion_offset(delta, _GRID)), axis=1
        )
    }
    key = tuple(value for place in sorted(winners) for value in (float(place), *_short([row[place]], 10)))
    if key not in places:
        places[key] = len(rows)
        rows.append(list(key))
    return places[key]


def _gnmax(stop: int, _: int, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return pate.gnmax_bound(pate.log_q_discrete_gaussian(counts, SIGMAS[stop]), SIGMAS[stop], _GRID)


def _lnmax(stop: int, _: int, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    scale = 2.0 / GAMMAS[stop]
    return pate.pure_bound(pate.log_q_discrete_laplace(counts, scale), pate.lnmax_epsilon(scale), _GRID)


def _confident(stop: int, teachers: int, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    log_pr = _log_answered(SIGMAS[stop], teachers, counts)
    return pate.threshold_bound(log_pr, TEST_NOISE * SIGMAS[stop], _GRID) + ANSWERED * _gnmax(stop, teachers, counts)


def _log_answered(sigma: float, teachers: int, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return pate.log_answered(counts, threshold(teachers), TEST_NOISE * sigma)
