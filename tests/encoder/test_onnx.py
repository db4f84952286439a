"""A public network describes each image by itself, bit by bit, and what it cannot describe is refused in words."""

import hashlib
import logging

import numpy as np
import pytest

from patevolve.shared import assets
from patevolve.shared.encoder import onnx as networks
from patevolve.shared.encoder.device import DeviceProfile
from patevolve.shared.encoder.image import fit
from patevolve.shared.errors import InputError, PlanError

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
F32 = onnx.TensorProto.FLOAT


@pytest.fixture(autouse=True)
def unprobed(monkeypatch):
    """Probing takes most of a second for each file; tests/encoder/test_probe.py does it."""
    monkeypatch.setattr(networks, "check_runs", lambda _: None)


def written(path, nodes, weights, outputs, *, shape=("n", 3, 16, 16), kind=F32):
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, F32, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def network_file(path, shape=("n", 3, 16, 16)):
    """A map, its pooled product with a matrix, and a scale taken from the whole batch, as dynamic quantisation does."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(24, shape[1], 3, 3)).astype(np.float32),
        "m": rng.normal(size=(24, 40)).astype(np.float32),
        "one": np.ones((), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["map"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["map"], ["flat"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["flat", "m"], ["rows"]),
        helper.make_node("Abs", ["rows"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["most"], keepdims=0),
        helper.make_node("Add", ["most", "one"], ["largest"]),
        helper.make_node("Div", ["rows", "largest"], ["scaled"]),
    ]
    return written(path, nodes, weights, {"map": ["n", 24, 8, 8], "scaled": ["n", 40]}, shape=shape)


def opened(path, **device):
    return networks.open_network(path, DeviceProfile(**device))


def images(n=23, side=20, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, side, side)).astype(np.uint8)


def alone(describe, values):
    """Whether every image is described alike alone and in any company and order."""
    rows = describe(values)
    parts = [slice(n, n + 1) for n in range(len(values))] + [slice(n) for n in (2, 3, 7, len(values) - 1)]
    some = all(describe(values[part]).tobytes() == rows[part].tobytes() for part in parts)
    order = np.random.default_rng(1).permutation(len(values))
    return some and describe(values[order]).tobytes() == rows[order].tobytes()


@pytest.mark.parametrize("device", [{}, {"threads": 2}, {"threads": 3, "batch": 5}, {"batch": 1}])
def test_a_row_is_described_alike_alone_in_any_company_and_on_any_profile(tmp_path, device):
    path, values = network_file(tmp_path / "n.onnx"), images()
    describe = opened(path, **device).describe
    assert alone(describe, values)
    assert describe(values).tobytes() == opened(path).describe(values).tobytes()


def test_a_describer_that_gives_the_network_a_batch_is_caught(tmp_path):
    network = opened(network_file(tmp_path / "n.onnx"))

    def batched(values):
        together = np.stack([networks.pixels(each, 3, 16, 16) for each in values])
        pooled, scaled = network.session.run(None, {"x": together})
        return np.hstack([pooled.mean(axis=(2, 3)), scaled])

    assert np.allclose(batched(images(1)), network.describe(images(1)), atol=1e-5)  # else it is no twin
    assert not alone(batched, images())


def test_the_whole_encoder_maps_each_record_by_itself(tmp_path):
    describe = opened(network_file(tmp_path / "n.onnx"), threads=2).describe
    encoder = fit(images(100, seed=1), np.random.default_rng(0), dimension=16, embedding=40, describe=describe)
    assert alone(encoder.encode, images())
    assert alone(lambda values: encoder.embed(encoder.encode(values)), images())


def test_the_rule_for_pixels_and_outputs(tmp_path):
    """By hand: 255 levels, halved by the mean of four pixels' triangle, repeated; the outputs in their order."""
    network = opened(network_file(tmp_path / "n.onnx"))
    white = networks.pixels(np.full((32, 32), 255, np.uint8), 3, 16, 16)
    assert white.shape == (3, 16, 16)
    assert np.allclose(white, 1.0)
    step = networks.pixels(np.arange(16, dtype=np.uint8)[None].repeat(16, 0), 1, 16, 16)
    assert np.allclose(step[0], np.arange(16) / 255)
    found = network.describe(np.full((1, 16, 16), 51, np.uint8))
    feed = np.full((1, 3, 16, 16), 0.2, np.float32)
    pooled, scaled = network.session.run(None, {"x": feed})
    assert np.allclose(found, np.hstack([pooled.mean(axis=(2, 3)), scaled]), atol=1e-6)


def test_grey_colour_and_floating_levels_are_described_alike(tmp_path):
    describe, values = opened(network_file(tmp_path / "n.onnx")).describe, images(4)
    rows = describe(values)
    assert np.array_equal(describe(values.astype(np.float64)), rows)
    assert np.allclose(describe(values[..., None].repeat(3, -1)), rows, atol=1e-5)
    one = opened(network_file(tmp_path / "grey.onnx", ("n", 1, 16, 16))).describe
    assert np.allclose(one(values[..., None].repeat(3, -1)), one(values), atol=1e-5)


