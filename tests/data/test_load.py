"""Tables and images as sites have them: read as they are, or refused by the one error before anything is charged."""

import pickle
import zipfile

import numpy as np
import pytest

from patevolve.shared.data.load import Layout, load_images, load_table
from patevolve.shared.errors import DataError
from patevolve.shared.schema import Column

SCHEMA = (
    Column(name="age", kind="numeric", edges=(0.0, 40.0, 100.0)),
    Column(name="größe", kind="categorical", values=("klein", "groß"), missing=True),
)
LAYOUT = Layout(classes=("no", "yes"), label="y", unit="id", site="hospital")
GOOD = "id,hospital,age,größe,y\n1,A,30,klein,no\n2,B,60,GROSS,yes\n1,A,70,,no\n"


def table(tmp_path, content, *, name="t.csv", layout=LAYOUT):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_table(path, SCHEMA, layout)


def described(found):
    return {
        site: (records.values.tolist(), records.classes.tolist(), records.units.tolist())
        for site, records in found.items()
    }


EXPECTED = {"A": ([[0, 0], [1, 2]], [0, 0], ["1", "1"]), "B": ([[1, 1]], [1], ["2"])}


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD.replace("\n", "\r\n"),
        GOOD.rstrip("\n"),
        GOOD.replace("1,A,30", '"1",A," 30 "'),
        GOOD.replace("id,hospital", " id , hospital "),
        GOOD.replace(",A,", ", A ,"),
        GOOD.replace("y\n", "y,extra\n", 1).replace(",no\n", ",no,x\n").replace(",yes\n", ",yes,x\n"),
        GOOD.replace("70,,", "70,NaN,"),
    ],
    ids=["plain", "mark", "crlf", "both", "no last line end", "quotes", "header", "spaces", "extra column", "NaN"],
)
def test_one_table_in_many_spellings(tmp_path, content):
    assert described(table(tmp_path, content)) == EXPECTED


def test_tabs(tmp_path):
    assert described(table(tmp_path, GOOD.replace(",", "\t"), name="t.tsv")) == EXPECTED


def test_the_order_of_columns_does_not_matter(tmp_path):
    rows = [line.split(",")[::-1] for line in GOOD.splitlines()]
    assert described(table(tmp_path, "\n".join(map(",".join, rows)))) == EXPECTED


def test_without_units_and_sites_every_record_is_its_own_unit(tmp_path):
    found = table(tmp_path, GOOD, layout=Layout(classes=("no", "yes"), label="y"))
    assert list(found) == [""]
    assert len(set(found[""].units.tolist())) == 3


def test_a_site_may_lack_a_class(tmp_path):
    """Classes keep the plan's positions, whatever a site has."""
    found = table(tmp_path, GOOD)
    assert found["B"].classes.tolist() == [1]


