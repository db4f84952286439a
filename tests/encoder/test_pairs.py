"""Pairs of columns: measured within one bounded embedding, modelled as a tree, drawn from exactly."""

import itertools

import numpy as np
import pytest

from patevolve.shared.encoder.pairs import PairEncoder
from patevolve.shared.encoder.table import TableEncoder
from patevolve.shared.errors import InputError
from patevolve.shared.plan_sections import Encoder
from patevolve.shared.protocols import Sums
from patevolve.shared.schema import Column
from patevolve.shared.votes import ballots
from patevolve.shared.votes.lattice import LATTICE

SCHEMA = (
    Column(name="a", kind="numeric", edges=(0.0, 1.0, 2.0, 3.0), missing=True),
    Column(name="b", kind="categorical", values=("x", "y")),
    Column(name="c", kind="categorical", values=("only",)),
    Column(name="d", kind="categorical", values=("p", "q", "r")),
)
LEVELS = (4, 2, 1, 3)
ENCODER = PairEncoder(table=TableEncoder(schema=SCHEMA), share=0.4)


def every():
    return np.array(list(itertools.product(*map(range, LEVELS))))


def chained(seed, n):
    """Return rows whose b hangs on a and whose d hangs on b, each with probability 0.8."""
    rng = np.random.default_rng(seed)
    a = rng.integers(4, size=n)
    b = np.where(rng.random(n) < 0.8, a // 2, rng.integers(2, size=n))
    d = np.where(rng.random(n) < 0.8, b, rng.integers(3, size=n))
    return np.stack([a, b, np.zeros(n, int), d], axis=1)


def sums(values, classes, noise=0.0, seed=0):
    embedded = ENCODER.embed(ENCODER.encode(values))
    count = int(classes.max()) + 1
    total = np.stack([embedded[classes == cls].sum(axis=0) for cls in range(count)])
    total += np.random.default_rng(seed).normal(0, noise, total.shape) if noise else 0.0
    counts = np.bincount(classes).astype(float)
    std = np.full(count, noise)
    return Sums(
        values=total, counts=counts, std=std, apart_std=std / counts, pooled_std=noise / np.sqrt(count) / counts.mean()
    )


def tables(model):
    start, found = ENCODER.dimension, []
    for one, two in ENCODER.pairs:
        shape = (one.stop - one.start, two.stop - two.start)
        found.append(model[start : start + shape[0] * shape[1]].reshape(shape))
        start += shape[0] * shape[1]
    assert start == len(model)
    return found


def test_every_embedding_has_norm_one():
    for share in (0.01, 0.4, 0.95):
        encoder = PairEncoder(table=ENCODER.table, share=share)
        rows = encoder.embed(encoder.encode(every()))
        assert rows.shape == (24, encoder.embedding_size)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-12)
        pairs = np.linalg.norm(rows[:, encoder.dimension :], axis=1) ** 2
        assert np.allclose(pairs, share, atol=1e-12)


def test_a_row_is_embedded_alike_alone_and_in_any_company():
    features = ENCODER.encode(chained(1, 60))
    embedded = ENCODER.embed(features)
    for n in (1, 2, 3, 17, 59):
        assert ENCODER.embed(features[:n]).tobytes() == embedded[:n].tobytes()
    order = np.random.default_rng(2).permutation(60)
    assert ENCODER.embed(features[order]).tobytes() == embedded[order].tobytes()


