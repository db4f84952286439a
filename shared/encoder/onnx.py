"""A public network (ONNX) that describes images, one record at a time.

The rule, for any file: the network has one input of float32 pixels in [0, 1], (batch, channels, height, width), with a
batch that is open or 1, and 1 or 3 channels. Pixels are divided by 255, RGB becomes grey for a network of one channel,
they are resampled with a triangle filter to the declared size, and grey is repeated over the channels; whatever else a
network wants (means, scales) is part of its file. Maps and token rows among its outputs are averaged over their places,
and all outputs stand side by side in their order.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.device import PROVIDERS, DeviceProfile
from patevolve.shared.encoder.probe import check_runs
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.luminance import GREY

log = logging.getLogger(__name__)

ALIGNMENT = 64
MOST_FEATURES = 16_384
# The key of a tensor's external file, as protocol buffers write it, whichever way its length is written.
EXTERNAL = re.compile(rb"\x0a(?:\x08|\x88\x80*\x00)location")
# Operators that draw numbers, and so remember how often they ran. A field 4 of that length holds an operator's name,
# whichever way its length is written; a layer called "Dropout_3" is none.
STATEFUL = re.compile(
    rb"RandomNormal|RandomUniform|Multinomial|Bernoulli|\x22(?:[\x07\x08]|[\x87\x88]\x80*\x00)(?:Dropout|Sampling)"
)
OUT_OF_MEMORY = ("allocate memory", "bad alloc", "out of memory")
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """An open network, ready to describe images.

    provider:  what it really runs on, as onnxruntime says
    shape:     (channels, height, width) of its input; 0 for a height or width that it leaves open
    features:  length of a description
    """

    session: Any = field(repr=False)
    device: DeviceProfile
    provider: str
    shape: tuple[int, int, int]
    features: int = 0

    def describe(self, images: NDArray[Any]) -> Vectors:
        """Return (n, r) descriptions of (n, height, width) grey or (n, height, width, 3) images of levels 0 to 255.

        Row i is a function of image i alone, bit by bit. A batch that does not fit the memory is halved. Raises
        MemoryError if a single image does not fit.
        """
        parts, start, size = [], 0, self.device.batch
        while start < len(images):
            try:
                parts.append(self._some(images[start : start + size]))
            except Exception as reason:
                if not _is_memory(reason):
                    raise
                if size == 1:
                    raise MemoryError("the memory does not suffice for one image; close other programs.") from reason
                size //= 2
                log.warning("The memory does not suffice; going on with %d images at a time.", size)
                continue
            start += size
        return np.concatenate(parts) if parts else np.zeros((0, self.features), np.float32)

    def _some(self, images: NDArray[Any]) -> Vectors:
        workers = min(self.device.threads, len(images))
        if workers == 1:
            return self._run(images)
        with ThreadPoolExecutor(workers) as pool:
            return np.concatenate(list(pool.map(self._run, np.array_split(images, workers))))

    def _run(self, images: NDArray[Any]) -> Vectors:
        buffer = self._buffer(*images.shape[1:3])
        return np.concatenate([self._one(image, buffer) for image in images])

    def _one(self, image: NDArray[Any], buffer: Vectors) -> Vectors:
        buffer[...] = pixels(image, *buffer.shape[1:])
        (name,) = (each.name for each in self.session.get_inputs())
        # A batch of one, in memory aligned alike each time, on one thread: nothing else can reach the arithmetic.
        return pooled(self.session.run(None, {name: buffer}))  # label: one-image-per-run

    def _buffer(self, height: int, width: int) -> Vectors:
        """Return an aligned (1, channels, height, width) array: some kernels add up in an order set by alignment."""
        channels, own_height, own_width = self.shape
        shape = (1, channels, own_height or height, own_width or width)
        raw = np.empty(4 * int(np.prod(shape)) + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)  # label: aligned-input


def pixels(image: NDArray[Any], channels: int, height: int, width: int) -> Vectors:
    """Return (channels, height, width) pixels in [0, 1] of one image of levels 0 to 255, grey or RGB, of any type."""
    levels = np.asarray(image, np.float32) / np.float32(255)
    planes = np.moveaxis(levels, -1, 0) if levels.ndim == 3 else levels[None]
    if channels == 1 and len(planes) == 3:
        planes = np.tensordot(np.array(GREY, np.float32), planes, 1)[None]
    rows, columns = _weights(planes.shape[1], height), _weights(planes.shape[2], width)
    sized: Vectors = np.stack([rows @ plane @ columns.T for plane in planes])
    return np.broadcast_to(sized, (channels, height, width))


@functools.lru_cache(maxsize=64)
def _weights(before: int, after: int) -> Vectors:
    """Return (after, before) weights of a triangle filter that widens when an image shrinks."""
    scale = before / after
    centres = (np.arange(after) + 0.5) * scale - 0.5
    apart = np.abs(centres[:, None] - np.arange(before)[None, :])
    weights = np.maximum(0.0, 1.0 - apart / max(1.0, scale))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def pooled(outputs: list[NDArray[Any]]) -> Vectors:
    """Return one (1, r) row of a network's outputs for one image: maps and token rows averaged, all side by side."""
    rows = []
    for output in outputs:
        places = {2: (), 3: (1,), 4: (2, 3)}[output.ndim]
        rows.append(output.astype(np.float32).mean(axis=places) if places else output.astype(np.float32))
    return np.concatenate(rows, axis=1)


