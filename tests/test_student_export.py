"""The student as ONNX and safetensors: one file, the pinned opset, the same answers, and verified like the release."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.numpy
from safetensors import safe_open

from patevolve.client.policy import draft
from patevolve.client.simulate import load_records, open_sites, simulate
from patevolve.shared.errors import InputError, ReleaseError
from patevolve.shared.plan import agree
from patevolve.shared.release import folder as folder_module
from patevolve.shared.schema import encode_column
from patevolve.shared.student_export import export_student
from patevolve.shared.students.files import onnx_bytes, safetensors_bytes
from patevolve.shared.tools import tools_of
from patevolve.shared.verify import verify_release

PLAN = """
format = 1
name = "one site, a *plain* plan"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
unit = "record"
[sites]
count = 1
expected_units = 100
[data]
kind = "table"
classes = ["no", "yes | maybe"]
label = "y"
[[data.columns]]
name = "size"
kind = "numeric"
edges = [0, 1, 2, 3]
missing = true
[[data.columns]]
name = "sex"
kind = "categorical"
values = ["f", "m"]
[generator]
kind = "tabular"
[questions.counts]
share = 0.4
[questions.prototypes]
share = 0.6
[evolution]
population = 60
generations = 1
[release]
samples = 60
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one site whose class follows the size."""
    place, agreed = tmp_path_factory.mktemp("run"), agree(PLAN)
    rows = [f"{('no', 'yes | maybe')[i % 2]},{i % 2 * 2},{'fm'[i // 2 % 2]}" for i in range(200)]
    (place / "data.csv").write_text("y,size,sex\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (place / "home").mkdir()
    (place / "home" / "policy.toml").write_text(draft("north", agreed, reserve=1.0), encoding="utf-8")
    records = {"north": load_records(place / "data.csv", agreed.plan)[""]}
    simulate(agreed, open_sites({"north": place / "home"}, records, agreed), place / "run")
    return place / "run"


def _arrays(run: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(run / "student" / "student.npz") as found:
        return found["weights"], found["bias"]


def _softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _answers(data: bytes, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    probabilities, classes = session.run(None, {"features": features.astype(np.float32)})
    return probabilities, classes


def test_onnx_answers_as_numpy_does_on_real_features(run: Path, tmp_path: Path) -> None:
    export_student(run, tmp_path / "out", "onnx")
    plan, (weights, bias) = agree(PLAN).plan, _arrays(run)
    texts = {"size": ["0", "1", "2", "", "2", "0"], "sex": ["f", "m", "f", "m", "m", "f"]}
    codes = np.stack([encode_column(column, texts[column.name]) for column in plan.data.columns], axis=1)
    features = tools_of(plan).encoder.encode(codes)
    probabilities, classes = _answers((tmp_path / "out" / "student.onnx").read_bytes(), features)
    expected = _softmax(features @ weights + bias)
    assert np.abs(probabilities - expected).max() < 1e-5
    assert classes.tolist() == expected.argmax(axis=1).tolist()
    assert {0, 1} == set(classes.tolist())


@pytest.mark.parametrize("dimension", [1, 36, 784])
@pytest.mark.parametrize("count", [2, 10])
def test_onnx_answers_as_numpy_does_for_any_shape_and_a_class_never_seen(dimension: int, count: int) -> None:
    rng = np.random.default_rng(dimension)
    weights, bias = rng.normal(size=(dimension, count)) / np.sqrt(dimension), rng.normal(size=count)
    bias[-1] = -1e9  # as ``linear_student`` marks a class without samples
    features = rng.normal(size=(64, dimension))
    probabilities, classes = _answers(onnx_bytes(weights, bias, ["c"] * count), features)
    assert np.abs(probabilities - _softmax(features @ weights + bias)).max() < 1e-5
    assert probabilities.dtype == np.float32
    assert count - 1 not in classes.tolist()
    for few in (0, 1):
        assert _answers(onnx_bytes(weights, bias, ["c"] * count), features[:few])[0].shape == (few, count)


def test_onnx_is_one_file_of_the_pinned_opset_with_its_classes(run: Path, tmp_path: Path) -> None:
    export_student(run, tmp_path / "out", "onnx")
    model = onnx.load(tmp_path / "out" / "student.onnx", load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert model.ir_version == 8
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert not list((tmp_path / "out").glob("*.data"))
    assert json.loads({p.key: p.value for p in model.metadata_props}["classes"]) == ["no", "yes | maybe"]


def test_safetensors_hold_the_arrays_and_the_classes(run: Path, tmp_path: Path) -> None:
    export_student(run, tmp_path / "out", "safetensors")
    found, (weights, bias) = safetensors.numpy.load_file(tmp_path / "out" / "student.safetensors"), _arrays(run)
    np.testing.assert_array_equal(found["weights"], weights)
    np.testing.assert_array_equal(found["bias"], bias)
    assert set(found) == {"weights", "bias"}
    with safe_open(tmp_path / "out" / "student.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["classes"]) == ["no", "yes | maybe"]


@pytest.mark.parametrize("fmt", ["onnx", "safetensors"])
def test_the_folder_has_its_papers_and_is_verified(fmt: str, run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_student(run, tmp_path / name, fmt)
    out = tmp_path / "a"
    names = sorted(p.name for p in out.iterdir())
    papers = ["README.md", "features.csv", "guarantee.json", "manifest.json", "plan.toml", "proof.json"]
    assert names == sorted([*papers, "release-manifest.json", f"student.{fmt}"])
    assert all((out / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    assert verify_release(out).export
    for name in names:
        data = bytearray((out / name).read_bytes())
        data[len(data) // 2] ^= 1
        (out / name).write_bytes(bytes(data))
        with pytest.raises(ReleaseError):
            verify_release(out)
        data[len(data) // 2] ^= 1
        (out / name).write_bytes(bytes(data))


def test_the_card_says_what_goes_in_what_comes_out_and_what_is_guaranteed(run: Path, tmp_path: Path) -> None:
    export_student(run, tmp_path / "out", "onnx")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    release = (run / "release" / "README.md").read_text("utf-8")
    privacy = release.partition("\n## Privacy\n")[2].partition("\n## ")[0]
    assert privacy.strip()
    assert privacy in card
    for words in ("public encoder", "opset 17", "yes \\| maybe", "a \\*plain\\* plan", "## Limits", "medical device"):
        assert words in card
    rows = (tmp_path / "out" / "features.csv").read_text("utf-8").splitlines()
    assert rows[1] == "0,size,from 0 to below 1"
    assert rows[4:] == ["3,size,missing", "4,sex,f", "5,sex,m"]
    assert len(rows) == 1 + tools_of(agree(PLAN).plan).encoder.dimension


def test_a_student_of_another_run_or_none_is_refused(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    student = copy / "student"
    card = student / "README.md"
    card.write_text(card.read_text("utf-8").replace(agree(PLAN).sha256, "0" * 64), encoding="utf-8")
    with pytest.raises(ReleaseError, match="the same run"):
        export_student(copy, tmp_path / "out", "onnx")
    shutil.copytree(run / "student", student, dirs_exist_ok=True)
    for arrays in (
        {"weights": np.zeros((6, 3)), "bias": np.zeros(3)},
        {"weights": np.full((6, 2), np.nan), "bias": np.zeros(2)},
        {"weights": np.zeros((6, 2))},
        {"weights": np.array([{"evil": 1}], dtype=object), "bias": np.zeros(2)},
    ):
        np.savez(student / "student.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(ReleaseError, match="holds no student"):
            export_student(copy, tmp_path / "out", "onnx")
    (student / "student.npz").write_bytes(b"no zip")
    with pytest.raises(ReleaseError, match="holds no student"):
        export_student(copy, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fmt", ["onnx", "safetensors"])
def test_a_full_disk_leaves_nothing_and_nothing_is_replaced(
    fmt: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("mine")
    with pytest.raises(InputError, match="replaces nothing"):
        export_student(run, tmp_path / "used", fmt)

    def write(path: Path, data: bytes) -> None:
        path.write_bytes(data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "_write", write)
    with pytest.raises(ReleaseError, match="No space left"):
        export_student(run, tmp_path / "out", fmt)
    assert [p.name for p in tmp_path.iterdir()] == ["used"]


@pytest.mark.parametrize(
    ("encode", "module"), [(onnx_bytes, "onnx"), (safetensors_bytes, "safetensors.numpy")], ids=["onnx", "safetensors"]
)
def test_a_missing_extra_is_named(encode: Callable[..., Any], module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'patevolve\[export\]'"):
        encode(np.zeros((2, 2)), np.zeros(2), ["a", "b"])
