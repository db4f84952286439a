"""Folders per class and manifests: the plan's classes, patients kept together, oddities reported, faults in words."""

import os
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from patevolve.shared.data.load import Layout, load_images
from patevolve.shared.data.manifest import find
from patevolve.shared.data.shard import bounded, held_out, teacher_of
from patevolve.shared.data.target import Target
from patevolve.shared.errors import DataError

CLASSES = ("cat", "größe", "dog")
PLAIN = Layout(classes=CLASSES, label="label")
PATIENTS = Layout(classes=CLASSES, label="label", unit="patient")
SITES = Layout(classes=CLASSES, label="label", unit="patient", site="site")
SECRET = b"s" * 32


def picture(level):
    image = np.full((8, 8), level, np.uint8)
    image[0, 0] = 255 - level
    return image


def put(path, level=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(level)).save(path, format="PNG")
    return path


def folder(tmp_path):
    for i, place in enumerate(["cat/a.png", "cat/b.png", "größe/c.png"]):
        put(tmp_path / place, 10 * (i + 1))
    return tmp_path


def loaded(path, layout=PLAIN, **changes):
    found = load_images(path, (8, 8), layout, Target(height=8, width=8, **changes))
    return {
        site: sorted(zip(r.values[:, 1, 1].tolist(), r.classes.tolist(), r.units.tolist(), strict=True))
        for site, r in found.items()
    }


def levels(path, layout=PLAIN):
    return [(level, cls) for level, cls, _ in loaded(path, layout)[""]]


EXPECTED = [(10, 0), (20, 0), (30, 1)]


def test_classes_are_the_plans_whatever_the_folder_holds(tmp_path):
    assert levels(folder(tmp_path)) == EXPECTED


JUNK = [
    ".DS_Store", "Thumbs.db", "cat/.DS_Store", "cat/Thumbs.db", "cat/desktop.ini", "__MACOSX/cat/._a.png",
    "cat/._a.png", ".ipynb_checkpoints/a.png", "cat/.ipynb_checkpoints/a-checkpoint.png", "@eaDir/a.png",
    "README.txt", "cat/notes.csv", "cat/DICOMDIR", "other/notes.txt", ".git/HEAD",
]  # fmt: skip


@pytest.mark.parametrize("name", JUNK)
def test_what_is_nobodys_data_is_left_out_and_reported(tmp_path, name):
    path = folder(tmp_path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0\0\0\1Bud1")
    assert levels(tmp_path) == EXPECTED
    assert len(find(tmp_path, PLAIN).ignored) == 1


def test_an_empty_class_and_an_empty_folder_are_reported(tmp_path):
    (folder(tmp_path) / "dog").mkdir()
    (tmp_path / "elephant").mkdir()
    assert levels(tmp_path) == EXPECTED
    assert dict(find(tmp_path, PLAIN).ignored) == {
        "dog": "the folder of a class, without an image",
        "elephant": "a folder without images that is no class of the plan",
    }


@pytest.mark.parametrize("name", ["elephant/x.png", "Cat/x.png", "x.png", "train/elephant/x.png"])
def test_images_that_are_of_no_class_are_refused(tmp_path, name):
    put(folder(tmp_path) / name)
    with pytest.raises(DataError, match=r"1 file\(s\).*(no class|outside the folders).*inspect"):
        levels(tmp_path)


def test_class_names_match_whatever_form_the_file_system_gives_them(tmp_path):
    folder(tmp_path)
    (tmp_path / "größe").rename(tmp_path / unicodedata.normalize("NFD", "größe"))
    assert levels(tmp_path) == EXPECTED


def test_a_folder_without_any_image_is_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=r"no image found.*cat, größe, dog"):
        levels(tmp_path)


def test_a_patients_folder_is_the_unit_and_splits_are_grouped(tmp_path):
    for i, place in enumerate(
        ["train/cat/P1/a.png", "test/cat/P1/a.png", "val/dog/P1/deep/b.png", "train/dog/P2/c.png"]
    ):
        put(tmp_path / place, 10 * i)
    assert loaded(tmp_path, PATIENTS)[""] == [(0, 0, "P1"), (10, 0, "P1"), (20, 2, "P1"), (30, 2, "P2")]
    assert sorted(item.split for item in find(tmp_path, PATIENTS).items) == ["test", "train", "train", "val"]
    put(tmp_path / "train" / "cat" / "loose.png")
    with pytest.raises(DataError, match=r"loose\.png.*patient"):
        loaded(tmp_path, PATIENTS)


def test_the_order_of_the_file_system_does_not_matter(tmp_path, monkeypatch):
    before = find(folder(tmp_path), PLAIN).items
    listed = os.scandir

    class Backwards:
        def __init__(self, path):
            self.entries = iter(sorted(listed(path), key=lambda entry: entry.name, reverse=True))

        def __iter__(self):
            return self.entries

        def __next__(self):
            return next(self.entries)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(os, "scandir", Backwards)
    assert find(tmp_path, PLAIN).items == before


