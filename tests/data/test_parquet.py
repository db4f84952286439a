"""Parquet tables: types and nulls survive into codes and back, or are refused by name; text tables, piece by piece."""

import datetime as dt
import decimal
import itertools
import os
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from patevolve.shared.data.load import Layout, load_table
from patevolve.shared.data.parquet import pieces
from patevolve.shared.errors import DataError, PlanError
from patevolve.shared.schema import Column, decode_column

LAYOUT = Layout(classes=("no", "yes"), label="y")


def written(path, columns):
    parquet.write_table(pa.table(columns), path)
    return path


def codes(path, column):
    return load_table(path, (column,), LAYOUT)[""].values[:, 0].tolist()


AGE = Column(name="x", kind="numeric", edges=(0.0, 10.0, 20.0, 30.0), missing=True)
YES = pa.array(["yes", "no", "yes"])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, None, 25], pa.int64()),
        pa.array([5, None, 25], pa.int8()),
        pa.array([5.0, float("nan"), 25.0], pa.float64()),
        pa.array([5.0, None, 25.0], pa.float32()),
        pa.array(["5", None, "25"]),
        pa.array(["5", "NA", "25"], pa.large_string()),
        pa.array([decimal.Decimal("5.00"), None, decimal.Decimal("25.00")]),
        pa.array(["5", None, "25"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_one_column_in_every_type_gives_the_same_codes(tmp_path, values):
    assert codes(written(tmp_path / "t.parquet", {"x": values, "y": YES}), AGE) == [0, 3, 2]


CATEGORIES = [
    (pa.array([1, None, 2]), ("1", "2")),
    (pa.array([1.0, None, 2.0]), ("1", "2")),  # whole numbers that a gap made floats
    (pa.array([0.5, None, 2.0]), ("0.5", "2")),
    (pa.array([True, None, False]), ("true", "false")),
    (pa.array([dt.date(2020, 1, 1), None, dt.date(2020, 1, 2)]), ("2020-01-01", "2020-01-02")),
    (
        pa.array([1_577_854_800, None, 1_577_923_200], pa.timestamp("s")),
        ("2020-01-01T05:00:00", "2020-01-02T00:00:00"),
    ),
    (pa.array(["a", None, "ß"]).dictionary_encode(), ("a", "ß")),
]


@pytest.mark.parametrize(("values", "names"), CATEGORIES, ids=lambda part: str(getattr(part, "type", "")))
def test_categories_of_every_type_are_matched_by_the_text_a_person_writes(tmp_path, values, names):
    column = Column(name="x", kind="categorical", values=names, missing=True)
    assert codes(written(tmp_path / "t.parquet", {"x": values, "y": YES}), column) == [0, 2, 1]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1], None, [2]]),
        pa.array([{"a": 1}, None, {"a": 2}]),
        pa.array([b"a", None, b"b"]),
        pa.array([dt.timedelta(1), None, dt.timedelta(2)]),
    ],
    ids=lambda values: str(values.type),
)
def test_types_without_a_text_are_refused_by_name(tmp_path, values):
    with pytest.raises(DataError, match=r"column 'x' is of type"):
        codes(written(tmp_path / "t.parquet", {"x": values, "y": YES}), AGE)


def test_nulls_in_a_complete_column_name_the_row_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("patevolve.shared.data.parquet.PIECE", 10)
    values = [1] * 25 + [None, 1]
    path = written(tmp_path / "t.parquet", {"x": values, "y": ["yes"] * 27})
    with pytest.raises(DataError, match=r"'x', data row 26: a missing value"):
        codes(path, Column(name="x", kind="numeric", edges=(0.0, 10.0)))
    path = written(tmp_path / "t.parquet", {"x": [1] * 27, "y": ["yes"] * 26 + ["maybe"]})
    with pytest.raises(DataError, match=r"'y', data row 27: class 'maybe'"):
        codes(path, AGE)


