"""A linear student as one file that other tools load: ONNX, safetensors, or the layout of what it takes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.errors import InputError

OPSET = 17
IR = 8  # the file format that runtimes of opset 17 read
INPUT, SCORES, CLASS = "features", "probabilities", "class"


def onnx_bytes(weights: NDArray[np.float64], bias: NDArray[np.float64], classes: Sequence[str]) -> bytes:
    """Return the student as a single ONNX file of opset 17.

    weights, bias:  (d, classes) and (classes,)
    Input ``features`` (n, d) float32; outputs ``probabilities`` (n, classes) float32 and ``class`` (n,) int64, the
    position in ``classes``, which stand in the file's metadata as JSON. Raises InputError if onnx is not installed.
    """
    onnx = _module("onnx", "onnx")
    numbers, shapes = onnx.TensorProto, onnx.helper.make_tensor_value_info
    scored = onnx.helper.make_node("Gemm", [INPUT, "weights", "bias"], ["scores"])
    graph = onnx.helper.make_graph(
        [
            scored,
            onnx.helper.make_node("Softmax", ["scores"], [SCORES], axis=1),
            onnx.helper.make_node("ArgMax", ["scores"], [CLASS], axis=1, keepdims=0),
        ],
        "student",
        [shapes(INPUT, numbers.FLOAT, ["n", len(weights)])],
        [shapes(SCORES, numbers.FLOAT, ["n", len(bias)]), shapes(CLASS, numbers.INT64, ["n"])],
        [
            onnx.numpy_helper.from_array(weights.astype(np.float32), "weights"),
            onnx.numpy_helper.from_array(bias.astype(np.float32), "bias"),
        ],
    )
    opset = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=IR, producer_name="patevolve")
    onnx.helper.set_model_props(model, {"classes": json.dumps(list(classes), ensure_ascii=False)})
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def safetensors_bytes(weights: NDArray[np.float64], bias: NDArray[np.float64], classes: Sequence[str]) -> bytes:
    """Return ``weights`` and ``bias`` as float64 safetensors, the classes in its metadata as JSON.

    Raises InputError if safetensors is not installed.
    """
    named = {"classes": json.dumps(list(classes), ensure_ascii=False)}
    tensors = {"weights": np.ascontiguousarray(weights), "bias": np.ascontiguousarray(bias)}
    data: bytes = _module("safetensors.numpy", "safetensors").save(tensors, metadata=named)
    return data


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as reason:
        raise InputError(
            f"{package} is not installed, and this needs it. Run: pip install 'patevolve[export]'"
        ) from reason
