"""Anybody's network, adapted: what the original computes of scaled pixels, from the layers that were asked for."""

import numpy as np
import pytest

from patevolve.shared.encoder.adapt import adapted
from patevolve.shared.encoder.device import DEFAULT
from patevolve.shared.encoder.onnx import open_network, pixels
from patevolve.shared.errors import InputError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
helper, F32 = onnx.helper, onnx.TensorProto.FLOAT
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def original(batch="n", side=24):
    """A convolution, a map within, a pooled product, and a class score at the end."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(6, 3, 3, 3)), "m": rng.normal(size=(6, 5))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["first"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["first"], ["map"]),
        helper.make_node("GlobalAveragePool", ["map"], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("MatMul", ["flat", "m"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", F32, [batch, 3, side, side])],
        [helper.make_tensor_value_info("score", F32, [batch, 5])],
        [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def described(path, data, images):
    path.write_bytes(data)
    return open_network(path, DEFAULT).describe(images)


@pytest.mark.parametrize("batch", ["n", 1])
def test_the_scaling_becomes_part_of_the_file(tmp_path, batch):
    images = np.random.default_rng(1).integers(0, 256, (3, 24, 24)).astype(np.uint8)
    found = described(tmp_path / "n.onnx", adapted(original(batch), mean=MEAN, std=STD), images)
    session = onnxruntime.InferenceSession(original())
    scale = np.array(MEAN, np.float32).reshape(1, 3, 1, 1), np.array(STD, np.float32).reshape(1, 3, 1, 1)
    given = (np.stack([pixels(image, 3, 24, 24) for image in images]) - scale[0]) / scale[1]
    (expected,) = session.run(None, {"x": given})
    assert np.allclose(found, expected, atol=1e-4)


def test_layers_within_are_given_in_the_order_asked_and_what_lies_behind_is_cut(tmp_path):
    data = adapted(original(), mean=[0.0], std=[1.0], layers=["flat", "map"])
    images = np.random.default_rng(1).integers(0, 256, (2, 24, 24)).astype(np.uint8)
    found = described(tmp_path / "n.onnx", data, images)
    assert found.shape == (2, 12)
    assert np.allclose(found[:, :6], found[:, 6:], atol=1e-6)  # the averaged map is what was pooled
    assert "MatMul" not in {node.op_type for node in onnx.load_from_string(data).graph.node}


def test_another_size_is_taken(tmp_path):
    (tmp_path / "n.onnx").write_bytes(adapted(original(), mean=[0.0], std=[1.0], size=32))
    assert open_network(tmp_path / "n.onnx", DEFAULT).shape == (3, 32, 32)


def test_the_same_choices_give_the_same_bytes():
    assert adapted(original(), mean=MEAN, std=STD) == adapted(original(), mean=MEAN, std=STD)
    assert adapted(original(), mean=MEAN, std=STD) != adapted(original(), mean=[0.0], std=STD)


@pytest.mark.parametrize(
    ("data", "choices", "expected"),
    [
        (b"rubbish", {}, "no ONNX network"),
        (original(), {"layers": ["mapp"]}, r"mapp.*such as map"),
        (original(), {"mean": [0.1, 0.2]}, "one number or 3"),
        (original(), {"std": [0.0]}, "std above 0"),
        (original(), {"mean": [float("nan")]}, "finite"),
    ],
)
def test_what_cannot_be_adapted_is_refused(data, choices, expected):
    with pytest.raises(InputError, match=expected):
        adapted(data, **{"mean": [0.0], "std": [1.0], **choices})


def test_two_inputs_are_refused():
    model = onnx.load_from_string(original())
    model.graph.input.append(helper.make_tensor_value_info("y", F32, [1, 3, 8, 8]))
    with pytest.raises(InputError, match=r"\['x', 'y'\]"):
        adapted(model.SerializeToString(), mean=[0.0], std=[1.0])
