"""Train the small public backbone that ships with the project, on simulated glyphs alone, and write it by its hash.

    python benchmarks/train_backbone.py                # 4 minutes on an idle core; the same seed, the same weights
    python benchmarks/train_backbone.py --out assets/  # somewhere else than shared/shipped/

Characters: digits and Latin letters of the glyph simulator, 600 pictures of each. No picture of anything real is read.
"""

import argparse
import hashlib
import pathlib
import string
import sys
import time

import numpy as np

from patevolve.shared import assets
from patevolve.shared.encoder.backbone import STRIDES, WIDTHS, train_backbone
from patevolve.shared.encoder.export import in_precision, run, to_onnx
from patevolve.shared.files import write_atomic
from patevolve.shared.generators.simulator import Simulator
from patevolve.shared.randomness import stream

GLYPHS, EACH, SIDE = tuple(string.digits + string.ascii_letters), 600, 28
SEED, STEPS = 1, 1000


def pictures():
    """Return (n, SIDE, SIDE) uint8 simulated glyphs and their characters."""
    simulator, images, classes = Simulator(glyphs=GLYPHS, side=SIDE), [], []
    for cls in range(len(GLYPHS)):
        genomes = simulator.draw(stream(SEED, "backbone", cls), cls, EACH)
        images.append(simulator.render(genomes, np.full(EACH, cls)))
        classes.append(np.full(EACH, cls))
    return np.concatenate(images), np.concatenate(classes)


def write(network, images, folder):
    """Write the network as <SHA-256>.onnx with a card, and return the hash."""
    public = images[:: len(images) // 512].astype(np.float32)[:, None] / np.float32(255)
    model = to_onnx(network, public)
    small = in_precision(model, "int8", public)
    sha256 = hashlib.sha256(model).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{sha256}.onnx", model)
    width = run(model, public[:1]).shape[1]
    blocks = f"{len(WIDTHS)} blocks of {', '.join(map(str, WIDTHS))} channels, strides {', '.join(map(str, STRIDES))}"
    rows = {
        "file": f"{sha256}.onnx",
        "what": f"a convolutional network of {blocks}, with group normalisation",
        "input": "(batch, 1, height, width) float32 in [0, 1], white ink on black",
        "output": f"{width} features: every block's channels averaged over the image",
        "size": f"{len(model):,} bytes; {len(small):,} as int8",
        "trained on": f"{len(images):,} simulated glyphs of {len(GLYPHS)} characters, nothing real: ε = 0",
        "how": f"supervised contrastive learning (Khosla et al. 2020), {STEPS} steps, seed {SEED}: "
        "`python benchmarks/train_backbone.py`",
        "licence": "that of the project",
    }
    lines = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    use = f'A plan uses it by `[encoder] kind = "onnx"` and `asset = "{sha256}"`.'
    card = f"# Files that came along\n\n| | |\n|---|---|\n{lines}\n\n{use}\n"
    write_atomic(folder / "README.md", card.encode())
    return sha256


def main():
    """Train, write and say the hash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=assets.SHIPPED)
    parser.add_argument("--steps", type=int, default=STEPS, help="Fewer for a try; another number is another network.")
    chosen = parser.parse_args()
    began = time.monotonic()
    images, classes = pictures()
    losses = []

    def tick(loss):
        losses.append(loss)
        if len(losses) % 50 == 0:
            print(f"step {len(losses)}: loss {np.mean(losses[-50:]):.3f}", file=sys.stderr)

    network = train_backbone(images, classes, seed=SEED, steps=chosen.steps, tick=tick)
    sha256 = write(network, images, chosen.out)
    print(f"{sha256}: {time.monotonic() - began:.0f} s, last loss {np.mean(losses[-50:]):.3f}")


if __name__ == "__main__":
    main()
