"""Populations of all classes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.evolution.population import Population, join, shares


def population(classes):
    return Population(genomes=np.arange(2.0 * len(classes)).reshape(-1, 2), classes=np.array(classes, np.int64))


@given(st.lists(st.integers(0, 2), max_size=20))
def test_classes_come_apart_and_together_again(classes):
    whole = population(classes)
    parts = [whole.of_class(cls) for cls in range(3)]
    assert [len(part) for part in parts] == [classes.count(cls) for cls in range(3)]
    again = join(parts)
    assert len(again) == len(whole)
    assert sorted(map(tuple, again.genomes.tolist())) == sorted(map(tuple, whole.genomes.tolist()))
    assert {tuple(g): c for g, c in zip(again.genomes.tolist(), again.classes.tolist(), strict=True)} == {
        tuple(g): c for g, c in zip(whole.genomes.tolist(), classes, strict=True)
    }


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shares_are_equal_but_for_the_first(total, classes):
    found = shares(total, classes)
    assert sum(found) == total
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)


def test_picking_by_mask_and_by_position():
    whole = population([0, 1, 0])
    assert whole.pick(np.array([2, 0])).genomes.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert whole.pick(np.array([False, True, False])).classes.tolist() == [1]
