"""Exports open in pandas, pyarrow and Pillow with the types of the public schema, and replace nothing."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from patevolve.shared.errors import InputError, ReleaseError
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.release import folder as folder_module
from patevolve.shared.release import package
from patevolve.shared.release.export import export
from patevolve.shared.release.package import verify_manifest
from patevolve.shared.release.samples import Samples


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def table_release(tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed) -> Path:
    return release(tmp_path / "release", table, table_plan)


@pytest.fixture
def image_release(
    tmp_path: Path, release: Callable, pictures: Callable, image_plan: Callable, hostile: tuple[str, ...]
) -> Path:
    return release(tmp_path / "release", pictures(hostile), image_plan(hostile))


def test_parquet_of_a_table_has_the_types_of_the_schema(table_release: Path, tmp_path: Path, table: Samples) -> None:
    export(table_release, tmp_path / "out", "parquet")
    read = pq.read_table(tmp_path / "out" / "data.parquet")
    category = pa.dictionary(pa.int32(), pa.string())
    assert read.schema.types == [pa.int64(), pa.float64(), category, category, category]
    assert read.schema.names == [*table.columns, "disease"]
    columns = list(zip(*table.rows, strict=True))
    assert read.column(0).to_pylist() == [None if c == "" else int(c) for c in columns[0]]
    assert read.column(1).to_pylist() == [float(c) for c in columns[1]]
    assert read.column(2).to_pylist() == [None if c == "" else c for c in columns[2]]
    assert read.column(4).to_pylist() == ["no"] * 20 + ["yes"] * 20


def test_pandas_keeps_whole_numbers_whole_beside_missing_values(table_release: Path, tmp_path: Path) -> None:
    export(table_release, tmp_path / "out", "parquet")
    frame = pd.read_parquet(tmp_path / "out" / "data.parquet")
    assert [str(dtype) for dtype in frame.dtypes] == ["Int64", "float64", "category", "category", "category"]
    assert frame["age"].isna().sum() == 6
    assert list(frame["disease"].cat.categories) == ["no", "yes"]


def test_the_exported_folder_is_a_release_of_its_own(table_release: Path, tmp_path: Path) -> None:
    export(table_release, tmp_path / "out", "parquet")
    names = verify_manifest(tmp_path / "out")
    assert names == ("README.md", "data.parquet", "guarantee.json", "plan.toml", "release-manifest.json")
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'data_files: "data.parquet"' in card
    assert "data.csv" not in card
    for name in ("guarantee.json", "plan.toml", "proof.json"):
        assert (tmp_path / "out" / name).read_bytes() == (table_release / name).read_bytes()
    signed = (tmp_path / "out" / "release-manifest.json").read_bytes()
    assert signed == (table_release / "manifest.json").read_bytes()


def test_csv_and_imagefolder_are_the_release_itself(table_release: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # an empty folder may be used
    export(table_release, tmp_path / "out", "csv")
    assert contents(tmp_path / "out") == contents(table_release)


def test_imagefolder_is_the_release_itself(image_release: Path, tmp_path: Path) -> None:
    export(image_release, tmp_path / "out", "imagefolder")
    assert contents(tmp_path / "out") == contents(image_release)


def test_parquet_of_images_is_what_datasets_reads(
    image_release: Path, tmp_path: Path, pictures: Callable, hostile: tuple[str, ...]
) -> None:
    samples = pictures(hostile)
    export(image_release, tmp_path / "out", "parquet")
    read = pq.read_table(tmp_path / "out" / "data.parquet")
    features = json.loads(read.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    assert features["label"] == {"_type": "ClassLabel", "names": list(hostile)}
    rows = read.to_pylist()
    assert [row["label"] for row in rows] == samples.classes.tolist()
    assert [row["class"] for row in rows] == [hostile[c] for c in samples.classes]
    assert rows[2]["image"]["path"] == "000003.png"
    images = np.stack([np.asarray(Image.open(io.BytesIO(row["image"]["bytes"]))) for row in rows])
    np.testing.assert_array_equal(images, samples.images)
    assert 'data_files: "data.parquet"' in (tmp_path / "out" / "README.md").read_text()


def test_two_exports_give_the_same_bytes(table_release: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export(table_release, tmp_path / name, "parquet")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("rows", [0, 1])
def test_few_or_no_rows_keep_the_types(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed, rows: int
) -> None:
    few = dataclasses.replace(table, rows=table.rows[:rows], classes=table.classes[:rows])
    export(release(tmp_path / "r", few, table_plan), tmp_path / "out", "parquet")
    read = pq.read_table(tmp_path / "out" / "data.parquet")
    assert read.num_rows == rows
    assert read.schema.types[:2] == [pa.int64(), pa.float64()]


def test_an_all_missing_column_and_the_widest_bounds_keep_their_types(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed
) -> None:
    agreed = agree(table_plan.text.replace("[-1.5, 0.0, 6.25]\ndecimals = 1", "[0.0, 9e15]"))
    rows = tuple(("", "8999999999999999", *row[2:]) for row in table.rows)
    export(release(tmp_path / "r", dataclasses.replace(table, rows=rows), agreed), tmp_path / "out", "parquet")
    frame = pd.read_parquet(tmp_path / "out" / "data.parquet")
    assert [str(dtype) for dtype in frame.dtypes[:2]] == ["Int64", "Int64"]
    assert frame["age"].isna().all()
    assert frame["oldpeak"].eq(8999999999999999).all()


def test_an_empty_text_is_a_category_where_nothing_may_be_missing(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed
) -> None:
    agreed = agree(table_plan.text.replace('["f", "m"]', '["", "m"]'))
    rows = tuple((*row[:3], "m" if row[3] == "m" else "") for row in table.rows)
    export(release(tmp_path / "r", dataclasses.replace(table, rows=rows), agreed), tmp_path / "out", "parquet")
    read = pq.read_table(tmp_path / "out" / "data.parquet").column("sex").to_pylist()
    assert read == [row[3] for row in rows]
    assert "" in read


def test_a_cell_outside_the_schema_is_refused(
    tmp_path: Path, release: Callable, table: Samples, table_plan: Agreed
) -> None:
    for cells in (("x", "1.0", "NA", "f"), ("30", "1.0", "?", "f")):
        rows = (cells, *table.rows[1:])
        folder = release(tmp_path / f"r{cells[0]}", dataclasses.replace(table, rows=rows), table_plan)
        with pytest.raises(ReleaseError, match="outside the plan's schema"):
            export(folder, tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fmt", "hint"), [("parqet", "Did you mean 'parquet'"), ("", "expected one of"), ("CSV", "csv")]
)
def test_an_unknown_format_is_refused(table_release: Path, tmp_path: Path, fmt: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        export(table_release, tmp_path / "out", fmt)
    assert not (tmp_path / "out").exists()


def test_imagefolder_of_a_table_is_explained(table_release: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a table has no images\. Use csv, parquet"):
        export(table_release, tmp_path / "out", "imagefolder")


def test_csv_of_images_is_explained(image_release: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"labels\.csv"):
        export(image_release, tmp_path / "out", "csv")


def test_nothing_is_overwritten(table_release: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for out in ("out", "file"):
        with pytest.raises(InputError, match="replaces nothing"):
            export(table_release, tmp_path / out, "csv")
    assert contents(tmp_path / "out") == {"mine.txt": b"mine"}


def test_an_export_into_the_release_is_refused(table_release: Path) -> None:
    before = contents(table_release)
    with pytest.raises(InputError, match="inside the release"):
        export(table_release, table_release / "parquet", "parquet")
    assert contents(table_release) == before


def test_a_changed_release_is_not_exported(table_release: Path, tmp_path: Path) -> None:
    with (table_release / "data.csv").open("a") as file:
        file.write("1,2,,f,no\n")
    for fmt in ("csv", "parquet"):
        with pytest.raises(ReleaseError, match=r"changed: data\.csv"):
            export(table_release, tmp_path / "out", fmt)
    assert [p.name for p in tmp_path.iterdir()] == ["release"]


def test_a_full_disk_leaves_nothing_behind(
    table_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder_module._write

    def write(path: Path, data: bytes) -> None:
        if path.name == "data.parquet":
            path.write_bytes(data[:10])
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(folder_module, "_write", write)
    with pytest.raises(ReleaseError, match="No space left"):
        export(table_release, tmp_path / "out", "parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["release"]


def test_a_missing_extra_is_named(table_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(package.importlib, "import_module", absent)
    with pytest.raises(InputError, match=r"pyarrow.*pip install 'patevolve\[demo\]'"):
        export(table_release, tmp_path / "out", "parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["release"]


def test_importing_the_room_loads_no_extra() -> None:
    code = (
        "import sys, patevolve.shared.release.export, patevolve.shared.release.gate;"
        "print([m for m in ('PIL', 'pyarrow', 'pandas', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