@pytest.mark.parametrize("row", [0, 7, 23])
def test_one_more_unit_moves_the_question_by_at_most_its_bound(row):
    """Whatever row is added, the tally of prototypes moves by at most LATTICE in L2, and this row by nearly that."""
    features = ENCODER.encode(np.concatenate([every()[row : row + 1], chained(3, 40)]))
    classes = np.concatenate([[1], np.random.default_rng(3).integers(2, size=40)])
    bounds = ballots.prototypes_bounds(2, ENCODER.embedding_size, 1, 0.3)
    units = np.array([f"unit {number}" for number in range(41)])

    def tally(which):
        voters, code = ballots.Electorate(units[which]), ballots.class_code(2, 0.3)
        embedded = ENCODER.embed(features[which])
        return ballots.prototypes(voters, embedded, classes[which], code=code, bounds=bounds).values

    moved = np.linalg.norm((tally(slice(0, 41)) - tally(slice(1, 41))).astype(float))
    assert 0.9 * LATTICE < moved <= LATTICE


def test_without_noise_the_tables_are_those_of_the_rows():
    values, classes = chained(4, 6000), np.arange(6000) % 2
    model = ENCODER.model(sums(values, classes))
    for cls in (0, 1):
        own = values[classes == cls]
        for (first, second), table in zip(itertools.combinations((0, 1, 3), 2), tables(model[cls]), strict=True):
            true = np.zeros((LEVELS[first], LEVELS[second]))
            np.add.at(true, (own[:, first], own[:, second]), 1 / len(own))
            assert np.abs(table - true).max() < 0.005
            assert table.min() > 0


def test_the_statistic_s_class_mean_is_what_the_model_estimates():
    values = chained(5, 4000)
    model = ENCODER.model(sums(values, np.zeros(4000, int)))
    assert np.abs(ENCODER.statistic(ENCODER.encode(values)).mean(axis=0) - model[0]).max() < 0.005


def test_the_tree_ties_what_goes_together():
    """a – b – d is a chain; a and d go together through b alone, so that pair is no edge."""
    edges = ENCODER.tree(ENCODER.model(sums(chained(6, 20_000), np.zeros(20_000, int), noise=5.0))[0])
    starts = {(one.start, two.start) for one, two, _ in edges}
    assert starts == {(0, 4), (4, 7)}


def test_pure_noise_ties_nothing_much():
    """Columns are independent and the noise is that of ε = 1: what little is tied makes hardly a difference."""
    rng = np.random.default_rng(7)
    values = np.stack([rng.integers(level, size=3000) for level in LEVELS], axis=1)
    model = ENCODER.model(sums(values, np.zeros(3000, int), noise=4.0))[0]
    for _, _, ratio in ENCODER.tree(model):
        assert np.abs(ratio).max() < 0.15


def test_a_likelihood_is_that_of_the_tree_s_law():
    """Over all rows the likelihoods add up to 1, and pairs in the tree have the model's tables."""
    model = ENCODER.model(sums(chained(8, 5000), np.zeros(5000, int)))[0]
    rows = ENCODER.encode(every())
    law = np.exp(ENCODER.log_likelihood(rows, model))
    assert abs(law.sum() - 1.0) < 1e-6
    table = np.einsum("n,ni,nj->ij", law, rows[:, 0:4], rows[:, 4:6])
    assert np.abs(table - tables(model)[0]).max() < 1e-6


def test_drawn_rows_follow_that_law(alpha):
    """40,000 rows against the law of all 24 cells: each within the deviation that chance exceeds at this level."""
    model = ENCODER.model(sums(chained(9, 5000), np.zeros(5000, int)))[0]
    law = np.exp(ENCODER.log_likelihood(ENCODER.encode(every()), model))
    drawn = ENCODER.sample(np.random.default_rng(9), model, 40_000)
    counts = np.bincount(np.ravel_multi_index(drawn.T, LEVELS), minlength=24)
    away = np.abs(counts - 40_000 * law) / np.sqrt(40_000 * law * (1 - law) + 9)
    assert away.max() < np.sqrt(2 * np.log(2 * 24 / alpha)) + 0.5  # sub-Gaussian tail, Bernstein's term added
    assert len(ENCODER.sample(np.random.default_rng(9), model, 0)) == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_outside_its_domain_is_refused(share):
    with pytest.raises(InputError, match="pairs"):
        Encoder(pairs=share)