def open_network(path: Path, device: DeviceProfile) -> Network:
    """Return the network of images in a file. Raises PlanError for one that breaks the rule above.

    Raises what ``open_session`` raises.
    """
    session = open_session(path, device)
    provider = session.get_providers()[0]
    network = Network(session=session, device=device, provider=provider, shape=_shape(session, path.name))
    return replace(network, features=_features(network, path.name))


def open_session(path: Path, device: DeviceProfile, *, one_shape: bool = True) -> Any:
    """Return onnxruntime's session of a network, on the first provider of the profile that this machine has.

    one_shape:  whether all inputs are of one shape; if not, no plan of memory is kept from one run for the next

    Raises PlanError for a file in pieces, with a memory, or that does not load, InputError without onnxruntime, without
    the GPU that the profile requires, or if onnxruntime does not run on this processor.
    """
    data = path.read_bytes()
    if EXTERNAL.search(data):
        raise PlanError(f"{path.name} keeps weights in another file; expected one file. Export it with its weights.")
    _check_stateless(data, path.name)
    check_runs(path)
    session = _session(data, path.name, device, one_shape=one_shape)
    provider = session.get_providers()[0]
    check_gpu(device, session.get_providers())
    if provider != device.wanted()[0]:
        log.warning("The encoder runs on %s: %s is not to be had here.", provider, device.wanted()[0])
    return session


def _check_stateless(data: bytes, name: str) -> None:
    """Raise PlanError for a network that may describe an image by how many came before it."""
    if data[4:8] == b"ORTM":
        raise PlanError(f"{name} is in onnxruntime's own format; expected ONNX, whose operators can be looked at.")
    if found := STATEFUL.search(data):  # label: no-state
        operator = found[0].lstrip(b"\x22\x07\x08\x87\x88\x80\x00").decode()
        raise PlanError(
            f"{name} has the operator {operator}, whose numbers depend on how often it ran: one record would change "
            f"what is said of the others. Export the network for inference."
        )


def check_gpu(device: DeviceProfile, providers: Sequence[str]) -> None:
    """Raise InputError if the profile requires a GPU and none is first among these providers of its choice."""
    gpus = {PROVIDERS[each] for each in device.providers if each != "cpu"}
    if device.require_gpu and (not providers or providers[0] not in gpus):
        raise InputError(
            f"the profile {device.name!r} requires a GPU ({', '.join(sorted(gpus)) or 'and names none'}); onnxruntime "
            f"offers {', '.join(providers) or 'nothing'}. Install onnxruntime-gpu and its driver, name the GPU in the "
            f"profile, or do without require_gpu."
        )