def test_pieces_add_up_to_the_file(tmp_path, monkeypatch):
    values = np.arange(1000) % 30
    path = written(tmp_path / "t.parquet", {"x": values, "y": np.where(values % 2, "yes", "no")})
    whole = codes(path, AGE)
    monkeypatch.setattr("patevolve.shared.data.parquet.PIECE", 7)
    assert codes(path, AGE) == whole == (values // 10).tolist()


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 50])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_text_tables_are_read_piece_by_piece(tmp_path, monkeypatch, rows, suffix):
    comma = "," if suffix == "csv" else "\t"
    lines = [comma.join(("x", "y")), *(comma.join((str(i % 30), "no")) for i in range(rows))]
    path = tmp_path / f"t.{suffix}"
    path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8")
    monkeypatch.setattr("patevolve.shared.data.parquet.PIECE", 7)
    found = list(pieces(path, ["x", "y"]))
    assert [len(piece["x"]) for piece in found] == [7] * (rows // 7) + ([rows % 7] if rows % 7 else [])
    assert [cell for piece in found for cell in piece["x"]] == [str(i % 30) for i in range(rows)]


def test_faults_of_a_text_table_name_the_row_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("patevolve.shared.data.parquet.PIECE", 7)
    rows = ["x,y", *["1,no"] * 20]
    path = tmp_path / "t.csv"
    for fault, words in (
        ("1,no,3", "data row 18: 3 cells"),
        ('1,"no', "cannot be read"),
        ("1,maybe", "data row 18: cl"),
    ):
        path.write_text("\n".join([*rows[:18], fault, *rows[19:]]), encoding="utf-8")
        with pytest.raises(DataError, match=words):
            codes(path, AGE)
    path.write_bytes("\n".join(rows).encode() + b"\n1,\xff\n")
    with pytest.raises(DataError, match="UTF-8"):
        codes(path, AGE)


def test_a_text_table_larger_than_a_piece_does_not_stand_in_memory(tmp_path, monkeypatch):
    """Twelve times the rows, the same peak: what one piece needs. The twin reads the file as one piece."""
    path, peaks = tmp_path / "t.csv", {}
    for rows in (1_000, 12_000):
        path.write_text("x,y\n" + "".join(f"{i},row {i} of the table\n" for i in range(rows)), encoding="utf-8")
        for piece in (500, 1_000_000):
            monkeypatch.setattr("patevolve.shared.data.parquet.PIECE", piece)
            tracemalloc.start()
            total = sum(len(cells["x"]) for cells in pieces(path, ["x", "y"]))
            peaks[rows, piece] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert total == rows
    assert peaks[12_000, 500] < 1.5 * peaks[1_000, 500]
    assert peaks[12_000, 1_000_000] > 10 * peaks[12_000, 500]


def broken(path):
    whole = path.read_bytes()
    yield b""
    yield whole[: len(whole) // 2]
    yield whole[:-8] + b"\xff" * 8
    yield b"PAR1" + os.urandom(200) + b"PAR1"
    yield whole[:4] + os.urandom(len(whole) - 12) + whole[-8:]


def test_damaged_and_empty_files_are_refused(tmp_path):
    path = written(tmp_path / "t.parquet", {"x": [1], "y": ["yes"]})
    for data in list(broken(path)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"t\.parquet"):
            codes(path, AGE)
    with pytest.raises(DataError, match="no data rows"):
        codes(written(path, {"x": pa.array([], pa.int64()), "y": pa.array([], pa.string())}), AGE)
    with pytest.raises(DataError, match="no column 'x'"):
        codes(written(path, {"y": ["yes"]}), AGE)


# ---- any table -------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=6).filter(
    lambda name: name not in {"y", "the label"}
)
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)
CELLS = {
    "int": (pa.int64(), st.integers(-1000, 1000)),
    "float": (pa.float64(), st.floats(-1e3, 1e3, width=32)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), TEXT),
    "date": (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "null": (pa.null(), st.none()),
}


@st.composite
def tables(draw):
    """Draw a table of 0 to 3 rows: (name, kind, cells) for each column, some constant, some with gaps or all gaps."""
    rows = draw(st.integers(0, 3))
    columns = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        kind = draw(st.sampled_from(sorted(CELLS)))
        cells = draw(st.lists(st.one_of(st.none(), CELLS[kind][1]), min_size=rows, max_size=rows))
        columns.append((name, kind, cells if draw(st.booleans()) or not cells else [cells[0]] * rows))
    return rows, columns


def spelled(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def public_column(name, kind, cells):
    """Return a schema as documentation would state it, wide enough for the cells. Raises PlanError if none can be."""
    if kind in {"int", "float"}:
        return Column(
            name=name,
            kind="numeric",
            edges=(-1000.0, -10.0, 0.0, 10.0, 1001.0),
            missing=True,
            decimals=int(kind == "float"),
        )
    values = tuple(dict.fromkeys(spelled(cell).strip() for cell in cells if cell is not None)) or ("anything",)
    return Column(name=name, kind="categorical", values=values, missing=True)


def expected_code(column, cell):
    listed = column.kind == "categorical" and cell is not None and spelled(cell) in column.values  # "?" may be one
    if cell is None or (column.kind == "categorical" and not listed and spelled(cell).strip() in {"", "?"}):
        return column.levels - 1
    if column.kind == "numeric":
        return int(np.clip(np.digitize(cell, column.edges) - 1, 0, len(column.edges) - 2))
    return None  # checked by the round trip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables(), form=st.sampled_from(["parquet", "csv"]))
@example(table=(1, [("0", "text", ["?"])]), form="parquet")
def test_any_table_survives_the_round_trip_or_is_refused(table, form, tmp_path):
    """Codes are those of the cells; what is released under the schema has the column's type and the same codes."""
    rows, columns = table
    arrays = {name: pa.array(cells, CELLS[kind][0]) for name, kind, cells in columns} | {"the label": ["yes"] * rows}
    path = tmp_path / f"t.{form}"
    if form == "parquet":
        parquet.write_table(pa.table(arrays), path)
    else:
        pd.DataFrame(
            {name: [spelled(c) if c is not None else "" for c in pa.array(a).to_pylist()] for name, a in arrays.items()}
        ).to_csv(path, index=False)
    layout = Layout(classes=("no", "yes"), label="the label")
    try:
        schema = tuple(public_column(*column) for column in columns)
        records = load_table(path, schema, layout)[""]
    except PlanError as reason:  # categories that differ in case alone, or an empty category beside missing = true
        refused = str(reason)
    except DataError as reason:
        refused = str(reason)
        assert rows == 0 or "two columns of one name" in refused or "no column" in refused or "rows" in refused, refused
    else:
        refused = ""
        assert len(records) == rows
        for place, (column, (_, kind, cells)) in enumerate(zip(schema, columns, strict=True)):
            found = records.values[:, place]
            for code, cell in zip(found.tolist(), cells, strict=True):
                assert expected_code(column, cell) in {None, code}
            released = decode_column(column, found, np.full(rows, 0.5))
            check_types(kind, cells, released)
    assert refused == "" or len(refused) > 20


def check_types(kind, cells, released):
    for cell, text in itertools.zip_longest(cells, released):
        if text == "":
            assert cell is None or spelled(cell).strip().casefold() in {"", "na", "n/a", "nan", "null", "none", "?"}
        elif kind == "int":
            assert str(int(text)) == text
        elif kind == "float":
            assert float(text) is not None
            assert "." in text
        else:
            assert text == spelled(cell).strip() or text.casefold() == spelled(cell).strip().casefold()
