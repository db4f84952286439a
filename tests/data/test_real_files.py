"""Files that nobody here wrote, as pydicom, nibabel, scikit-image, matplotlib, scikit-learn and statsmodels ship them.

real_files.json says of each what must come of it: the steps of its conversion, or the words of the refusal. Pixels and
cells are compared with what other people's readers make of the same file.
"""

import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pydicom
import pytest
from PIL import Image
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

from patevolve.shared.data.images import read_image
from patevolve.shared.data.load import Layout, load_table
from patevolve.shared.data.target import Target
from patevolve.shared.errors import DataError
from patevolve.shared.schema import Column, decode_column

CASES = json.loads(Path(__file__).with_name("real_files.json").read_text("utf-8"))
IMAGES = [case for case in CASES if case["read"] == "image"]
TABLES = [case for case in CASES if case["read"] == "table"]


def place(case):
    package, rest = case["file"].split("/", 1)
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    return Path(folder) / rest


def name(case):
    rule = "".join(f" {key}={case[key]}" for key in ("frames", "value_range") if key in case)
    return case["file"].split("/", 1)[0] + "/" + Path(case["file"]).name + rule


def target(case, height=48, width=48, fit="pad"):
    bounds = tuple(case.get("value_range", ()))
    return Target(height=height, width=width, fit=fit, frames=case.get("frames", "refuse"), value_range=bounds)


def test_there_are_enough_of_every_kind():
    assert len({case["file"] for case in CASES}) >= 150
    assert sum("refused" in case for case in IMAGES) >= 40
    assert sum("refused" in case for case in TABLES) >= 8
    assert len({case["file"].split("/", 1)[0] for case in CASES}) == 6


@pytest.mark.parametrize("case", IMAGES, ids=name)
def test_an_image_loads_rightly_or_is_refused_in_words(case, capfd):
    path = place(case)
    if "refused" in case:
        with pytest.raises(DataError) as caught:
            read_image(path, target(case))
        assert case["refused"] in str(caught.value)
        assert path.name in str(caught.value)
        assert str(path.parent) not in str(caught.value)  # the name is enough; paths hold names of people
        return
    reading = read_image(path, target(case))
    assert [image.shape for image in reading.images] == [(48, 48)]
    assert reading.images[0].dtype == np.uint8
    assert [step for step in reading.steps if not step.startswith("resized")] == case["steps"]


PLAIN = [case for case in IMAGES if "steps" in case and "frames" not in case]
RASTERS = [
    case
    for case in PLAIN
    if case["file"].endswith((".png", ".jpg")) and "transparency put on black" not in case["steps"]
]


@pytest.mark.parametrize("case", RASTERS, ids=name)
def test_grey_levels_are_those_of_pillow(case):
    with Image.open(place(case)) as image:
        expected = np.asarray(image.convert("L"), int)
    (found,) = read_image(place(case), target(case, *expected.shape, fit="exact")).images
    assert np.abs(found - expected).max() <= 1


def shown_by_pydicom(path, bounds):
    """Return grey levels from pydicom's own modality and window functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = pydicom.dcmread(path)
        stored = dataset.pixel_array
        if stored.ndim == 3:
            return stored @ np.array([0.299, 0.587, 0.114]) * (255 / (2**dataset.BitsStored - 1))
        if "PixelPaddingValue" in dataset:
            stored = np.where(
                stored == dataset.PixelPaddingValue, stored[stored != dataset.PixelPaddingValue].min(), stored
            )
        values = apply_modality_lut(stored, dataset)
        if bounds:
            levels = (values - bounds[0]) / (bounds[1] - bounds[0]) * 255
        elif "WindowCenter" in dataset:
            seen = apply_voi_lut(values, dataset, prefer_lut=False)
            signed, bits = dataset.PixelRepresentation == 1, dataset.BitsStored
            low = -(2 ** (bits - 1)) if signed else 0
            slope, intercept = dataset.get("RescaleSlope", 1), dataset.get("RescaleIntercept", 0)
            levels = (seen - (low * slope + intercept)) / ((2**bits - 1) * slope) * 255
        else:
            levels = values / (2**dataset.BitsStored - 1) * 255
    levels = np.clip(levels, 0, 255)
    return 255 - levels if dataset.PhotometricInterpretation == "MONOCHROME1" else levels


DICOM = [
    case
    for case in PLAIN
    if case["file"].startswith(("pydicom", "nibabel")) and "palette to RGB" not in case["steps"]
    and not case["file"].endswith((".nii", ".gz"))
]  # fmt: skip


@pytest.mark.parametrize("case", DICOM, ids=name)
def test_grey_levels_are_those_of_pydicom(case):
    expected = shown_by_pydicom(place(case), case.get("value_range"))
    (found,) = read_image(place(case), target(case, *expected.shape, fit="exact")).images
    assert np.abs(found - expected).max() <= 1


def schema(case):
    tuples = [{key: tuple(v) if isinstance(v, list) else v for key, v in column.items()} for column in case["columns"]]
    return tuple(Column(**column) for column in tuples)


@pytest.mark.parametrize("case", TABLES, ids=name)
def test_a_table_loads_rightly_or_is_refused_in_words(case):
    layout = Layout(classes=tuple(case["classes"]), label=case["label"])
    if "refused" in case:
        with pytest.raises(DataError) as caught:
            load_table(place(case), schema(case), layout)
        assert case["refused"] in str(caught.value)
        return
    records = load_table(place(case), schema(case), layout)[""]
    frame = pd.read_csv(place(case), skipinitialspace=True)
    frame.columns = [str(column).strip() for column in frame.columns]
    assert len(records) == len(frame) == case["records"]
    as_text = pd.read_csv(place(case), dtype=str, keep_default_na=False)
    labels = as_text[next(name for name in as_text if str(name).strip() == case["label"])].str.strip().tolist()
    assert [case["classes"][number] for number in records.classes] == labels
    for place_of, column in enumerate(schema(case)):
        if column.kind == "numeric":
            numbers = pd.to_numeric(frame[column.name], errors="coerce").to_numpy(float)
            bins = np.clip(np.digitize(numbers, column.edges) - 1, 0, len(column.edges) - 2)
            expected = np.where(np.isnan(numbers), column.levels - 1, bins)
            assert records.values[:, place_of].tolist() == expected.tolist()


@pytest.mark.parametrize("case", [case for case in TABLES if "records" in case], ids=name)
def test_what_is_released_under_a_tables_schema_is_read_back_as_the_same_codes(case, tmp_path):
    rng, columns = np.random.default_rng(0), schema(case)
    codes = [rng.integers(0, column.levels, 20) for column in columns]
    cells = [decode_column(column, code, rng.random(20)) for column, code in zip(columns, codes, strict=True)]
    frame = pd.DataFrame({column.name: cell for column, cell in zip(columns, cells, strict=True)})
    frame["the label"] = case["classes"][0]
    frame.to_csv(tmp_path / "released.csv", index=False)
    found = load_table(tmp_path / "released.csv", columns, Layout(classes=tuple(case["classes"]), label="the label"))
    assert found[""].values.tolist() == np.stack(codes, axis=1).tolist()