def providers_here() -> list[str]:
    """Return the providers of the installed onnxruntime, best first. Raises InputError without one that runs here."""
    check_runs()
    return list(_library().get_available_providers())


def _library() -> Any:
    try:
        import onnxruntime  # noqa: PLC0415 - an extra, for sites whose plan names a network
    except ImportError as reason:
        raise InputError("an ONNX encoder needs onnxruntime; install it: pip install 'patevolve[onnx]'") from reason
    return onnxruntime


def _session(data: bytes, name: str, device: DeviceProfile, *, one_shape: bool) -> Any:
    onnxruntime = _library()
    options = onnxruntime.SessionOptions()
    # One thread for one image: how a product is cut among threads is then no part of what a record's features are.
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # label: one-thread-per-image
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = one_shape  # label: no-plan-kept
    options.log_severity_level = 3
    there = set(onnxruntime.get_available_providers())
    chosen = [(each, _settings(each, device)) for each in device.wanted() if each in there]
    try:
        return onnxruntime.InferenceSession(data, options, providers=chosen)
    except Exception as reason:
        raise PlanError(
            f"{name} is no network that onnxruntime {onnxruntime.__version__} can run: {reason}"
        ) from reason


def _settings(provider: str, device: DeviceProfile) -> dict[str, str]:
    if provider == PROVIDERS["cpu"]:
        return {}
    memory = {"gpu_mem_limit": str(device.memory_mib << 20)} if device.memory_mib else {}
    if provider == PROVIDERS["tensorrt"]:
        return {"trt_max_workspace_size": memory["gpu_mem_limit"]} if memory else {}
    # Without these cuDNN measures which algorithm is fastest, and the answer may be another one each time.
    return {"cudnn_conv_algo_search": "DEFAULT", "use_tf32": "0", **memory}


def _shape(session: Any, name: str) -> tuple[int, int, int]:
    """Return (channels, height, width) of the network's one input. Raises PlanError."""
    inputs = session.get_inputs()
    found = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
    good = len(inputs) == 1 and inputs[0].type == "tensor(float)" and len(inputs[0].shape) == 4
    if good:
        batch, channels, *size = inputs[0].shape
        if (isinstance(batch, str) or batch in (1, None)) and channels in (1, 3):
            height, width = (each if isinstance(each, int) else 0 for each in size)
            return channels, height, width
    raise PlanError(
        f"{name} takes {found}; expected one tensor(float) (batch, channels, height, width) with an open batch or 1 "
        f"and 1 or 3 channels."
    )


def _features(network: Network, name: str) -> int:
    """Return the length of a description. Raises PlanError unless test images become finite rows, each always alike."""
    ranks = [len(each.shape) for each in network.session.get_outputs()]
    if not ranks or not set(ranks) <= {2, 3, 4}:
        raise PlanError(f"{name} gives outputs of {ranks} dimensions; expected 2 to 4, the batch first.")
    noise = np.random.default_rng(0).integers(0, 256, (3, 64, 64)).astype(np.uint8)
    images = np.concatenate([noise, np.zeros((1, 64, 64), np.uint8), noise[:1]])
    rows = network.describe(images)
    if not 2 <= rows.shape[1] <= MOST_FEATURES:
        raise PlanError(f"{name} gives {rows.shape[1]} features; expected 2 to {MOST_FEATURES}. Take other layers.")
    if not np.isfinite(rows).all():
        raise PlanError(f"{name} gives features that are not finite for some images; expected numbers.")
    if rows[0].tobytes() != rows[4].tobytes():
        raise PlanError(f"{name} describes one image in two ways on {network.provider}. Use the CPU.")
    return int(rows.shape[1])


def _is_memory(reason: Exception) -> bool:
    """Return whether memory ran out; onnxruntime says so in words only."""
    words = str(reason).lower()
    return isinstance(reason, MemoryError) or any(each in words for each in OUT_OF_MEMORY)
