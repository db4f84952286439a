"""The public schema: cells to codes and back, and every cell outside it refused."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from patevolve.shared.errors import DataError, PlanError
from patevolve.shared.schema import MISSING_WORDS, Column, decode_column, encode_column


def numeric(edges, **more):
    return Column(name="v", kind="numeric", edges=tuple(map(float, edges)), **more)


def categorical(*values, **more):
    return Column(name="c", kind="categorical", values=values, **more)


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("0", 0),
        ("4.999", 0),
        ("5", 1),
        (" 7 ", 1),
        ("1e1", 2),
        ("19.9", 2),
        ("20", 2),
        ("999", 2),
        ("-3", 0),
        ("+6", 1),
    ],
)
def test_a_number_falls_into_its_bin_and_beyond_the_bounds_into_the_outermost(cell, code):
    assert encode_column(numeric([0, 5, 10, 20]), [cell]).tolist() == [code]


@pytest.mark.parametrize("cell", ["x", "1_0", "inf", "-inf", "1e999", "1,5", "0x10", "True", "--1", "1 2"])
def test_what_is_no_finite_number_is_refused(cell):
    with pytest.raises(DataError, match=r"column 'v', data row 2: .* expected a finite number"):
        encode_column(numeric([0, 5, 10]), ["1", cell])


@pytest.mark.parametrize("word", [*MISSING_WORDS, "NaN", " NULL ", "N/A", "None", "\t"])
def test_a_missing_cell_is_a_level_of_its_own_or_refused(word):
    assert encode_column(numeric([0, 5], missing=True), [word]).tolist() == [1]
    assert encode_column(categorical("a", "b", missing=True), [word]).tolist() == [2]
    for column in (numeric([0, 5]), categorical("a", "b")):
        with pytest.raises(DataError, match=r"data row 1: a missing value found; .* complete"):
            encode_column(column, [word])


def test_a_word_for_missing_may_be_a_category():
    column = categorical("none", "mild", missing=True)
    assert encode_column(column, ["None", "mild", ""]).tolist() == [0, 1, 2]


def test_categories_match_whatever_their_case_and_others_are_refused():
    column = categorical("Männlich", "weiblich", "straße")
    assert encode_column(column, ["männlich", "WEIBLICH", " STRASSE "]).tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"data row 2: 'divers' found; expected one of Männlich"):
        encode_column(column, ["weiblich", "divers"])


@pytest.mark.parametrize("cell", ["1.0", "1 ", "true"])
def test_a_category_that_another_tool_rewrote_is_refused_not_guessed(cell):
    column = categorical("0", "1")
    if cell.strip() in column.values:
        assert encode_column(column, [cell]).tolist() == [1]
    else:
        with pytest.raises(DataError):
            encode_column(column, [cell])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: numeric([0]), "two or more"),
        (lambda: numeric([0, math.nan]), "finite"),
        (lambda: numeric([1, 0]), "increasing"),
        (lambda: Column(name="v", kind="numeric", edges=(0.0, 1.0), values=("a",)), "no values"),
        (lambda: numeric([0, 1], decimals=10), "0 to 9"),
        (lambda: numeric([0, 1], decimals=-1), "0 to 9"),
        (lambda: numeric([0.1, 0.9]), "no number of 0 decimals"),
        (lambda: numeric([0, 0.05, 1], decimals=1), None),
        (lambda: numeric([0.01, 0.05, 1], decimals=1), "no number of 1 decimals"),
        (lambda: numeric([0, 1e15], decimals=4), "15 digits"),
        (categorical, "expected values"),
        (lambda: categorical("a", "a"), "distinct"),
        (lambda: categorical("a", "A"), "distinct"),
        (lambda: categorical("a", " b"), "no space"),
        (lambda: categorical("a", "", missing=True), "one of them only"),
        (lambda: Column(name="c", kind="categorical", values=("a",), edges=(0.0, 1.0)), "no edges"),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(make, words):
    if words is None:
        make()
        return
    with pytest.raises(PlanError, match=words):
        make()


@st.composite
def columns(draw):
    missing = draw(st.booleans())
    if draw(st.booleans()):
        names = draw(st.lists(st.text(max_size=12).map(str.strip), min_size=1, max_size=6, unique_by=str.casefold))
        assume(not (missing and "" in names))
        return categorical(*names, missing=missing)
    edges = draw(st.lists(st.floats(-1e5, 1e5), min_size=2, max_size=6, unique=True))
    try:
        return numeric(sorted(edges), missing=missing, decimals=draw(st.integers(0, 9)))
    except PlanError:
        assume(False)


@given(columns(), st.data())
def test_a_released_cell_has_the_code_it_was_made_from(column, data):
    """Round trip over random schemas, at the ends of every bin too."""
    codes = np.repeat(np.arange(column.levels), 4)
    inner = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2))
    uniforms = np.tile([0.0, math.nextafter(1.0, 0.0), *inner], column.levels)
    cells = decode_column(column, codes, uniforms)
    assert encode_column(column, cells).tolist() == codes.tolist()
    if column.kind == "numeric":
        present = [cell for cell in cells if cell]
        assert all(len(cell.partition(".")[2]) == column.decimals for cell in present)
        assert all(column.edges[0] <= float(cell) < column.edges[-1] for cell in present)


@pytest.mark.parametrize("edges", [[0.1, 0.3, 0.7], [0.3, 0.6, 0.9], [-0.3, -0.1, 0.1], [1.1, 2.2, 3.3]])
def test_edges_on_the_grid_belong_to_the_bin_above(edges):
    column = numeric(edges, decimals=1)
    for code, (low, high) in enumerate(itertools.pairwise(edges)):
        cells = decode_column(column, np.full(50, code), np.linspace(0, 0.999, 50))
        assert cells[0] == f"{low:.1f}"
        assert f"{high:.1f}" not in cells


def test_cells_are_spread_over_their_bin():
    column = numeric([0, 10, 20])
    cells = decode_column(column, np.zeros(1000, np.int64), np.arange(1000) / 1000)
    assert [cells.count(str(value)) for value in range(10)] == [100] * 10


def test_levels_count_bins_categories_and_missing():
    assert numeric([0, 1, 2]).levels == 2
    assert numeric([0, 1, 2], missing=True).levels == 3
    assert categorical("a", missing=True).levels == 2
