"""Text-to-image and image-to-image models as a generator, as Private Evolution and PCEvolve use them.

A genome says how to make an image again: a prompt, a seed, and a chain of edits, each a seed and a strength with which
image-to-image starts from what the chain made so far (Meng et al. 2022). Draw is text-to-image; mutation adds an edit.
The pipeline is one public archive of safetensors and JSON named by its hash: nothing is downloaded and no code in it
runs. Its arithmetic is floating point: machines of one kind with the same libraries render the same pixels, others may
differ by a grey level; no bound on a ballot depends on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import assets
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.protocols import Genomes

EDITS = 6  # of a chain; the next one takes the place of the last
SEEDS = 2**31 - 1
GUIDANCE = 7.5  # weight of the prompt (Ho and Salimans 2022), the usual one
ALLOWED = frozenset({".json", ".txt", ".model", ".safetensors"})  # files of an archive: none of them is code
KEPT = 256  # made images that are kept for the chains that go on from them
PLACE = "{class}"  # in a prompt: where the class name goes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diffusion:
    """Images that public models make of prompts: (height, width) uint8 grey, or (height, width, 3) RGB.

    classes, prompts:  the class name takes the place of {class} in each prompt
    text, image:       the pipelines from text and from an image, which share their models
    steps:             denoising steps
    """

    classes: tuple[str, ...]
    prompts: tuple[str, ...]
    shape: tuple[int, ...]
    steps: int
    sha256: str
    text: Any
    image: Any
    made: OrderedDict[tuple[Any, ...], Any] = field(default_factory=OrderedDict)

    @property
    def genome_size(self) -> int:
        """The prompt's number, a seed, and a seed and a strength for each edit; strength 0 is no edit."""
        return 2 + 2 * EDITS

    @property
    def digest(self) -> str:
        """SHA-256 of the archive's hash, the prompts with their classes, the size and the steps."""
        said = ("diffusers", self.sha256, self.classes, self.prompts, self.shape, self.steps, GUIDANCE)
        return hashlib.sha256(repr(said).encode()).hexdigest()

    def draw(self, rng: np.random.Generator, cls: int, count: int) -> Genomes:  # noqa: ARG002 - the class speaks at rendering
        """Return genomes of a random prompt and seed, without edits."""
        genomes = np.zeros((count, self.genome_size))
        genomes[:, 0] = rng.integers(len(self.prompts), size=count)
        genomes[:, 1] = rng.integers(SEEDS, size=count)
        return genomes

    def mutate(self, rng: np.random.Generator, genomes: Genomes, cls: int, strength: float) -> Genomes:
        """Return genomes with one more edit of this strength; at 1, which forgets the image, fresh draws."""
        if strength >= 1.0:
            return self.draw(rng, cls, len(genomes))
        mutants, rows = genomes.copy(), np.arange(len(genomes))
        edits = np.minimum(np.count_nonzero(genomes[:, 3::2] > 0.0, axis=1), EDITS - 1)
        mutants[rows, 2 + 2 * edits] = rng.integers(SEEDS, size=len(genomes))
        mutants[rows, 3 + 2 * edits] = np.float32(strength)  # exact in four bytes
        return mutants

    def cross(self, rng: np.random.Generator, mothers: Genomes, fathers: Genomes) -> Genomes:
        """Return the mother's prompt, seed and first edits, and from a random place on the father's edits."""
        place = rng.integers(EDITS + 1, size=(len(mothers), 1))
        edit = (np.arange(self.genome_size) - 2) // 2
        return _closed(np.where(edit < place, mothers, fathers))

    def render(self, genomes: Genomes, classes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return (P, *shape) uint8 images, each made by itself; a number out of range is the nearest one."""
        images = np.zeros((len(genomes), *self.shape), np.uint8)
        for row, cls in enumerate(classes.tolist()):
            images[row] = self._pixels(self._made(_chain(genomes[row], len(self.prompts)), cls))
        return images

    def _made(self, chain: tuple[Any, ...], cls: int) -> Any:
        """Return the image of a chain, from the longest part of it that was made before."""
        key = (cls, *chain)
        if key in self.made:
            self.made.move_to_end(key)
            return self.made[key]
        prompt = self.prompts[chain[0]].replace(PLACE, self.classes[cls])
        settings = {"prompt": prompt, "guidance_scale": GUIDANCE, "num_inference_steps": self.steps}
        if len(chain) == 2:
            image = self.text(generator=_randomness(chain[1]), **settings).images[0]
        else:
            seed, strength = chain[-1]
            before = self._made(chain[:-1], cls)
            # A strength below one step of denoising would do nothing.
            settings["strength"] = max(strength, 1.0 / self.steps)
            image = self.image(image=before, generator=_randomness(seed), **settings).images[0]
        self.made[key] = image
        while len(self.made) > KEPT:
            self.made.popitem(last=False)
        return image

    def _pixels(self, image: Any) -> NDArray[np.uint8]:
        height, width, *channels = self.shape
        return np.asarray(image.convert("RGB" if channels else "L").resize((width, height)), np.uint8)


def _closed(genomes: Genomes) -> Genomes:
    """Return genomes whose edits stand one after another, without gaps."""
    edits = genomes[:, 2:].reshape(len(genomes), EDITS, 2)
    order = np.argsort(~(edits[:, :, 1] > 0.0), axis=1, kind="stable")
    edits = np.take_along_axis(edits, order[:, :, None], axis=1)
    edits = np.where(edits[:, :, 1:] > 0.0, edits, 0.0)
    return np.hstack([genomes[:, :2], edits.reshape(len(genomes), -1)])


def _chain(genome: NDArray[np.float64], prompts: int) -> tuple[Any, ...]:
    """Return prompt number, seed, and (seed, strength) of each edit of a genome."""
    prompt = int(np.clip(np.rint(genome[0]), 0, prompts - 1))
    seeds = np.clip(np.rint(genome[[1, *range(2, 2 + 2 * EDITS, 2)]]), 0, SEEDS).astype(np.int64).tolist()
    strengths = np.clip(genome[3::2], 0.0, 1.0).tolist()
    edits = zip(seeds[1:], strengths, strict=True)
    return (prompt, seeds[0], *((seed, strength) for seed, strength in edits if strength > 0.0))


def _randomness(seed: int) -> Any:
    import torch  # noqa: PLC0415 - an extra

    return torch.Generator(device="cpu").manual_seed(seed)  # named, and on the CPU: the same on any device


def load(
    sha256: str, classes: tuple[str, ...], prompts: tuple[str, ...], *, shape: tuple[int, ...], steps: int
) -> Diffusion:
    """Return the generator of the public archive of this hash. Raises PlanError, or InputError without the extra."""
    try:
        import diffusers  # noqa: PLC0415 - an extra
        import torch  # noqa: PLC0415 - the same
        import transformers  # noqa: F401, PLC0415 - the same: prompts need it
    except ImportError as reason:
        raise InputError(
            f"generator.kind = 'diffusers' needs {reason.name}; install it: pip install 'patevolve[diffusers]'."
        ) from reason
    folder = _unpacked(assets.find(sha256), sha256)
    try:
        text = diffusers.AutoPipelineForText2Image.from_pretrained(folder, local_files_only=True, use_safetensors=True)
        image = diffusers.AutoPipelineForImage2Image.from_pipe(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
        raise PlanError(
            f"generator.asset is no pipeline from text and from images ({reason}). Get another."
        ) from reason
    for pipeline in (text, image):
        pipeline.set_progress_bar_config(disable=True)
        pipeline.to("cuda" if torch.cuda.is_available() else "cpu")
    return Diffusion(classes=classes, prompts=prompts, shape=shape, steps=steps, sha256=sha256, text=text, image=image)


def archive(folder: Path, out: Path) -> None:
    """Write a pipeline's folder as one file; the same folder gives the same bytes. Raises InputError.

    Only safetensors, JSON and texts go in: weights in other formats may hold code, and are refused.
    """
    if not (folder / "model_index.json").is_file():
        raise InputError(f"{folder} holds no model_index.json; expected the folder of a pipeline, as it is saved.")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    foreign = [path.name for path in files if path.suffix not in ALLOWED]
    if foreign:
        raise InputError(
            f"{', '.join(foreign[:3])} found in {folder}; expected {', '.join(sorted(ALLOWED))} alone. Save the "
            f"pipeline with safe_serialization=True, and leave the rest out."
        )
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)


def _unpacked(path: Path, sha256: str) -> Path:
    """Return the folder of an archive, unpacked once into the user's cache. Raises PlanError for foreign files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patevolve" / "pipelines"
    target = cache / sha256
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        draft = Path(folder) / "pipeline"
        try:
            with tarfile.open(path, "r:") as tar:
                members = tar.getmembers()
                if any(not one.isfile() or Path(one.name).suffix not in ALLOWED for one in members):
                    raise PlanError(f"{path} holds other files than {', '.join(sorted(ALLOWED))}. Do not use it.")
                tar.extractall(draft, members, filter="data")
            json.loads((draft / "model_index.json").read_text("utf-8"))
        except (OSError, ValueError, tarfile.TarError) as reason:
            raise PlanError(
                f"{path} is no archive of a pipeline ({reason}); make one: patevolve assets pipeline FOLDER."
            ) from reason
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first, with the same bytes
                raise
    return target
