"""The attacks find what is planted: copied records, memorised means, doubled people; and nothing where nothing is."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from patevolve.shared.audit import copying, membership
from patevolve.shared.audit.membership import Group
from patevolve.shared.schema import Column


def group(random: np.random.Generator, size: int, dimension: int = 12) -> Group:
    classes = random.integers(0, 2, size)
    return Group(features=random.normal(size=(size, dimension)) + classes[:, None], classes=classes)


def joined(*groups: Group) -> Group:
    return Group(
        features=np.concatenate([one.features for one in groups]),
        classes=np.concatenate([one.classes for one in groups]),
    )


def scores(members: Group, others: Group, reference: Group, release: Group) -> dict[str, float]:
    attacks = {
        "nearest": lambda targets: -membership.nearest(targets, release),
        "density": lambda targets: membership.density_ratio(targets, release, reference),
        "mean": lambda targets: membership.mean_shift(targets, release, reference),
    }
    return {name: membership.attack(name, one(members), one(others)).auc.value for name, one in attacks.items()}


def test_attacks_find_a_release_that_copies_and_not_one_that_does_not() -> None:
    random = np.random.default_rng(1)
    members, others, reference, fresh = (group(random, 300) for _ in range(4))
    near = Group(features=members.features + 0.1 * random.normal(size=members.features.shape), classes=members.classes)
    copied = scores(members, others, reference, near)
    assert copied["nearest"] > 0.99
    assert copied["density"] > 0.9
    # 300 against 300: the standard error of AUC is 0.024; 5.7 of them are the suite's 1e-8
    assert all(abs(value - 0.5) < 0.135 for value in scores(members, others, reference, fresh).values())


def test_the_mean_shift_finds_released_averages() -> None:
    random = np.random.default_rng(2)
    members, others, reference = group(random, 30, 200), group(random, 300, 200), group(random, 2000, 200)
    means = np.stack([members.features[members.classes == cls].mean(axis=0) for cls in (0, 1)])
    release = Group(features=means + 0.0, classes=np.array([0, 1]))
    assert scores(members, others, reference, release)["mean"] > 0.95


def test_nearest_is_within_the_class_and_exact() -> None:
    release = Group(features=np.array([[0.0, 0.0], [3.0, 4.0]]), classes=np.array([0, 1]))
    targets = Group(features=np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), classes=np.array([0, 1, 2]))
    assert membership.nearest(targets, release).tolist() == [0.0, 5.0, math.inf]


def test_log_density_is_the_mean_kernel() -> None:
    random = np.random.default_rng(3)
    targets, sample = group(random, 5, 3), group(random, 40, 3)
    found = membership.log_density(targets, sample, 0.7)
    for x, cls, value in zip(targets.features, targets.classes, found, strict=True):
        pool = sample.features[sample.classes == cls]
        kernel = np.exp(-np.square(pool - x).sum(axis=1) / (2 * 0.49))
        assert value == pytest.approx(math.log(kernel.mean()), rel=1e-9)


def test_student_scores_are_log_probabilities() -> None:
    targets = Group(features=np.array([[1.0], [1.0]]), classes=np.array([0, 1]))
    found = membership.student_scores(targets, np.array([[2.0, 0.0]]), np.zeros(2))
    assert np.exp(found).sum() == pytest.approx(1.0)


SCHEMA = (
    Column(name="age", kind="numeric", edges=(20, 45, 90)),
    Column(name="sex", kind="categorical", values=("f", "m")),
    Column(name="st", kind="numeric", edges=(0.0, 0.5, 1.0), decimals=1, missing=True),
)


def test_chance_of_copies_is_one_over_the_values_of_the_bins() -> None:
    rows = np.array([[0, 1, 1, 0], [1, 0, 2, 0], [0, 0, 0, 1]])
    pairs = Counter([rows[0].tobytes(), rows[0].tobytes(), rows[1].tobytes()])
    # two released rows share the first's codes: 25 ages x 5 tenths each; the second's st is missing: 45 ages
    assert copying.table_chance(SCHEMA, rows, pairs) == pytest.approx(2 / (25 * 5) + 1 / 45)


def test_copies_are_judged_against_chance() -> None:
    assert copying.copies(0, 0.0).p == 1.0
    assert copying.copies(3, 1e-6).p < 1e-15
    assert copying.copies(3, 2.5).p > 0.4
    assert copying.matches(["a", "b", "a"], ["a", "c"]) == 2


def test_nearness_is_even_for_equal_distances_and_low_for_hugged_records() -> None:
    away = np.random.default_rng(4).exponential(size=500)
    assert copying.nearness(away, away).ratio == 1.0
    hugged = copying.nearness(away / 3, away)
    assert hugged.ratio == pytest.approx(1 / 3)
    assert hugged.closer > 0.7
    assert copying.nearness(np.zeros(5), np.zeros(5)).ratio == 1.0


def test_repeats_count_units_and_not_rows() -> None:
    values, classes = np.array([[1], [1], [1], [2]]), np.array([0, 0, 1, 0])
    assert copying.repeats(values, classes, np.array(["p", "p", "p", "q"])).most == 1
    twenty = np.zeros((20, 3), np.int64)
    found = copying.repeats(twenty, np.zeros(20, np.int64), np.array([f"u{n}" for n in range(20)]))
    assert (found.most, found.next, found.alarm) == (20, 0, True)
    assert not copying.repeats(values, classes, np.array(["p", "q", "r", "s"])).alarm
