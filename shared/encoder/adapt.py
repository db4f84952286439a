"""Anybody's ONNX network made into one that a plan can name: its pixels' scaling and the wanted layers in the file.

The result takes (batch, channels, height, width) pixels in [0, 1] and gives the chosen tensors, as encoder/onnx.py
wants it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from patevolve.shared.errors import InputError

PIXELS = "patevolve_pixels"  # the new input's name
SHOWN = 12  # layers named in a message


def adapted(
    data: bytes, *, mean: Sequence[float], std: Sequence[float], size: int = 0, layers: Sequence[str] = ()
) -> bytes:
    """Return the file with (pixels − mean) / std in front, cut behind its last wanted layer.

    mean, std:  one number, or one for each channel, of pixels in [0, 1]
    size:       pixels of height and width; 0: as the file says
    layers:     names of tensors of 2 to 4 dimensions, in the order of the features; empty: the file's own outputs

    Raises InputError for a file that is no ONNX network of one image, or without such layers.
    """
    onnx = _library()
    model = _loaded(onnx, data)
    fixed = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in fixed]
    if len(inputs) != 1 or len(inputs[0].type.tensor_type.shape.dim) != 4:
        found = [each.name for each in inputs]
        raise InputError(f"inputs {found} found; expected one of (batch, channels, height, width).")
    del model.graph.input[:]
    model.graph.input.append(_resized(inputs[0], size))
    model = _cut(onnx, model, list(layers))
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    _scale(onnx, model.graph, _spread(mean, channels, "mean"), _spread(std, channels, "std"))
    model.producer_name = "patevolve"
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def _library() -> Any:
    try:
        import onnx  # noqa: PLC0415 - for making files alone
    except ImportError as reason:
        raise InputError("adapting a network needs onnx; install it: pip install onnx") from reason
    return onnx


def _loaded(onnx: Any, data: bytes) -> Any:
    try:
        model = onnx.load_from_string(data)
        onnx.checker.check_model(model)
    except Exception as reason:  # protobuf's and the checker's errors have no common base
        raise InputError(f"no ONNX network in one file found ({str(reason)[:200]}); expected one.") from reason
    return model


def _resized(given: Any, size: int) -> Any:
    """Return the input with an open batch and, if a size is given, that height and width."""
    batch, _, *sides = given.type.tensor_type.shape.dim
    batch.Clear()
    batch.dim_param = "batch"
    for side in sides if size else ():
        side.Clear()
        side.dim_value = size
    return given


def _cut(onnx: Any, model: Any, layers: list[str]) -> Any:
    """Return the part of the network that the wanted layers need, and shapes that fit the new input."""
    del model.graph.value_info[:]
    own = [each.name for each in model.graph.output]
    if not layers:
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    there = {each.name: each for each in (*model.graph.value_info, *model.graph.output)}
    usable = [name for name, each in there.items() if 2 <= len(each.type.tensor_type.shape.dim) <= 4]
    missing = [name for name in layers or own if name not in usable]
    if missing:
        close = difflib.get_close_matches(missing[0], usable, n=SHOWN, cutoff=0.3) or usable[-SHOWN:]
        raise InputError(
            f"layers {missing} of 2 to 4 dimensions not found; the file has {len(usable)}, such as {', '.join(close)}."
        )
    return onnx.utils.Extractor(model).extract_model([model.graph.input[0].name], layers or own)


def _spread(values: Sequence[float], channels: int, name: str) -> Any:
    array = np.asarray(values, np.float32)
    if array.size not in (1, channels) or not np.isfinite(array).all() or (name == "std" and not (array > 0).all()):
        raise InputError(f"{name} = {list(values)} found; expected one number or {channels}, finite, std above 0.")
    return array.reshape(1, -1, 1, 1)


def _scale(onnx: Any, graph: Any, mean: Any, std: Any) -> None:
    """Put (pixels − mean) / std in front of the network."""
    (given,) = graph.input
    before = given.name
    constants = {"patevolve_mean": mean, "patevolve_std": std}
    graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    given.name = PIXELS
    front = [
        onnx.helper.make_node("Sub", [PIXELS, "patevolve_mean"], ["patevolve_centred"], name="patevolve_centre"),
        onnx.helper.make_node("Div", ["patevolve_centred", "patevolve_std"], [before], name="patevolve_scale"),
    ]
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*front, *rest])
