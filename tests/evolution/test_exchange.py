"""Crossing in pairs by the Metropolis rule: what genes are tied together stays tied."""

import numpy as np

from patevolve.shared.evolution.breed import exchange
from patevolve.shared.generators.tabular import Tabular
from patevolve.shared.plan_sections import Evolution
from patevolve.shared.schema import Column

TABULAR = Tabular(schema=tuple(Column(name=str(i), kind="categorical", values=("x", "y")) for i in range(6)))
SETTINGS = Evolution(crossover=1.0)


def likelihood(genomes):
    """Six columns that agree with the one before with odds of 9 to 1."""
    return np.log(9.0) * np.sum(genomes[:, 1:] == genomes[:, :-1], axis=1)


def tied(count):
    """Return draws of that law."""
    rng = np.random.default_rng(0)
    first = rng.integers(2, size=(count, 1))
    turns = rng.random((count, 5)) < 0.1
    return np.hstack([first, (first + np.cumsum(turns, axis=1)) % 2]).astype(float)


def agreement(genomes):
    return np.mean(genomes[:, 1:] == genomes[:, :-1])


def crossed(weigh, rounds=30):
    genomes = tied(6000)
    for number in range(rounds):
        genomes = exchange(TABULAR, SETTINGS, genomes, (1, number), weigh)
    return genomes


def test_the_law_of_tied_columns_is_stationary():
    """30,000 neighbours, 0.9 of them equal: within six standard deviations after thirty rounds."""
    assert abs(agreement(crossed(likelihood)) - 0.9) < 6 * np.sqrt(0.09 / 30_000) + 0.002


def test_without_the_rule_they_are_torn_apart():
    """The planted fault: free crossing leaves columns of even shares independent."""
    assert agreement(crossed(None)) < 0.6


def test_columns_keep_their_shares_and_the_population_moves():
    before, after = tied(6000), crossed(likelihood, rounds=1)
    assert np.array_equal(before.sum(axis=0), after.sum(axis=0))
    assert 0.05 < np.mean((before != after).any(axis=1)) < 1.0


def test_a_likelihood_of_independent_columns_changes_nothing():
    """Their product over a pair is the same before and after, so every swap is accepted."""

    def independent(genomes):
        return genomes @ np.array([2.0, -1.0, 0.5, 0.25, -4.0, 1.0])  # exact in doubles

    one, other = (exchange(TABULAR, SETTINGS, tied(500), (1, 0), weigh) for weigh in (independent, None))
    assert np.array_equal(one, other)
