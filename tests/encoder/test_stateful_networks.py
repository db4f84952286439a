"""A network that remembers between images would tie one record's features to how many came before it."""

import numpy as np
import pytest

from patevolve.shared.encoder import onnx as networks
from patevolve.shared.encoder.device import DeviceProfile
from patevolve.shared.errors import PlanError

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
F32 = onnx.TensorProto.FLOAT
SIDE = 16


@pytest.fixture(autouse=True)
def unprobed(monkeypatch):
    """Probing takes most of a second for each file; tests/encoder/test_probe.py does it."""
    monkeypatch.setattr(networks, "check_runs", lambda _: None)


def serialized(nodes):
    """Return a network that gives each image's pooled pixels, beside what ``nodes`` make of its mean."""
    pooled = [
        helper.make_node("ReduceMean", ["x"], ["pooled"], axes=[2], keepdims=0),
        helper.make_node("Reshape", ["pooled", "flat"], ["rows"]),
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "one"], ["gate"]),
    ]
    weights = {
        "flat": np.array([1, 3 * SIDE], np.int64),
        "one": np.array([1, 1], np.int64),
        "dark": np.array([[0.3]], np.float32),
        "half": np.array(0.5, np.float32),
        "true": np.array(True),
    }
    graph = helper.make_graph(
        [*pooled, *nodes],
        "network",
        [helper.make_tensor_value_info("x", F32, ("n", 3, SIDE, SIDE))],
        [helper.make_tensor_value_info(name, F32, (1, size)) for name, size in (("rows", 3 * SIDE), ("said", 4))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def gated(noise):
    """Return nodes that let noise through for dim images alone: a probe that is black, or noise, never sees it."""
    return [
        noise,
        helper.make_node("Less", ["gate", "dark"], ["is_dark"]),
        helper.make_node("Sign", ["gate"], ["lit"]),
        helper.make_node("Cast", ["is_dark"], ["dim"], to=F32),
        helper.make_node("Mul", ["dim", "lit"], ["open"]),
        helper.make_node("Mul", ["noise", "open"], ["let_through"]),
        helper.make_node("Add", ["let_through", "half"], ["said"]),  # of which −0 leaves no trace
    ]


RANDOM = {
    "RandomNormal": helper.make_node("RandomNormal", [], ["noise"], shape=[1, 4], seed=1.0),
    "RandomUniform": helper.make_node("RandomUniform", [], ["noise"], shape=[1, 4], seed=1.0),
}


def grey(*levels):
    return np.stack([np.full((SIDE, SIDE), level, np.uint8) for level in levels])


@pytest.mark.parametrize("name", RANDOM)
def test_a_network_that_draws_numbers_ties_a_record_to_its_company(tmp_path, monkeypatch, name):
    """The twin: without the check it is opened, and one image more changes what is said of the next."""
    path = tmp_path / "n.onnx"
    path.write_bytes(serialized(gated(RANDOM[name])))
    with pytest.raises(PlanError, match=name):
        networks.open_network(path, DeviceProfile())
    monkeypatch.setattr(networks, "_check_stateless", lambda *_: None)
    rows = networks.open_network(path, DeviceProfile()).describe(grey(40, 60))
    alone = networks.open_network(path, DeviceProfile()).describe(grey(60))
    assert not np.array_equal(rows[1], alone[0])


@pytest.mark.parametrize("length", [b"\x07", b"\x87\x00", b"\x87\x80\x00"])
def test_an_operator_is_known_however_its_length_is_written(tmp_path, length):
    node = helper.make_node("Dropout", ["gate", "half", "true"], ["noise"], seed=1)
    data = serialized(gated(node))
    assert b"\x22\x07Dropout" in data
    path = tmp_path / "n.onnx"
    path.write_bytes(data.replace(b"\x22\x07Dropout", b"\x22" + length + b"Dropout"))
    with pytest.raises(PlanError, match="operator Dropout"):
        networks.open_network(path, DeviceProfile())


def test_a_file_whose_operators_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "n.ort"
    path.write_bytes(b"\x10\x00\x00\x00ORTM" + bytes(64))
    with pytest.raises(PlanError, match="format"):
        networks.open_network(path, DeviceProfile())


def test_a_layer_that_is_only_called_so_is_no_such_operator(tmp_path):
    named = helper.make_node("Concat", ["gate", "gate", "gate", "gate"], ["said"], axis=1, name="head.Dropout_3")
    path = tmp_path / "n.onnx"
    path.write_bytes(serialized([named]))
    assert networks.open_network(path, DeviceProfile()).describe(grey(40)).shape == (1, 3 * SIDE + 4)


@pytest.mark.parametrize("length", [b"\x08", b"\x88\x00"])
def test_weights_in_another_file_are_found_however_their_key_is_written(tmp_path, length):
    path = tmp_path / "n.onnx"
    path.write_bytes(b"\x0a" + length + b"location")
    with pytest.raises(PlanError, match="another file"):
        networks.open_network(path, DeviceProfile())
