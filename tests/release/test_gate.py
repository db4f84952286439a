"""The gate: each check passes on sound samples and fails on a planted fault of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from patevolve.shared.errors import ParameterError, ReleaseError
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.release.gate import (
    CheckResult,
    all_of,
    duplicate_share,
    not_asked,
    require,
    run_gate,
    spread,
    worth_showing,
)
from patevolve.shared.release.samples import Samples
from patevolve.shared.release.values import cell_fits
from patevolve.shared.schema import Column, decode_column

FEATURES = np.random.default_rng(3).normal(size=(40, 5))


def result(name: str, passed: bool | None) -> CheckResult:
    return CheckResult(name=name, passed=passed, found="f", expected="e", reason="r")


def failed(results: Sequence[CheckResult]) -> set[str]:
    return {r.name for r in results if r.passed is False}


def outcome(samples: Samples, plan: Plan, features: np.ndarray = FEATURES, **changes: object) -> set[str]:
    return failed(run_gate(samples, plan, features=features, **{"reference_spread": 3.0, **changes}))


def test_an_empty_gate_fails() -> None:
    assert not all_of([])
    with pytest.raises(ReleaseError, match="no check that was asked"):
        require([])


def test_a_gate_of_unasked_checks_alone_fails() -> None:
    assert not all_of([result("a", None)])
    with pytest.raises(ReleaseError, match="no check that was asked"):
        require([result("a", None)])


def test_an_unasked_check_neither_passes_nor_fails_the_others() -> None:
    assert all_of([result("a", True), result("b", None)])
    assert not all_of([result("a", False), result("b", None)])
    assert not_asked([result("a", True), result("b", None)]) == ("b: f. r",)


def test_the_error_names_the_failed_checks_only() -> None:
    with pytest.raises(ReleaseError) as caught:
        require([result("good", True), result("bad", False), result("worse", False), result("unasked", None)])
    assert "bad: f" in str(caught.value)
    assert "worse: f" in str(caught.value)
    assert "good" not in str(caught.value)
    assert "unasked" not in str(caught.value)


def test_sound_samples_pass(table: Samples, table_plan: Agreed, pictures: Callable, image_plan: Callable) -> None:
    for samples, agreed in ((table, table_plan), (pictures(), image_plan())):
        results = run_gate(samples, agreed.plan, features=FEATURES, reference_spread=3.0)
        require(results)
        assert {r.name: r.passed for r in results}["near-duplicates"] is None
        assert all(r.reason and r.found and r.expected for r in results)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        (0, "81"), (0, "19"), (0, "30.0"), (0, "nan"), (0, "1e1"), (0, " 30"), (0, "3_0"), (0, "٣٠"), (0, "inf"),
        (0, "30\n"), (1, ""), (1, "6.3"), (1, "-1.6"), (1, "1.25"), (1, "x"), (2, "na"), (2, "a"), (3, ""), (3, "F"),
    ],
)  # fmt: skip
def test_a_cell_outside_the_schema_fails(table: Samples, table_plan: Agreed, column: int, cell: str) -> None:
    rows = [list(row) for row in table.rows]
    rows[5][column] = cell
    broken = dataclasses.replace(table, rows=tuple(map(tuple, rows)))
    results = run_gate(broken, table_plan.plan, features=FEATURES, reference_spread=3.0)
    assert failed(results) == {"values"}
    assert f"sample 6: {cell!r}" in results[0].found


@pytest.mark.parametrize(
    ("decimals", "edges"),
    [(0, (-0.96, 0.05, 3.2, 7.77)), (1, (-0.96, -0.85, 0.05, 0.15, 7.77)), (3, (-0.96, -0.95, 0.05, 0.051, 7.77))],
)
def test_every_cell_that_a_schema_decodes_to_is_accepted(decimals: int, edges: tuple[float, ...]) -> None:
    # bins as fine as the grid, and bounds between its points
    column = Column(name="x", kind="numeric", edges=edges, decimals=decimals, missing=True)
    rng = np.random.default_rng(4)
    cells = decode_column(column, rng.integers(0, column.levels, 2000), rng.random(2000))
    assert len(set(cells)) > 5
    assert all(cell_fits(column, cell) for cell in cells)


def test_a_cell_that_is_no_text_fails(table: Samples, table_plan: Agreed) -> None:
    rows = ((30, *table.rows[0][1:]), *table.rows[1:])
    assert outcome(dataclasses.replace(table, rows=rows), table_plan.plan) == {"values"}


def test_other_columns_or_classes_or_kind_fail(
    table: Samples, table_plan: Agreed, pictures: Callable, image_plan: Callable
) -> None:
    swapped = dataclasses.replace(table, columns=table.columns[::-1])
    assert "values" in outcome(swapped, table_plan.plan)
    assert "values" in outcome(dataclasses.replace(table, class_names=("yes", "no")), table_plan.plan)
    assert "values" in outcome(dataclasses.replace(table, classes=table.classes + 1), table_plan.plan)
    assert "values" in outcome(pictures(), table_plan.plan)
    assert "values" in outcome(table, image_plan().plan)


def test_images_of_other_type_size_or_one_grey_fail(pictures: Callable, image_plan: Callable) -> None:
    good, plan = pictures(), image_plan().plan
    blank = good.images.copy()
    blank[7] = 90
    for images in (good.images.astype(np.float32), good.images[:, :8], blank):
        assert outcome(dataclasses.replace(good, images=images), plan) == {"values"}


def test_a_few_images_that_show_nothing_are_left_out_and_said(pictures: Callable, image_plan: Callable) -> None:
    good, plan = pictures(), image_plan().plan
    many = np.concatenate([good.images] * 10)
    many[[7, 100, 222, 399]] = 90  # one in a hundred
    shown = worth_showing(many, plan)
    assert np.setdiff1d(np.arange(400), shown).tolist() == [7, 100, 222, 399]
    many[5] = 0  # and one more: a fault of the generator, which the gate names
    assert len(worth_showing(many, plan)) == 400
    (values, *_) = run_gate(good, plan, features=FEATURES, reference_spread=3.0, left_out=4)
    assert (values.passed, values.found) == (True, "every sample as expected; 4 of one grey value left out")


def test_a_table_is_shown_whole(table_plan: Agreed) -> None:
    assert worth_showing(np.zeros((3, 4)), table_plan.plan).tolist() == [0, 1, 2]


def test_no_samples_are_shown_as_none(image_plan: Callable) -> None:
    assert worth_showing(np.zeros((0, 9, 8), np.uint8), image_plan().plan).tolist() == []


def test_an_absent_class_fails_and_counts_are_shown(table: Samples, table_plan: Agreed) -> None:
    one = dataclasses.replace(table, classes=np.zeros(40, np.int64))
    results = run_gate(one, table_plan.plan, features=FEATURES, reference_spread=3.0)
    assert failed(results) == {"coverage", "spread"}
    assert results[1].found == "no: 40, yes: 0"


def test_no_samples_fail_every_check_that_measures(table: Samples, table_plan: Agreed, image_plan: Callable) -> None:
    none = dataclasses.replace(table, rows=(), classes=np.zeros(0, np.int64))
    asked = {"coverage", "features", "spread", "duplicates"}
    assert outcome(none, table_plan.plan, FEATURES[:0]) == asked
    blank = Samples(images=np.zeros((0, 9, 8), np.uint8), classes=np.zeros(0, np.int64), class_names=table.class_names)
    assert outcome(blank, image_plan().plan, FEATURES[:0]) == asked


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_feature_that_is_not_finite_fails(table: Samples, table_plan: Agreed, bad: float) -> None:
    features = FEATURES.copy()
    features[30, 2] = bad
    assert outcome(table, table_plan.plan, features) == {"features", "spread"}


def test_features_of_another_count_fail(table: Samples, table_plan: Agreed) -> None:
    assert outcome(table, table_plan.plan, FEATURES[:39]) == {"features", "spread"}
    assert outcome(table, table_plan.plan, FEATURES[:, 0]) == {"features", "spread"}


def test_one_collapsed_class_fails(table: Samples, table_plan: Agreed) -> None:
    features = FEATURES.copy()
    features[20:] = features[20] + 0.01 * features[20:]
    assert outcome(table, table_plan.plan, features) == {"spread"}
    assert outcome(table, table_plan.plan, features, spread_fraction=0.001) == set()
    assert outcome(table, table_plan.plan, features, reference_spread=np.array([3.0, 0.03])) == set()


def test_a_class_of_one_sample_is_not_said_to_be_spread(table: Samples, table_plan: Agreed) -> None:
    classes = np.zeros(40, np.int64)
    classes[0] = 1
    assert outcome(dataclasses.replace(table, classes=classes), table_plan.plan) == {"spread"}
    results = run_gate(
        dataclasses.replace(table, classes=classes),
        table_plan.plan,
        features=FEATURES,
        reference_spread=np.array([3.0, 4.0]),
    )
    (said,) = [result.expected for result in results if result.name == "spread"]
    assert said == "at least 0.3, 0.4 in each class, of two or more samples"


def test_many_copies_fail_beyond_those_of_the_public_generator(table: Samples, table_plan: Agreed) -> None:
    rows = tuple(table.rows[20 * (i // 20) + i % 8] for i in range(40))
    copies = dataclasses.replace(table, rows=rows)
    assert duplicate_share(copies) == pytest.approx(24 / 40)
    assert outcome(copies, table_plan.plan) == {"duplicates"}
    assert outcome(copies, table_plan.plan, reference_duplicates=0.3) == set()
    assert outcome(table, table_plan.plan, max_duplicates=0.0) == set()


def test_copied_images_are_counted_by_content_and_class(pictures: Callable) -> None:
    good = pictures()
    same = dataclasses.replace(good, images=np.repeat(good.images[:1], 40, axis=0))
    assert duplicate_share(good) == 0.0
    assert duplicate_share(same) == pytest.approx(38 / 40)


def test_spread_is_the_mean_pairwise_distance() -> None:
    rng = np.random.default_rng(5)
    points, classes = rng.normal(size=(700, 6)) + 1e3, np.repeat([0, 1], [600, 100])
    expected = [pdist(points[:600]).mean(), pdist(points[600:]).mean()]
    np.testing.assert_allclose(spread(points, classes, 2), expected, rtol=1e-9)
    assert spread(np.ones((50, 6)) * 0.1, np.zeros(50, np.int64), 1) == pytest.approx([0.0], abs=1e-12)
    large = rng.normal(size=(9000, 3))
    assert spread(large, np.zeros(9000, np.int64), 1) == pytest.approx(spread(large[:2000], np.zeros(2000), 1), rel=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"reference_spread": 0.0}, {"reference_spread": math.nan}, {"reference_spread": np.array([1.0, 1.0, 1.0])},
        {"max_duplicates": True}, {"spread_fraction": math.nan}, {"max_duplicates": 1.5}, {"reference_duplicates": -1},
    ],
)  # fmt: skip
def test_a_limit_outside_its_domain_is_refused(table: Samples, table_plan: Agreed, changes: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        outcome(table, table_plan.plan, **changes)


def test_samples_of_parts_that_do_not_fit_are_refused(table: Samples, pictures: Callable) -> None:
    with pytest.raises(ReleaseError, match="both"):
        dataclasses.replace(table, images=pictures().images)
    with pytest.raises(ReleaseError, match="neither"):
        Samples(classes=np.zeros(0, np.int64), class_names=("a", "b"))
    with pytest.raises(ReleaseError, match="one per sample"):
        dataclasses.replace(table, classes=table.classes[:39])
    with pytest.raises(ReleaseError, match="sample 3 has 3 cells"):
        dataclasses.replace(table, rows=(*table.rows[:2], table.rows[2][:3], *table.rows[3:]))
