"""The hand-written EfficientNet-Lite0: what PyTorch computes with the same weights, in the same bytes each time."""

import numpy as np
import pytest

from patevolve.shared.encoder import efficientnet, graph
from patevolve.shared.encoder.device import DEFAULT
from patevolve.shared.encoder.onnx import open_network
from patevolve.shared.errors import InputError

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
CHANNELS = (16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320)
KERNELS = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3)


def drawn(seed=0):
    """Random weights with the names and shapes of the published ones."""
    rng, found = np.random.default_rng(seed), {}

    def layer(conv, norm, shape):
        fan = np.prod(shape[1:])
        found[f"{conv}.weight"] = (rng.normal(size=shape) * np.sqrt(2 / fan)).astype(np.float32)
        for part, values in {
            "weight": rng.uniform(0.5, 1.5, shape[0]),
            "bias": rng.normal(size=shape[0]),
            "running_mean": rng.normal(size=shape[0]) * 0.1,
            "running_var": rng.uniform(0.5, 1.5, shape[0]),
        }.items():
            found[f"{norm}.{part}"] = values.astype(np.float32)

    layer("_conv_stem", "_bn0", (32, 3, 3, 3))
    before = 32
    for number, (after, kernel) in enumerate(zip(CHANNELS, KERNELS, strict=True)):
        at, wide = f"_blocks.{number}", before if number == 0 else 6 * before
        if number:
            layer(f"{at}._expand_conv", f"{at}._bn0", (wide, before, 1, 1))
        layer(f"{at}._depthwise_conv", f"{at}._bn1", (wide, 1, kernel, kernel))
        layer(f"{at}._project_conv", f"{at}._bn2", (after, wide, 1, 1))
        before = after
    return found


def reference(weights, pixels, blocks):
    """The network in PyTorch's own words, batch normalisation apart: the means of the blocks' maps."""
    given = {name: torch.from_numpy(value) for name, value in weights.items()}

    def layer(x, conv, norm, *, stride=1, active=True):
        kernel = given[f"{conv}.weight"]
        size, width = x.shape[-1], kernel.shape[-1]
        missing = max((-(-size // stride) - 1) * stride + width - size, 0)
        x = torch.nn.functional.pad(x, [missing // 2, missing - missing // 2] * 2)
        groups = kernel.shape[0] if kernel.shape[1] == 1 else 1
        x = torch.nn.functional.conv2d(x, kernel, stride=stride, groups=groups)
        mean, var, gain, bias = (given[f"{norm}.{p}"] for p in ("running_mean", "running_var", "weight", "bias"))
        x = torch.nn.functional.batch_norm(x, mean, var, gain, bias, eps=1e-3)
        return x.clamp(0, 6) if active else x

    x, found = layer((torch.from_numpy(pixels) * 255 - 127) / 128, "_conv_stem", "_bn0", stride=2), []
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
    for number, stride in enumerate(strides[: blocks[-1]]):
        at, source = f"_blocks.{number}", x
        if number:
            x = layer(x, f"{at}._expand_conv", f"{at}._bn0")
        x = layer(x, f"{at}._depthwise_conv", f"{at}._bn1", stride=stride)
        x = layer(x, f"{at}._project_conv", f"{at}._bn2", active=False)
        x = x + source if x.shape == source.shape else x
        if number + 1 in blocks:
            found.append(x.mean(dim=(2, 3)))
    return torch.cat(found, dim=1).numpy()


@pytest.mark.parametrize(("size", "blocks"), [(64, (11,)), (32, (3, 5, 16))])
def test_the_file_computes_what_pytorch_does(size, blocks):
    onnxruntime = pytest.importorskip("onnxruntime")
    weights = drawn()
    pixels = np.random.default_rng(1).random((2, 3, size, size)).astype(np.float32)
    session = onnxruntime.InferenceSession(efficientnet.built(weights, size=size, blocks=blocks))
    (found,) = session.run(None, {"pixels": pixels})
    expected = reference(weights, pixels, blocks)
    assert found.shape == (2, sum(CHANNELS[block - 1] for block in blocks))
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_the_same_weights_give_the_same_bytes_and_one_weight_other_ones():
    weights = drawn()
    file = efficientnet.built(weights, size=64, blocks=(4,))
    assert efficientnet.built(drawn(), size=64, blocks=(4,)) == file
    weights["_conv_stem.weight"][0, 0, 0, 0] += 1
    assert efficientnet.built(weights, size=64, blocks=(4,)) != file


def test_the_file_can_be_a_plan_s_encoder(tmp_path):
    (tmp_path / "n.onnx").write_bytes(efficientnet.built(drawn(), size=32, blocks=(4,)))
    network = open_network(tmp_path / "n.onnx", DEFAULT)
    assert (network.shape, network.features) == ((3, 32, 32), 40)
    assert onnx.load(tmp_path / "n.onnx").opset_import[0].version == graph.OPSET


@pytest.mark.parametrize(
    ("size", "blocks"), [(33, (4,)), (0, (4,)), (1024, (4,)), (64, ()), (64, (17,)), (64, (4, 4)), (64, (5, 3))]
)
def test_other_sizes_and_blocks_are_refused(size, blocks):
    with pytest.raises(InputError, match="expected"):
        efficientnet.built(drawn(), size=size, blocks=blocks)
