"""The nearest candidates of each record: exact distances, but only where a cheaper look cannot tell.

A product in single precision is screened first. It may round a record differently in other company, by no more than a
proven bound (SENSITIVITY.md, lemma 9): what lies further apart than twice the bound is in order, and what does not is
compared by the exact products of lemma 5. The result is that of the exact products alone, bit by bit.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.products import Pool, Snapped, pool_of, products_at, products_of, snapped

BLOCK = 2**21  # distances held at a time by the search: bounds its memory
FEWEST = 32  # records searched at a time, however many candidates there are: fewer would read them too often
SIEVE = 8  # groups per vote among which the search looks first
CROWD = 8  # if more than one in so many candidates stay undecided, all products of the block are made at once
LONGEST = 2.0**40  # vectors beyond are not screened: single precision might overflow

Floats = NDArray[np.float64]
Screen = NDArray[np.float32]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """Candidates made ready for any number of searches.

    vectors:  (P, d)
    norms:    (P,) half the squared norms
    screen:   (P, d + 1) in single precision, with the norms in the last column; zeros where that might overflow
    bound:    what the screen's error is at most for a row of norm r: bound[0] + bound[1] · r
    """

    vectors: Pool
    norms: Floats
    screen: Screen
    bound: tuple[float, float]


def field_of(vectors: Floats) -> Field:
    """Return candidates (P, d) ready to be searched."""
    pool, norms = pool_of(vectors), 0.5 * np.einsum("pd,pd->p", vectors, vectors)
    near = pool.whole * np.ldexp(1.0, pool.exponent - pool.bits)
    longest, largest = float(np.linalg.norm(near, axis=1).max(initial=0.0)), float(norms.max(initial=0.0))
    terms = vectors.shape[1] + 4
    if terms < 2**20 and longest + largest <= LONGEST and _single_precision_holds():
        error = 1.01 * terms * 2.0**-24 / (1.0 - terms * 2.0**-24)
        screen, bound = np.hstack([near, norms[:, None]]), (error * largest + terms * 2.0**-84, error * longest)
    else:  # label: screen-bound
        screen, bound = np.zeros((len(near), near.shape[1] + 1)), (np.inf, 0.0)
    return Field(vectors=pool, norms=norms, screen=screen.astype(np.float32), bound=bound)


@functools.cache
def _single_precision_holds() -> bool:
    """Return whether the library multiplies single precision in single precision: some can be told to use less."""
    odd = np.arange(1, 2**12, 2, dtype=np.float32).reshape(-1, 64)
    return bool(np.array_equal(odd @ np.diag(odd[-1]), odd * odd[-1]))  # whole numbers below 2²⁴: exact


def blocks(rows: Places, field: Field) -> list[Places]:
    """Return positions of records in parts that are searched at a time."""
    size = max(FEWEST, BLOCK // max(field.screen.shape))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def nearest_candidates(rows: Floats, pool: Floats | Field, k: int) -> Places:
    """Return (n, k) positions of each row's nearest pool members, nearest first; ties go to the earlier member.

    Guarantee: row i of the result is a function of row i and of ``pool``.
    """
    field = pool if isinstance(pool, Field) else field_of(pool)
    own = snapped(rows, field.vectors.bits)
    screen, doubt = _screened(own, field)
    limit = np.nextafter((_reach(screen, k) + doubt).astype(np.float32), np.float32(np.inf))
    found = np.flatnonzero(screen <= limit)
    if CROWD * len(found) > screen.size:
        return _sorted_out(field.norms - products_of(own, field.vectors), k)  # label: own-distances
    at, places = np.divmod(found, len(field.norms))
    return _in_order(own, field, (at, places, screen.ravel()[found]), (doubt[:, 0], k))


def _screened(own: Snapped, field: Field) -> tuple[Screen, Floats]:
    """Return (n, P) distances ½‖x − c‖² up to a constant of the row, and (n, 1) twice what their error is at most."""
    scaled = own.whole * np.ldexp(1.0, own.exponent - field.vectors.bits)
    with np.errstate(over="ignore"):
        length = np.sqrt(np.einsum("nd,nd->n", scaled, scaled))[:, None]
    short = length <= LONGEST
    left = np.empty((len(scaled), scaled.shape[1] + 1), np.float32)
    left[:, :-1], left[:, -1] = np.where(short, -scaled, 0.0), 1.0
    doubt = np.where(short, 2.0 * (field.bound[0] + field.bound[1] * np.minimum(length, LONGEST)), np.inf)
    return left @ field.screen.T, doubt


def _reach(distance: Screen | Floats, k: int) -> Floats:
    """Return (n, 1) distances within which each row has at least k members, and seldom many more.

    The k-th smallest of the minima of disjoint groups: k groups have a member that near. Minima are cheaper than a
    partition of the whole row, and as exact.
    """
    groups = SIEVE * k
    if distance.shape[1] >= 4 * groups:
        distance = distance[:, : distance.shape[1] // groups * groups].reshape(len(distance), -1, groups).min(axis=1)
    return np.partition(distance, k - 1, axis=1)[:, k - 1 : k].astype(np.float64)


def _sorted_out(distance: Floats, k: int) -> Places:
    """Return the k nearest of each row of exact distances."""
    at, places = np.divmod(np.flatnonzero(distance <= _reach(distance, k)), distance.shape[1])
    order = np.lexsort((distance[at, places], at))  # stable, so equal distances stay in the pool's order
    starts = np.searchsorted(at, np.arange(len(distance)))
    nearest: Places = places[order[starts[:, None] + np.arange(k)]]
    return nearest


def _in_order(own: Snapped, field: Field, found: tuple[Places, Places, Screen], asked: tuple[Floats, int]) -> Places:
    """Return the k nearest from what the screen found: row, place and screened distance of each, row by row.

    Neighbours in the screen's order that lie within the doubt of each other form a chain, whose order the exact
    products decide; every member of a chain comes before every member of the next.
    """
    at, places, distance = found
    doubt, k = asked
    starts = np.searchsorted(at, np.arange(len(doubt)))
    order = _row_by_row(distance, starts)
    places, distance = places[order], distance[order].astype(np.float64)  # at is sorted, and stays as it is
    told = np.ones(len(at), bool)  # whether a member begins a chain
    told[1:] = (at[1:] != at[:-1]) | ~(distance[1:] - distance[:-1] <= doubt[at[1:]])  # label: screened-apart
    firsts = np.flatnonzero(told)
    chain = np.cumsum(told) - 1
    length = np.diff(firsts, append=len(at))
    open_ = (length > 1) & (firsts - starts[at[firsts]] < k)  # only these can change who is among the first k
    asked_at = np.flatnonzero(open_[chain])
    exact = field.norms[places[asked_at]] - products_at(own, field.vectors, (at[asked_at], places[asked_at]))
    places[asked_at] = places[asked_at][np.lexsort((places[asked_at], exact, chain[asked_at]))]
    nearest: Places = places[starts[:, None] + np.arange(k)]
    return nearest


def _row_by_row(values: Screen, starts: Places) -> Places:
    """Return the positions that sort each row's values; rows lie one after the other and begin at ``starts``."""
    counts = np.diff(starts, append=len(values))
    filled = np.arange(counts.max(initial=0)) < counts[:, None]
    padded = np.full(filled.shape, np.inf, np.float32)
    padded[filled] = values
    positions: Places = (starts[:, None] + np.argsort(padded, axis=1))[filled]  # what fills up sorts to the end
    return positions
