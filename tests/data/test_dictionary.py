"""Schemas are drafted from documentation alone, say where every bound came from, and are read by ``plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.data.dictionary import DEFAULTS, Draft, draft
from patevolve.shared.data.schema_text import describe, toml_text
from patevolve.shared.errors import InputError
from patevolve.shared.plan import Plan, agree
from patevolve.shared.schema import Column, decode_column, encode_column

DICTIONARY = """\
name,type,min,max,categories,missing,source,role,edges,decimals
age,integer,18,89,,no,Codebook p. 3,,,
sex,categorical,,,1=male|2=female,no,Codebook p. 4,,,
oldpeak,float,-2.6,6.2,,yes,,,,1
pressure,integer,,,,yes,Guideline,,90|120|140|250,
smoker,boolean,,,,,,,,
bmi,,,,,yes,,,,
disease,categorical,,,no|yes,no,Codebook p. 9,label,,
patient,id,,,,,,unit,,
clinic,categorical,,,A|B,,,site,,
remark,text,,,,,,,,
admitted,date,,,,,,,,
internal,integer,0,5,,,,ignore,,
"""
HEAD = """\
format = 1
name = "drafted"
seed = 1
[privacy]
epsilon = 1.0
delta = 1e-6
unit = "patient"
[sites]
count = 2
expected_units = 100
"""
TAIL = """
[generator]
kind = "tabular"
[questions.counts]
share = 1.0
[release]
samples = 40
"""


def drafted(tmp_path: Path, text: str, name: str = "dictionary.csv", **named: Any) -> Draft:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return draft(tmp_path / name, **named)


def planned(found: Draft, head: str = HEAD) -> Plan:
    return agree(head + toml_text(found) + TAIL).plan


def test_a_plan_reads_the_draft(tmp_path: Path) -> None:
    found = drafted(tmp_path, DICTIONARY)
    data = planned(found).data
    assert (data.label, data.classes, data.unit, data.site) == ("disease", ("no", "yes"), "patient", "clinic")
    columns = {column.name: column for column in data.columns}
    assert list(columns) == ["age", "sex", "oldpeak", "pressure", "smoker", "bmi"]
    assert columns["age"].edges == (18, 27, 36, 45, 54, 63, 72, 81, 90)
    assert (columns["age"].missing, columns["smoker"].missing) == (False, True)
    assert columns["sex"].values == ("1", "2")
    assert columns["oldpeak"].edges[0], columns["oldpeak"].edges[-1] == (-2.6, 6.3)
    assert columns["pressure"].edges == (90, 120, 140, 250)
    assert columns["smoker"].values == ("no", "yes")
    assert columns["bmi"].edges[0] == 10.0


def test_every_bound_names_its_source_and_defaults_are_marked(tmp_path: Path) -> None:
    found = drafted(tmp_path, DICTIONARY)
    text = toml_text(found)
    for words in (
        "# bounds 18 to 89 from Codebook p. 3 (dictionary.csv, entry 1)",
        "# Codebook p. 4 (dictionary.csv, entry 2) (1 is male, 2 is female)",
        "# edges from Guideline (dictionary.csv, entry 4)",
        "# bounds 10 to 80 from patevolve's defaults: CHECK",
        "# classes from Codebook p. 9 (dictionary.csv, entry 7)",
        "# left out: remark: free text",
        "# left out: admitted: dates",
        "no record was read",
        "public",
    ):
        assert words in text
    value = json.loads(json.dumps(describe(found)))
    assert value["toml"] == text
    assert {c["name"]: c["default"] for c in value["columns"]} == {
        "age": False, "sex": False, "oldpeak": False, "pressure": False, "smoker": False, "bmi": True
    }  # fmt: skip
    assert "patient" not in {each["name"] for each in value["left_out"]}


def test_the_largest_documented_value_can_be_released(tmp_path: Path) -> None:
    column = next(each.column for each in drafted(tmp_path, DICTIONARY).columns if each.column.name == "age")
    assert decode_column(column, np.array([column.levels - 1]), np.array([0.999])) == ["89"]
    assert encode_column(column, ["89"]).tolist() == [column.levels - 1]


def test_tsv_semicolons_bom_and_crlf_read_alike(tmp_path: Path) -> None:
    expected = [each.column for each in drafted(tmp_path, DICTIONARY).columns]
    for name, text in (
        ("d.tsv", DICTIONARY.replace(",", "\t")),
        ("d.csv", "\ufeff" + DICTIONARY.replace("\n", "\r\n")),
        ("s.csv", DICTIONARY.replace(",", ";")),
    ):
        assert [each.column for each in drafted(tmp_path, text, name).columns] == expected


def test_json_and_frictionless_schemas_read_alike(tmp_path: Path) -> None:
    plain = [
        {"name": "age", "type": "integer", "min": 0, "max": 99, "missing": False},
        {"name": "stage", "type": "categorical", "categories": ["I", "II"], "missing": True},
        {"name": "y", "categories": ["no", "yes"], "missing": False},
    ]
    fields = [
        {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 99, "required": True}},
        {"name": "stage", "type": "string", "constraints": {"enum": ["I", "II"], "required": False}, "title": "Stage"},
        {"name": "y", "type": "string", "constraints": {"enum": ["no", "yes"], "required": True}},
        {"name": "note", "type": "string"},
    ]
    made = [
        drafted(tmp_path, json.dumps(value), "d.json", label="y")
        for value in (plain, {"columns": plain}, {"fields": fields})
    ]
    assert len({tuple(each.column for each in found.columns) for found in made}) == 1
    assert made[2].left_out == (("note", "no categories are documented"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,type\nsize,integer\ny,boolean\n", "without min and max"),
        ("name,type,min\nsize,integer,3\ny,boolean,\n", "without min and max"),
        ("name,type\nstage,categorical\ny,boolean\n", "without categories"),
        ("name,type,min,max\nsize,integer,5,5\ny,boolean,,\n", "min below max"),
        ("name,type,min,max\nsize,float,0.001,0.002\ny,boolean,,\n", "no number of 2 decimals"),
        ("name,type,min,max\nsize,float,0,inf\ny,boolean,,\n", "finite"),
        ("name,type,min,max\nsize,float,0,nan\ny,boolean,,\n", "finite"),
        ("name,type,min,max,decimals\nsize,float,0,1,-1\ny,boolean,,,\n", "0 to 9"),
        ("name,type,min,max,decimals\nsize,float,0,1,1.5\ny,boolean,,,\n", "0 to 9"),
        ("name,type,min,max\nsize,integer,0,1e300\ny,boolean,,\n", "15 digits"),
        ("name,type,edges\nsize,integer,3|2\ny,boolean,\n", "increasing"),
        ("name,type,categories\nc,categorical,a|A\ny,boolean,\n", "distinct"),
        ("name,type,missing\nsmoker,boolean,perhaps\ny,boolean,\n", "yes or no"),
        ("name,type\nsize,imaginary\ny,boolean\n", "expected one of"),
        ("name,typ\ny,boolean\n", "Did you mean 'type'"),
        ("name,type\ny,boolean\ny,boolean\n", "twice"),
        ("name,type\n", "no column"),
        ("", "no column"),
        ("age,sex,disease\n43,f,no\n", "found; expected one of"),
        ("type,min\ninteger,3\n", "never drafted from the data"),
        ("name,type,role\nsmoker,boolean,king\ny,boolean,\n", "role = 'king'"),
        ("name,type,role\nsmoker,boolean,unit\nother,boolean,unit\ny,boolean,\n", "expected one column"),
        ('name,type\n"y,boolean\n', "CSV"),
    ],
)
def test_what_is_not_documented_is_refused_and_never_guessed(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        drafted(tmp_path, text, label="y")


def test_a_class_column_must_be_named_and_documented(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--label"):
        drafted(tmp_path, "name,type\nsmoker,boolean\n")
    with pytest.raises(InputError, match="no such column"):
        drafted(tmp_path, "name,type\nsmoker,boolean\n", label="y")
    found = drafted(tmp_path, "name,type\nsmoker,boolean\ny,boolean\n", label="y", unit="patient", site="clinic")
    assert (found.unit, found.site) == ("patient", "clinic")  # these need not be documented


@pytest.mark.parametrize("text", ["{", "3", "[3]", '{"rows": []}', "null", "[" * 100_000])
def test_json_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dictionary|no column"):
        drafted(tmp_path, text, "d.json", label="y")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        draft(tmp_path / "absent.csv", label="y")
    with pytest.raises(InputError, match="cannot be read"):
        draft(tmp_path, label="y")
    (tmp_path / "latin.csv").write_bytes("name,type\né,boolean\n".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        draft(tmp_path / "latin.csv", label="y")
    (tmp_path / "large.csv").write_bytes(b"name,type\n" + b"x" * (5 << 20))
    with pytest.raises(InputError, match="not data"):
        draft(tmp_path / "large.csv", label="y")


@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    decimals=st.integers(0, 4),
    bins=st.integers(1, 100),
)
def test_any_documented_range_makes_a_column_that_releases_it(
    low: float, width: float, decimals: int, bins: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "range.json"
    high = low + width
    entry = {"name": "x", "type": "float", "min": low, "max": high, "decimals": decimals, "missing": False}
    path.write_text(json.dumps([entry, {"name": "y", "type": "boolean"}]), encoding="utf-8")
    try:
        column = draft(path, label="y", bins=bins).columns[0].column
    except InputError as reason:
        assert "no number of" in str(reason) or low >= high  # noqa: PT017 - refused for this reason alone
        return
    assert column.edges[0] >= low - 1e-9
    assert column.edges[-1] <= high + 10.0**-decimals * (1 + 1e-9)
    assert 1 <= column.levels <= bins
    cells = decode_column(column, np.arange(column.levels), np.full(column.levels, 0.5))
    assert encode_column(column, cells).tolist() == list(range(column.levels))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(names=st.lists(NAMES.filter(lambda n: n == n.strip() and n), min_size=1, max_size=4, unique=True))
def test_any_names_and_categories_come_back_from_the_toml(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "names.json"
    rows: list[dict[str, Any]] = [{"name": "the class", "categories": ["no", "yes"]}]
    rows += [{"name": f"x {name}", "categories": [f"v {name}", "other"], "source": name} for name in names]
    path.write_text(json.dumps(rows), encoding="utf-8")
    found = draft(path, label="the class", unit="p")
    columns = planned(found).data.columns
    # A name is stripped as cells are; the text in between comes back as it was.
    assert [column.name for column in columns] == [f"x {name}".strip() for name in names]
    assert [column.values[0] for column in columns] == [f"v {name}".strip() for name in names]


def test_every_default_makes_a_column(tmp_path: Path) -> None:
    rows = "".join(f"{name},\n" for name in DEFAULTS)
    found = drafted(tmp_path, f"name,type\n{rows}y,boolean\n", label="y", unit="patient")
    assert [each.column.name for each in found.columns] == list(DEFAULTS)
    assert all(each.is_default and isinstance(each.column, Column) for each in found.columns)
    planned(found)
