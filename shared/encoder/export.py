"""A trained network as one ONNX file, at a pinned opset, in three precisions, with a card that says what it is.

fp32 is checked against PyTorch, int8 against fp32, on public inputs; a file that does not agree is not written.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.contrastive import normalised
from patevolve.shared.errors import InputError
from patevolve.shared.files import write_atomic

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "fp16", "int8"]
OPSET = 18  # every kernel of the networks here is in it, and onnxruntime has read it since 1.14
PARITY = 1e-4  # largest difference from PyTorch, relative to the largest feature
COSINE: Mapping[Precision, float] = {"fp16": 0.999, "int8": 0.99}  # least mean cosine with fp32
Arrays = NDArray[np.float32]


def to_onnx(network: torch.nn.Module, public: Arrays, names: tuple[str, str] = ("images", "features")) -> bytes:
    """Return the network as an ONNX file of one input with an open batch and one output, of these names.

    public: (n, ...) inputs of public records, n >= 2: they fix the shape and are what parity is checked on

    Raises InputError without the tools, for parameters that are not finite, or if the file disagrees with the network.
    """
    model = _exported(network, public, names)
    check_opset(model)
    _check_parity(network, model, public)
    return model


def in_precision(model: bytes, precision: Precision, public: Arrays) -> bytes:
    """Return an fp32 file in this precision; int8 is calibrated on the public inputs.

    Raises InputError if its features of the public inputs do not agree with the file's.
    """
    if precision == "fp32":
        return model
    made = _halved(model) if precision == "fp16" else _quantised(model, public)
    check_opset(made, opset_of(model))  # a public network need not have been made here
    agreement = cosine(run(model, public), run(made, public))
    if not agreement >= COSINE[precision]:
        raise InputError(
            f"{precision} features agree with fp32 to a mean cosine of {agreement:.4f}; expected at least "
            f"{COSINE[precision]}. Use fp32, or calibrate with more public records."
        )
    return made


def _exported(network: torch.nn.Module, public: Arrays, names: tuple[str, str]) -> bytes:
    try:
        import onnx  # noqa: F401, PLC0415 - an extra: training alone exports
        import onnxscript  # noqa: F401, PLC0415
        import torch  # noqa: PLC0415
    except ImportError as reason:
        raise InputError(f"the export needs {reason.name}; install it: pip install 'patevolve[train]'") from reason
    if not all(bool(parameter.isfinite().all()) for parameter in network.parameters()):
        raise InputError("a parameter that is not finite found; such a network is not exported. Train it again.")
    plain = copy.deepcopy(network).float().cpu().eval()
    batch = torch.export.Dim("batch")
    # Two rows: a batch of one would be taken as a constant.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)  # misses of torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about its own internals
        program = torch.onnx.export(
            plain,
            (torch.from_numpy(public[:2]),),
            dynamo=True,
            opset_version=OPSET,
            input_names=[names[0]],
            output_names=[names[1]],
            dynamic_shapes=({0: batch},),
            external_data=False,
            verbose=False,
        )
    if program is None:
        raise InputError("PyTorch made no ONNX program of the network. Use layers that its exporter knows.")
    made = program.model_proto
    _forget(made)
    model: bytes = made.SerializeToString()
    return model


def _forget(model: Any) -> None:
    """Take out the exporter's notes: they hold paths of this machine, so that the hash would hang on it."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def opset_of(model: bytes) -> int:
    """Return the opset of a file's standard operators."""
    import onnx  # noqa: PLC0415 - an extra

    return next((entry.version for entry in onnx.load_from_string(model).opset_import if not entry.domain), 0)


def head_network(weights: NDArray[np.float64]) -> torch.nn.Module:
    """Return a head of weights (k, d) as a network: (n, d) features to (n, k) embeddings of norm below 1."""
    import torch  # noqa: PLC0415 - heavy

    class Normalised(torch.nn.Module):
        """The rows as ``contrastive.normalised`` scales them."""

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return normalised(rows)

    linear = torch.nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weights))
    return torch.nn.Sequential(linear, Normalised()).eval()