def test_a_network_of_three_channels_gets_rgb_as_it_is(tmp_path):
    colour = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3)).astype(np.uint8)
    assert np.allclose(networks.pixels(colour[0], 3, 16, 16), np.moveaxis(colour[0] / 255.0, -1, 0), atol=1e-6)
    describe = opened(network_file(tmp_path / "n.onnx"), threads=2).describe
    assert alone(describe, colour)
    assert not np.allclose(describe(colour), describe(colour[..., ::-1]), atol=1e-3)


def test_no_image_gives_no_row(tmp_path):
    assert opened(network_file(tmp_path / "n.onnx")).describe(images(0)).shape == (0, 64)


def test_a_network_with_an_open_size_takes_the_images_as_they_are(tmp_path):
    network = opened(network_file(tmp_path / "n.onnx", ("n", 3, "h", "w")))
    assert network.shape == (3, 0, 0)
    assert network.describe(images(2)).shape == (2, 64)


def test_a_batch_that_does_not_fit_is_halved_and_said(tmp_path, monkeypatch, caplog):
    network = opened(network_file(tmp_path / "n.onnx"), batch=16)
    expected, whole = network.describe(images()), networks.Network._some

    def narrow(self, some):
        if len(some) > 3:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 9")
        return whole(self, some)

    monkeypatch.setattr(networks.Network, "_some", narrow)
    with caplog.at_level(logging.WARNING):
        assert network.describe(images()).tobytes() == expected.tobytes()
    assert [record.args for record in caplog.records] == [(8,), (4,), (2,)]
    monkeypatch.setattr(networks.Network, "_some", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError, match="one image"):
        network.describe(images())


def test_another_failure_is_not_taken_for_want_of_memory(tmp_path, monkeypatch):
    network = opened(network_file(tmp_path / "n.onnx"))
    monkeypatch.setattr(networks.Network, "_some", lambda *_: (_ for _ in ()).throw(RuntimeError("broken kernel")))
    with pytest.raises(RuntimeError, match="broken kernel"):
        network.describe(images())


def identity(name="x"):
    return [helper.make_node("Identity", [name], ["y"])]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shape": (4, 3, 16, 16)}, "open batch or 1"),
        ({"shape": ("n", 2, 16, 16)}, "1 or 3 channels"),
        ({"shape": ("n", 3, 16)}, "expected one tensor"),
        ({"kind": onnx.TensorProto.DOUBLE, "nodes": [helper.make_node("Cast", ["x"], ["y"], to=F32)]}, r"tensor\(doub"),
        ({"nodes": [helper.make_node("Log", ["x"], ["y"])]}, "not finite"),
        ({"nodes": [helper.make_node("Mystery", ["x"], ["y"], domain="org.example")]}, "no network that onnxruntime"),
    ],
)
def test_a_file_that_breaks_the_rule_is_refused(tmp_path, change, expected):
    given = {"nodes": identity(), "shape": ("n", 3, 16, 16), **change}
    dims = [*given["shape"]]
    kinds = {"shape": given["shape"], "kind": given.get("kind", F32)}
    path = written(tmp_path / "n.onnx", given["nodes"], {}, {"y": dims}, **kinds)
    with pytest.raises(PlanError, match=expected):
        opened(path)


def test_weights_in_another_file_are_refused(tmp_path):
    path = network_file(tmp_path / "n.onnx")
    model = onnx.load(path)
    onnx.save(model, tmp_path / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0)
    with pytest.raises(PlanError, match="weights in another file"):
        opened(tmp_path / "e.onnx")


def test_rubbish_is_refused(tmp_path):
    (tmp_path / "n.onnx").write_bytes(hashlib.sha256(b"rubbish").digest())
    with pytest.raises(PlanError, match="no network"):
        opened(tmp_path / "n.onnx")


def test_the_provider_is_the_one_that_runs_and_a_fall_back_is_said(tmp_path, caplog):
    path = network_file(tmp_path / "n.onnx")
    with caplog.at_level(logging.WARNING):
        found = opened(path, providers=("cuda", "cpu"))
    if found.provider == "CPUExecutionProvider":
        assert "CUDAExecutionProvider is not to be had" in caplog.text
        with pytest.raises(InputError, match="requires a GPU"):
            opened(path, providers=("cuda",), require_gpu=True)
    with pytest.raises(InputError, match="requires a GPU"):
        opened(path, providers=("cpu",), require_gpu=True)


def test_the_network_that_comes_along_describes_each_image_by_itself():
    """The shipped backbone, as sites use it: the same bytes alone, in company, and on two threads."""
    (file,) = assets.SHIPPED.glob("*.onnx")
    values = images(40, side=28)
    one, two = opened(file), opened(file, threads=2, batch=7)
    assert alone(one.describe, values)
    assert two.describe(values).tobytes() == one.describe(values).tobytes()
