"""Who masks with whom, and who decides on drop-outs: all pairs for few sites, a k-regular graph for many.

Many sites stand on a circle in a random order; each masks with the k/2 before and the k/2 after it (the Harary graph
of Bell, Bonawitz, Gascon, Lepoint and Raykova 2020). A random committee of K sites, the deciders, holds the shares.
Both are drawn by a public stream from plan and identities, so before any key of a run is known.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import ParameterError
from patevolve.shared.randomness import stream
from patevolve.shared.secagg.spec import SumSpec
from patevolve.shared.wire import canonical_json

COMPLETE = 40  # up to here every site masks with every other one, and nothing is left to chance
EXPOSED = 2.0**-40  # probability that the draw puts too many colluders together
STUCK = 1e-6  # probability that random drop-outs, within the plan's number, are too many in one place


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of the graph.

    half:       k/2, neighbours on each side (0: all pairs)
    deciders:   K, sites that hold shares
    threshold:  T, shares that open a secret
    gap:        most dropped sites in any k/2 consecutive places
    colluding:  colluders among the deciders, at most (but with probability EXPOSED)
    clustered:  colluders in any k/2 consecutive places, at most (but with probability EXPOSED)
    """

    half: int
    deciders: int
    threshold: int
    gap: int
    colluding: int
    clustered: int

    def lies(self, dropped: int) -> int:
        """Return how many sites a coordinator can leave out that tells each decider of at most ``dropped``."""
        return dropped * (self.deciders - self.colluding) // (self.threshold - self.colluding)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """The graph over sites, which are numbered in the order of their names.

    neighbours: (n, k) int64, sorted rows
    deciders:   (K,) int64, sorted
    circle:     (n,) int64, site at each place; used where the graph has gaps to watch
    """

    sizes: Sizes
    neighbours: NDArray[np.int64]
    deciders: NDArray[np.int64]
    circle: NDArray[np.int64]

    def widest_gap(self, present: NDArray[np.bool_]) -> int:
        """Return the most absent sites in any k/2 consecutive places (0 where all pairs mask)."""
        if not self.sizes.half:
            return 0
        absent = ~present[self.circle]
        sums = np.concatenate([[0], np.cumsum(np.concatenate([absent, absent[: self.sizes.half - 1]]))])
        return int((sums[self.sizes.half :] - sums[: -self.sizes.half]).max())


def build(spec: SumSpec) -> Graph:
    """Return the graph of a run. Raises ParameterError when no graph of this size holds against its adversary."""
    sizes = choose(sites=spec.count, dropouts=spec.dropouts, colluders=spec.colluders)
    safe = holds_against_lies(sizes) and sizes.lies(spec.dropouts) + spec.colluders < spec.count
    if spec.trust == "active" and not safe:  # label: quorum-intersection
        raise ParameterError(
            f"{spec.count} sites with {spec.dropouts} drop-outs and {spec.colluders} colluders: a coordinator that "
            f"lies about drop-outs could open one site's value. Expect fewer of either, add sites, or trust it to "
            f"keep to the protocol (trust = 'curious')."
        )
    committed = hashlib.sha256(canonical_json({"plan": spec.plan, "sites": dict(spec.sites)})).digest()
    return _draw(committed, spec.count, sizes)


@functools.lru_cache(maxsize=8)  # the sites of a simulation share one graph
def _draw(committed: bytes, n: int, sizes: Sizes) -> Graph:
    draws = stream(int.from_bytes(committed, "big"), "secagg graph 1")  # label: graph-before-keys
    circle = draws.permutation(n).astype(np.int64)
    deciders = np.sort(draws.permutation(n)[: sizes.deciders]).astype(np.int64)
    if not sizes.half:
        rows = np.array([[other for other in range(n) if other != site] for site in range(n)], np.int64)
    else:
        steps = np.array([step for step in range(-sizes.half, sizes.half + 1) if step])
        rows = np.empty((n, 2 * sizes.half), np.int64)
        rows[circle] = circle[(np.arange(n)[:, None] + steps) % n]
        rows.sort(axis=1)
    for array in (rows, deciders, circle):
        array.flags.writeable = False
    return Graph(sizes=sizes, neighbours=rows, deciders=deciders, circle=circle)


def honest_values(spec: SumSpec) -> int:
    """Return how many honest sites' values are in any sum that opens: what the noise must be sized for.

    It is n - d - t for a coordinator that keeps to the protocol. One that lies to each decider otherwise can leave out
    somewhat more than d sites (``Sizes.lies``); for small d it cannot: 4 sites with d = t = 1 leave 2 either way.
    """
    if spec.trust == "curious":
        return spec.count - spec.dropouts - spec.colluders
    return spec.count - build(spec).sizes.lies(spec.dropouts) - spec.colluders  # label: lies-bounded


def holds_against_lies(sizes: Sizes) -> bool:
    """Return whether no site's two kinds of secret can both be opened: 2T > K + colluding deciders."""
    return 2 * sizes.threshold > sizes.deciders + sizes.colluding > 2 * sizes.colluding


@functools.lru_cache(maxsize=64)
def choose(*, sites: int, dropouts: int, colluders: int) -> Sizes:
    """Return the smallest graph that meets EXPOSED and STUCK; all pairs for few sites or if none does."""
    everyone = Sizes(
        half=0, deciders=sites, threshold=sites - dropouts, gap=0, colluding=colluders, clustered=colluders
    )
    if sites <= COMPLETE:
        return everyone
    for K in range(8, sites):
        lost = _quantile(sites, dropouts, K, STUCK)
        colluding = _quantile(sites, colluders, K, EXPOSED)
        if 3 * (K - lost - colluding) >= 2 * (K - colluding) > 0 and 2 * (K - lost) > K + colluding:
            break
    else:
        return everyone
    for half in range(4, (sites - 1) // 2):
        gap = _quantile(sites, dropouts, half, STUCK / sites)
        clustered = _quantile(sites, colluders, half, EXPOSED / sites)
        sizes = Sizes(half=half, deciders=K, threshold=K - lost, gap=gap, colluding=colluding, clustered=clustered)
        if sizes.lies(gap) + clustered < half:
            return sizes
    return everyone


def failure(sizes: Sizes, *, sites: int, dropouts: int, colluders: int) -> Mapping[str, float]:
    """Return the graph's failure probabilities, over its draw.

    exposed:  too many colluders among the deciders or in one stretch of the circle, so that a lie may pay
    stuck:    ``dropouts`` random losses leave a sum of enough sites that can still not be opened
    """
    if not sizes.half:
        return {"exposed": 0.0, "stuck": 0.0}
    lost = sizes.deciders - sizes.threshold
    return {
        "exposed": _tail(sites, colluders, sizes.deciders, sizes.colluding)
        + sites * _tail(sites, colluders, sizes.half, sizes.clustered),
        "stuck": _tail(sites, dropouts, sizes.deciders, lost) + sites * _tail(sites, dropouts, sizes.half, sizes.gap),
    }


def _tail(population: int, marked: int, drawn: int, most: int) -> float:
    """Return P(X > most) for the marked among ``drawn`` of a population (hypergeometric)."""
    top = min(marked, drawn)
    terms = (
        math.exp(_log_choose(marked, i) + _log_choose(population - marked, drawn - i) - _log_choose(population, drawn))
        for i in range(most + 1, top + 1)
        if drawn - i <= population - marked
    )
    return math.fsum(terms)


def _quantile(population: int, marked: int, drawn: int, probability: float) -> int:
    return next(most for most in itertools.count() if _tail(population, marked, drawn, most) <= probability)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