def check_opset(model: bytes, expected: int = OPSET) -> int:
    """Return a file's opset. Raises InputError unless it is the expected one, or if weights lie outside."""
    import onnx  # noqa: PLC0415 - an extra

    loaded = onnx.load_from_string(model)
    versions = {entry.domain: entry.version for entry in loaded.opset_import}
    outside = [tensor.name for tensor in loaded.graph.initializer if tensor.external_data]
    if versions.get("", 0) != expected or outside:
        raise InputError(f"opsets {versions}, weights outside {outside} found; expected opset {expected} in one file.")
    onnx.checker.check_model(loaded, full_check=True)
    return expected


def _check_parity(network: torch.nn.Module, model: bytes, public: Arrays) -> None:
    import torch  # noqa: PLC0415 - heavy

    with torch.no_grad():
        expected = network(torch.from_numpy(public)).numpy()
    worst = float(np.abs(run(model, public) - expected).max() / max(1.0, float(np.abs(expected).max())))
    if not worst < PARITY:
        raise InputError(f"the file's features differ from PyTorch's by {worst:.2g}; expected below {PARITY:g}.")


def run(model: bytes, inputs: Arrays) -> Arrays:
    """Return (n, k) features by onnxruntime on the CPU."""
    import onnxruntime  # noqa: PLC0415 - an extra

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (name,) = (each.name for each in session.get_inputs())
    features: Arrays = session.run(None, {name: inputs})[0]
    return features


def cosine(left: Arrays, right: Arrays) -> float:
    """Return the mean cosine of rows; rows of length 0 agree with nothing."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(np.mean(np.einsum("nk,nk->n", left, right) / np.maximum(lengths, 1e-12)))


def _halved(model: bytes) -> bytes:
    """Return the network with float16 weights and arithmetic behind float32 inputs and outputs."""
    import onnx  # noqa: PLC0415 - an extra
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415

    made = convert_float_to_float16(onnx.load_from_string(model), keep_io_types=True)
    _sort(made.graph)
    halved: bytes = made.SerializeToString()
    return halved


def _sort(graph: Any) -> None:
    """Put each node behind those that it reads from: the converter appends its casts at the end."""
    ready = {"", *(entry.name for entry in (*graph.input, *graph.initializer))}
    waiting, ordered = list(graph.node), []
    while waiting:
        can = [node for node in waiting if ready.issuperset(node.input)]
        if not can:
            raise InputError("the float16 graph has a cycle; use fp32.")
        ordered += can
        ready.update(name for node in can for name in node.output)
        waiting = [node for node in waiting if not ready.issuperset(node.output)]
    del graph.node[:]
    graph.node.extend(ordered)


def _quantised(model: bytes, public: Arrays) -> bytes:
    """Return the network with 8-bit weights and activations, their ranges taken from public inputs."""
    import onnx  # noqa: PLC0415 - an extra
    from onnxruntime.quantization import (  # noqa: PLC0415
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415

    (name,) = (each.name for each in onnx.load_from_string(model).graph.input)

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime publishes no types
        """Public inputs, a few at a time."""

        def __init__(self) -> None:
            self._parts = iter(np.array_split(public, max(1, len(public) // 32)))

        def get_next(self) -> dict[str, Arrays] | None:
            part = next(self._parts, None)
            return None if part is None else {name: part}

    with tempfile.TemporaryDirectory(prefix="patevolve-int8-") as scratch:
        plain, ready, small = (Path(scratch) / f"{name}.onnx" for name in ("plain", "ready", "small"))
        plain.write_bytes(model)
        quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
        # Unsigned activations with signed weights: 1.5 times as fast on x86 as signed with signed.
        kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(str(ready), str(small), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)
        return small.read_bytes()


def write_model(path: Path, model: bytes, about: Mapping[str, Any], *, mode: int = 0o644) -> str:
    """Write the file and a card beside it; return the file's SHA-256.

    about: what the card says, such as the plan, ε and δ of its training; JSON values
    """
    digest = hashlib.sha256(model).hexdigest()
    write_atomic(path, model, mode=mode)
    rows = "\n".join(
        f"| {name} | {value if isinstance(value, str) else json.dumps(value)} |" for name, value in about.items()
    )
    card = (
        f"# {path.name}\n\n| | |\n|---|---|\n| SHA-256 | {digest} |\n| bytes | {len(model)} |\n"
        f"| ONNX opset | {OPSET} |\n{rows}\n"
    )
    write_atomic(path.with_suffix(".md"), card.encode())
    return digest