REFUSED = {
    "empty": ("", ["no data rows"]),
    "header only": (GOOD.splitlines()[0], ["no data rows"]),
    "missing column": (GOOD.replace("age", "Age", 1), ["no column 'age'", "found id, hospital, Age", "Rename"]),
    "missing label": (GOOD.replace(",y\n", ",z\n", 1), ["no column 'y'"]),
    "missing unit": (GOOD.replace("id,", "key,", 1), ["no column 'id'"]),
    "two columns of one name": (GOOD.replace("hospital", "age", 1), ["two columns of one name"]),
    "short row": (GOOD + "3,A,30\n", ["data row 4", "3 cells", "expected 5"]),
    "long row": (GOOD + "3,A,30,klein,no,1\n", ["data row 4", "6 cells"]),
    "blank line": (GOOD + "\n1,A,30,klein,no\n", ["data row 4", "0 cells"]),
    "label outside the classes": (GOOD.replace(",yes", ",maybe"), ["'y', data row 2", "'maybe'", "no, yes"]),
    "empty label": (GOOD.replace(",yes", ","), ["data row 2", "''"]),
    "label as number": (GOOD.replace(",yes", ",1"), ["'1'"]),
    "label as bool": (GOOD.replace(",yes", ",True"), ["'True'"]),
    "NaN in a complete column": (GOOD.replace("60", "NaN"), ["'age', data row 2", "missing", "complete"]),
    "empty in a complete column": (GOOD.replace("60", ""), ["'age', data row 2", "missing"]),
    "infinite": (GOOD.replace("60", "inf"), ["'age', data row 2", "finite"]),
    "text for a number": (GOOD.replace("60", "sixty"), ["'sixty'", "finite number"]),
    "bool for a number": (GOOD.replace("60", "True"), ["'True'", "finite number"]),
    "date for a number": (GOOD.replace("60", "2020-01-01"), ["finite number"]),
    "number for a category": (GOOD.replace("GROSS", "1"), ["'größe', data row 2", "'1'", "klein, groß"]),
    "empty unit": (GOOD.replace("2,B", " ,B"), ["data row 2", "patient id"]),
    "empty site": (GOOD.replace("2,B", "2, "), ["site's name"]),
    "latin-1": (GOOD.encode("latin-1"), ["UTF-8"]),
    "utf-16": (GOOD.encode("utf-16"), ["UTF-8"]),
    "open quote": (GOOD + '3,A,"30,klein,no\n', ["cannot be read"]),
    "quote in the middle": (GOOD + '3,A,"3"0,klein,no\n', ["cannot be read"]),
    "huge cell": (GOOD + "3,A," + "9" * 200_000 + ",klein,no\n", ["cannot be read"]),
    "pickle": (pickle.dumps([1, 2]), ["t.csv"]),
    "tabs in a csv": (GOOD.replace(",", "\t"), ["no column"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_faulty_table_is_refused_in_words(tmp_path, name):
    content, words = REFUSED[name]
    with pytest.raises(DataError) as caught:
        table(tmp_path, content)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.exit_code == 4


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            load_table(path, SCHEMA, LAYOUT)


# ---- images ---------------------------------------------------------------------------------------------------------

IMAGES = Layout(classes=("0", "1"), label="digit", unit="writer", site="site")


def arrays(**changes):
    start = {
        "images": np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8),
        "digit": np.array([0, 1, 1]),
        "writer": np.array(["w1", "w2", "w1"]),
        "site": np.array(["A", "A", "B"]),
    }
    return {name: value for name, value in (start | changes).items() if value is not None}


def images(tmp_path, **changes):
    path = tmp_path / "i.npz"
    np.savez(path, **arrays(**changes))
    return load_images(path, (8, 8), IMAGES)


def test_images_are_read_by_site(tmp_path):
    found = images(tmp_path)
    assert {site: len(records) for site, records in found.items()} == {"A": 2, "B": 1}
    assert found["B"].values.tolist() == arrays()["images"][2:].tolist()
    assert found["A"].classes.tolist() == [0, 1]
    assert found["B"].units.tolist() == ["w1"]
    assert found["A"].values.dtype == np.uint8


BAD_ARRAYS = {
    "no images": ({"images": None}, "no array 'images'"),
    "no labels": ({"digit": None}, "no array 'digit'"),
    "no units": ({"writer": None}, "no array 'writer'"),
    "no site": ({"site": None}, "no array 'site'"),
    "none at all": ({"images": np.zeros((0, 8, 8), np.uint8)}, "n ≥ 1"),
    "16 bits": ({"images": np.zeros((3, 8, 8), np.uint16)}, "uint16"),
    "floats": ({"images": np.zeros((3, 8, 8))}, "float64"),
    "bools": ({"images": np.zeros((3, 8, 8), bool)}, "bool"),
    "colour": ({"images": np.zeros((3, 8, 8, 3), np.uint8)}, "(3, 8, 8, 3)"),
    "other size": ({"images": np.zeros((3, 9, 8), np.uint8)}, "(3, 9, 8)"),
    "flat": ({"images": np.zeros((3, 64), np.uint8)}, "(3, 64)"),
    "short labels": ({"digit": np.array([0, 1])}, "other length"),
    "wide labels": ({"digit": np.zeros((3, 1), int)}, "other length"),
    "label outside": ({"digit": np.array([0, 1, 7])}, "'7'"),
    "negative label": ({"digit": np.array([0, 1, -1])}, "'-1'"),
    "float labels": ({"digit": np.array([0.0, 1.0, 1.0])}, "'0.0'"),
    "NaN labels": ({"digit": np.array([np.nan, 1.0, 1.0])}, "'nan'"),
    "empty unit": ({"writer": np.array(["w1", "", "w1"])}, "patient id"),
    "objects": ({"digit": np.array([0, 1, {}], dtype=object)}, "without objects"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_faulty_arrays_are_refused_in_words(tmp_path, name):
    changes, words = BAD_ARRAYS[name]
    with pytest.raises(DataError) as caught:
        images(tmp_path, **changes)
    assert words in str(caught.value)


class Trap:
    """A pickle that would write a file if it were ever loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def broken(path, kind):
    np.savez_compressed(path, **arrays(images=np.random.default_rng(0).integers(0, 255, (3, 8, 8)).astype(np.uint8)))
    whole = path.read_bytes()
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("images")
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "damaged":
            path.write_bytes(whole[:90] + b"\xff" * 40 + whole[130:])
        case "npy":
            with path.open("wb") as file:
                np.save(file, np.zeros(3))
        case "pickle":
            path.write_bytes(pickle.dumps(Trap(str(path) + ".sprung")))
        case "pickle inside":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("images.npy", pickle.dumps(Trap(str(path) + ".sprung")))
        case "no array inside":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("images.txt", "hello")
        case "header lies":
            with zipfile.ZipFile(path, "w") as archive:
                head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 8, 8), }".ljust(117) + b"\n"
                archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)


@pytest.mark.parametrize(
    "kind", ["empty", "text", "cut", "damaged", "npy", "pickle", "pickle inside", "no array inside", "header lies"]
)
def test_a_broken_or_hostile_archive_is_refused_and_nothing_in_it_runs(tmp_path, kind):
    path = tmp_path / "b.npz"
    broken(path, kind)
    with pytest.raises(DataError):
        load_images(path, (8, 8), IMAGES)
    assert not (tmp_path / "b.npz.sprung").exists()


@pytest.mark.parametrize("position", range(0, 900, 31))
def test_one_damaged_byte_anywhere_is_refused_or_harmless(tmp_path, position):
    path = tmp_path / "d.npz"
    np.savez_compressed(path, **arrays())
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 0x55
    path.write_bytes(data)
    try:
        load_images(path, (8, 8), IMAGES)
    except DataError:
        return
