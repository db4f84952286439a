"""Variation: offspring by crossover, mutation and fresh draws, with a strength that anneals along the run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.plan_sections import Evolution
from patevolve.shared.protocols import Generator, Genomes
from patevolve.shared.randomness import stream

FLOOR = 0.05  # mutation never falls below: a population that stops moving cannot recover from a collapse


def strength_at(settings: Evolution, generation: int) -> float:
    """Return the mutation strength of a generation (1 is the first): the plan's strengths in equal stretches."""
    stretch = (generation - 1) * len(settings.mutation) // max(settings.generations, 1)
    return max(settings.mutation[min(stretch, len(settings.mutation) - 1)], FLOOR)


def breed(
    rng: np.random.Generator,
    generator: Generator,
    parents: Genomes,
    cls: int,
    count: int,
    *,
    settings: Evolution,
    strength: float,
) -> Genomes:
    """Return ``count`` offspring: a share ``crossover`` has two parents, all are mutated by ``strength``."""
    mothers, fathers = parents[rng.integers(len(parents), size=(2, count))]
    crossed = generator.cross(rng, mothers, fathers)
    children = np.where(rng.random((count, 1)) < settings.crossover, crossed, mothers)
    return generator.mutate(rng, children, cls, strength)


def variations(
    generator: Generator,
    genomes: Genomes,
    classes: NDArray[np.int64],
    settings: Evolution,
    name: tuple[int, int],
) -> list[Genomes]:
    """Return ``lookahead`` variations of every candidate, by the seed and generation in ``name``: all public.

    Private Evolution judges a candidate by the mean features of its variations, which is what selecting it would breed
    (Lin et al. 2024, Algorithm 2).
    """
    seed, number = name
    found = []
    for turn in range(settings.lookahead):
        varied = genomes.copy()
        for cls in np.unique(classes):
            rng = stream(seed, "lookahead", number, turn, int(cls))
            own = classes == cls
            varied[own] = generator.mutate(rng, genomes[own], int(cls), strength_at(settings, number))
        found.append(varied)
    return found


def exchange(
    generator: Generator,
    settings: Evolution,
    parents: Genomes,
    name: tuple[int | str, ...],
    likelihood: Callable[[Genomes], NDArray[np.float64]] | None = None,
) -> Genomes:
    """Return the population after a share ``crossover`` of its pairs swapped parts of their genomes.

    Both children of a pair stay, so what the population holds of each gene does not change. With a ``likelihood`` a
    pair swaps by the Metropolis rule only (Liang and Wong 2001), so that its law is stationary whatever genes it ties
    together; the likelihood of independent genes never changes, so it needs none.
    """
    seed, *names = name
    rng = stream(int(seed), *names)
    order = rng.permutation(len(parents))
    half = int(settings.crossover * len(parents)) // 2
    mothers, fathers = order[:half], order[half : 2 * half]
    result = parents.copy()
    # The same stream twice: the second child takes exactly the parts that the first one left.
    result[mothers] = generator.cross(stream(int(seed), *names, "cut"), parents[mothers], parents[fathers])
    result[fathers] = generator.cross(stream(int(seed), *names, "cut"), parents[fathers], parents[mothers])
    if likelihood is not None and half:
        gain = sum(likelihood(result[side]) - likelihood(parents[side]) for side in (mothers, fathers))
        refused = ~(np.log(stream(int(seed), *names, "accept").random(half)) < gain)
        for side in (mothers, fathers):
            result[side[refused]] = parents[side[refused]]
    return result


def spread(features: NDArray[np.float64]) -> float:
    """Return the root mean square distance of features (P, d) from their mean: 0 when a population has collapsed."""
    return float(np.sqrt(np.mean(np.sum((features - features.mean(axis=0)) ** 2, axis=1)))) if len(features) else 0.0