def test_links_to_folders_are_not_followed_and_loops_end(tmp_path):
    folder(tmp_path)
    (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = find(tmp_path, PLAIN)
    assert len(found.items) == 3
    assert sorted(name for name, _ in found.refused) == ["again", "loop"]
    (tmp_path / "cat" / "self.png").symlink_to(tmp_path / "cat" / "self.png")
    with pytest.raises(DataError, match=r"self\.png|again"):
        levels(tmp_path)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    folder(tmp_path)
    listed = os.scandir

    def refuse(path="."):
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cat: a folder that cannot be listed \(Permission denied\)"):
        levels(tmp_path)


# ---- manifests -------------------------------------------------------------------------------------------------------

ROWS = {
    "path": ["a.png", "sub/b, c.png", "d.png", "d2.png"],
    "label": ["cat", "größe", "dog", "cat"],
    "patient": ["1", "1", "2", "2"],
    "site": ["A", "A", "B", "B"],
    "split": ["train", "test", "train", "train"],
}
FOUND = {"A": [(0, 0, "1"), (10, 1, "1")], "B": [(20, 2, "2"), (30, 0, "2")]}


def manifest(tmp_path, form, **changes):
    rows = {name: column for name, column in (ROWS | changes).items() if column is not None}
    for i, name in enumerate(ROWS["path"]):
        put(tmp_path / name, 10 * i)
    path = tmp_path / f"all.{form}"
    if form == "parquet":
        parquet.write_table(pa.table(rows), path)
        return path
    mark = "\t" if form == "tsv" else ","
    lines = [mark.join(f'"{cell}"' for cell in line) for line in [list(rows), *zip(*rows.values(), strict=True)]]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return path


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_a_manifest_gives_label_patient_and_site(tmp_path, form):
    assert loaded(manifest(tmp_path, form), SITES) == FOUND


def test_a_manifests_numbers_are_read_as_text(tmp_path):
    assert loaded(manifest(tmp_path, "parquet", patient=[1, 1, 2, 2]), SITES) == FOUND
    with_gap = [1.0, 1.0, 2.0, 2.0]  # what pandas makes of whole numbers beside a gap
    assert loaded(manifest(tmp_path, "parquet", patient=with_gap), SITES) == FOUND


BAD = {
    "no such file": ({"path": ["a.png", "gone.png", "d.png", "d2.png"]}, r"gone\.png"),
    "a folder": ({"path": ["a.png", "sub", "d.png", "d2.png"]}, r"sub"),
    "empty path": ({"path": ["a.png", " ", "d.png", "d2.png"]}, r"data row 2: an empty path"),
    "label": ({"label": ["cat", "bird", "dog", "cat"]}, r"'bird'.*cat, größe, dog"),
    "no label": ({"label": ["cat", "", "dog", "cat"]}, r"class ''"),
    "no patient": ({"patient": ["1", "", "2", "2"]}, r"patient id"),
    "no patient column": ({"patient": None}, r"no column 'patient'"),
    "no path column": ({"path": None}, r"no column 'path'"),
    "no site": ({"site": ["A", "", "B", "B"]}, r"site's name"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_faulty_manifest_is_refused_in_words(tmp_path, name, form):
    changes, words = BAD[name]
    with pytest.raises(DataError, match=words):
        loaded(manifest(tmp_path, form, **changes), SITES)


def test_a_folder_cannot_serve_several_sites(tmp_path):
    with pytest.raises(DataError, match="manifest"):
        loaded(folder(tmp_path), SITES)


def test_a_patient_in_several_files_splits_and_classes_is_one_unit(tmp_path):
    records = load_images(manifest(tmp_path, "csv"), (8, 8), PATIENTS)[""]
    for assigned in (teacher_of(SECRET, records.units, 5), held_out(SECRET, records.units, 0.5)):
        for unit in np.unique(records.units):
            assert len(set(assigned[records.units == unit].tolist())) == 1
    assert len(bounded(SECRET, records, 1)) == 2


def test_the_bound_keeps_the_same_records_in_any_order_of_the_files(tmp_path):
    records = load_images(manifest(tmp_path, "csv"), (8, 8), PATIENTS)[""]
    kept = {int(value[1, 1]) for value in bounded(SECRET, records, 1).values}
    order = [3, 1, 0, 2]
    turned = {name: [column[i] for i in order] for name, column in ROWS.items()}
    again = load_images(manifest(tmp_path, "csv", **turned), (8, 8), PATIENTS)[""]
    assert {int(value[1, 1]) for value in bounded(SECRET, again, 1).values} == kept


def test_arrays_are_converted_only_as_declared(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, images=np.full((2, 4, 4), 1000, np.uint16), label=np.array(["cat", "dog"]))
    with pytest.raises(DataError, match=r"uint16.*value_range"):
        load_images(path, (8, 8), PLAIN)
    found = load_images(path, (8, 8), PLAIN, Target(height=8, width=8, fit="stretch", value_range=(0.0, 2000.0)))
    assert np.unique(found[""].values).tolist() == [128]


@pytest.mark.parametrize("name", ["a\0.png", "x" * 300 + ".png", "../" * 40 + "gone.png", "a.png/b.png"])
def test_paths_that_no_file_can_have_are_refused(tmp_path, name):
    path = manifest(tmp_path, "parquet", path=[name, *ROWS["path"][1:]])
    with pytest.raises(DataError, match=r"1 file\(s\).*cannot be read"):
        loaded(path, SITES)


@pytest.mark.parametrize("name", ["x.dcm", "x.png", "x", "x.zip"])
def test_one_file_is_no_data_set(tmp_path, name):
    with pytest.raises(DataError, match="neither a folder of images nor a manifest"):
        loaded(put(tmp_path / name))


def test_a_folder_whose_entries_cannot_be_looked_up_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    made = folder(tmp_path)
    monkeypatch.setattr(type(tmp_path), "is_dir", refuse)
    with pytest.raises(DataError, match="Permission denied"):
        find(made, PLAIN)
