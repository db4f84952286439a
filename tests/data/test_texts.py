"""Texts as sites have them: CSV, TSV and Parquet become rows of bytes, or are refused by row; hostile ones too."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.client.cli import client
from patevolve.client.private_index import build_index
from patevolve.client.stored_index import embed_data, read_index
from patevolve.shared.data.load import Layout, load_table
from patevolve.shared.data.survey import NEAR, text_fingerprint
from patevolve.shared.encoder.image import ImageEncoder
from patevolve.shared.encoder.ngrams import hashed_words
from patevolve.shared.errors import DataError
from patevolve.shared.plan import agree
from patevolve.shared.texts import TextColumn, unpacked

COLUMN = TextColumn(name="note", length=32)
LAYOUT = Layout(classes=("no", "yes"), label="y", unit="id", site="hospital")
HEAD = "id,hospital,note,y\n"
HOSTILE = [
    "<script>alert(1)</script>",
    '"quoted", and\nin two lines',
    "=cmd|' /C calc'!A0",
    "\u202egnirts neddih",
    "a\0b",
    "שלום עולם",
    "x" * 100_000,
    "🙂" * 100,
    "NA",
]
PLAN = """
format = 1
name = "notes"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-3
unit = "patient"
records_per_unit = 2
[sites]
count = 1
expected_units = 30
[data]
kind = "text"
classes = ["no", "yes"]
label = "y"
unit = "id"
text = "note"
length = 32
[generator]
kind = "pool"
asset = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
[questions.counts]
share = 1.0
[release]
samples = 10
"""


def written(path, rows, head=HEAD):
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    path.write_bytes((head + "\n".join(quoted) + "\n").encode())
    return path


def texts_of(found):
    return {site: unpacked(records.values) for site, records in found.items()}


def test_texts_are_read_in_their_normal_form(tmp_path):
    path = written(tmp_path / "t.csv", [("1", "A", " Chest\u00a0 pain ", "no"), ("2", "B", "cafe\u0301\nnoir", "yes")])
    found = load_table(path, COLUMN, LAYOUT)
    assert texts_of(found) == {"A": ["Chest pain"], "B": ["café noir"]}
    assert found["A"].values.dtype == np.uint8
    assert found["A"].values.shape == (1, 32)
    assert found["B"].units.tolist() == ["2"]
    assert found["B"].classes.tolist() == [1]


def test_a_tsv_and_a_parquet_file_give_the_same(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    rows = [("1", "A", "one note", "no"), ("2", "A", "x" * 1_000_000, "yes"), ("3", "A", "a\0b", "yes")]
    names = ["id", "hospital", "note", "y"]
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    lines = ["\t".join(cell[:900] for cell in row) for row in [names, *rows]]
    (tmp_path / "t.tsv").write_text("\n".join(lines))
    one, two = (load_table(tmp_path / f"t.{kind}", COLUMN, LAYOUT)["A"] for kind in ("parquet", "tsv"))
    assert one.values.tobytes() == two.values.tobytes()
    assert unpacked(one.values) == ["one note", "x" * 32, "a b"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_a_record_like_any_other(tmp_path, text):
    path = written(tmp_path / "t.csv", [("1", "A", text, "no"), ("2", "A", "the other", "yes")])
    (kept, other) = unpacked(load_table(path, COLUMN, LAYOUT)["A"].values)
    assert other == "the other"
    assert 0 < len(kept.encode()) <= 32
    assert kept.isprintable() or "\u200d" in kept


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("1", "A", "note", "no"), ("2", "A", "\0 \t", "no")], "column 'note', data row 2: an empty text found"),
        ([("1", "A", "note", "maybe")], "data row 1: class 'maybe' found"),
        ([("", "A", "note", "no")], "data row 1: an empty patient id"),
        ([("1", "", "note", "no")], "without a site's name"),
        ([("1", "A", "x" * 1_000_000, "no")], "cannot be read as a UTF-8 table"),
    ],
)
def test_what_is_no_text_is_refused_by_row(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        load_table(written(tmp_path / "t.csv", rows), COLUMN, LAYOUT)


def test_a_file_without_the_column_or_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("id,hospital,text,y\n1,A,note,no\n")
    with pytest.raises(DataError, match="no column 'note'"):
        load_table(tmp_path / "t.csv", COLUMN, LAYOUT)
    (tmp_path / "t.csv").write_bytes(
        HEAD.encode() + b"1,A,\xed\xa0\xbd,no\n"
    )  # half a surrogate pair, written as bytes
    with pytest.raises(DataError, match="UTF-8"):
        load_table(tmp_path / "t.csv", COLUMN, LAYOUT)


def test_records_without_ids_are_named_by_their_text(tmp_path):
    layout = Layout(classes=("no", "yes"), label="y")
    rows = [("1", "A", "same", "no"), ("2", "A", " same ", "no"), ("3", "A", "other", "no")]
    units = load_table(written(tmp_path / "t.csv", rows), COLUMN, layout)[""].units.tolist()
    fewer = load_table(written(tmp_path / "t.csv", rows[1:]), COLUMN, layout)[""].units.tolist()
    assert len(set(units)) == 3
    assert set(fewer) < set(units)  # a record that leaves renames no other


def test_the_bound_on_a_patients_records_holds_in_memory_and_on_disk(tmp_path):
    rows = [(f"{n // 5}", "A", f"note number {n} of {n % 7}", "no" if n % 2 else "yes") for n in range(60)]
    path = written(tmp_path / "t.csv", rows)
    agreed = agree(PLAN)
    encoder = ImageEncoder(mean=np.zeros(1024), axes=np.eye(1024)[:, :4], frequencies=np.eye(4), describe=hashed_words)
    (records,) = load_table(path, agreed.plan.data.fields, Layout(classes=("no", "yes"), label="y", unit="id")).values()
    held = build_index(records, agreed.plan, encoder, b"s" * 32)
    stored = read_index(embed_data(path, agreed, encoder, tmp_path / "index"), agreed.plan, b"s" * 32)
    assert held.units == stored.units == 12
    assert len(held.members.features) == 24
    order = [np.lexsort(voters.features.T) for voters in (held.members, stored.members)]
    assert held.members.features[order[0]].tobytes() == stored.members.features[order[1]].tobytes()


def test_the_inspection_lists_every_row_at_fault_and_likenesses(tmp_path):
    long = "the patient reports chest pain since yesterday evening and was sent home"
    rows = [(str(n), "A", f"{n * 7919} different words {n}", "no") for n in range(20)]
    rows += [("30", "A", long, "yes"), ("31", "A", long.upper(), "yes"), ("32", "A", long, "no")]
    rows += [("33", "A", "", "no"), ("34", "A", "fine", "maybe")]
    (tmp_path / "plan.toml").write_text(PLAN.replace("length = 32", "length = 128"))
    words = ["inspect", written(tmp_path / "t.csv", rows), "--plan", tmp_path / "plan.toml", "--format", "json"]
    ended = CliRunner().invoke(client, [str(word) for word in words])
    assert ended.exit_code == 4
    found = json.loads(ended.stdout)
    assert [name for name, _ in found["refused"]] == ["data row 24", "data row 25"]
    assert "empty text" in found["refused"][0][1]
    repeats = found["survey"]["repeats"]
    assert (repeats["equal"], repeats["contradicts"], repeats["near"]) == (1, 2, 2)
    assert not any(long in line for line in found["warnings"])


def test_fingerprints_tell_like_texts_from_others():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(400)]
    texts = [" ".join(rng.choice(words, 60)) for _ in range(30)]
    marks = [text_fingerprint(text) for text in texts]
    apart = [(a ^ b).bit_count() for i, a in enumerate(marks) for b in marks[:i]]
    assert min(apart) > 2 * NEAR
    assert all(text_fingerprint(text.upper() + " ") == mark for text, mark in zip(texts, marks, strict=True))
    assert text_fingerprint("") == text_fingerprint(" ")
