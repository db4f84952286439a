"""Generators trained by DP-SGD and the direct use, beside evolution: digits at one ε, in one table like the article's.

    OMP_NUM_THREADS=1 python benchmarks/generators_dp.py --seeds 1 2 3 --json benchmarks/generators_dp.json

Small networks, trained on the 4,000 digits of all sites pooled, which is more than a federated method may see:

- a variational autoencoder, conditioned on the class, every step by DP-SGD;
- a generative adversarial network, conditioned on the class, its discriminator by DP-SGD; the generator reads the
  discriminator alone, which costs nothing;
- classifiers by DP-SGD, which release no samples: a convolutional one on pixels, one of two layers on the public
  features.

Clipping is the product's own (``shared/encoder/dpsgd.py``), ε that of the product's accountant for all steps, each on
a Poisson sample; noise is drawn in floating point, which the product would not do. Sizes, steps and rates were chosen
on seed 11, which no table has. The first seed also trains both generators without any noise, to show what noise takes.
Beside them the product's selections, each run whole at the same ε and δ. Every row but the classifiers releases 4,000
samples; the student is a support vector machine on the public features. A run whose release the gate refuses has no
figures, and its row counts the others.
Distance: Fréchet distance between Gaussians fitted to the public features of the release and of the held-out images.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from patevolve.client import study
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.study import Split
from patevolve.client.variants import PUBLIC_ONLY, selections
from patevolve.shared.encoder.dpsgd import Clipper, GhostClipping, Objective, PerUnitGradients, clipped_sum, flat
from patevolve.shared.errors import ReleaseError
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import SubsampledGaussian
from patevolve.shared.randomness import stream
from patevolve.shared.tools import tools_of

CLASSES, PIXELS, LATENT, NOISE, HIDDEN, SAMPLES = 10, 784, 16, 32, 64, 4000
JUDGES = DEMONSTRATIONS["digits"].judges
STUDENT = JUDGES.students[0]
Floats = NDArray[np.float64]
Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """DP-SGD: ``steps`` on Poisson samples of this rate, gradients clipped to 1, then a step of this learning rate.

    momentum: of plain gradient steps; None for Adam
    """

    steps: int
    rate: float
    learning: float
    momentum: float | None = None


VAE = Schedule(steps=150, rate=0.08, learning=1e-2)
GAN = Schedule(steps=600, rate=0.08, learning=1e-3)
CNN = Schedule(steps=80, rate=0.1, learning=1.0, momentum=0.9)
FEATURES = Schedule(steps=100, rate=0.2, learning=1.0, momentum=0.9)
GENERATOR_LEARNING = 3e-3  # one step of the generator after each of the discriminator's


def multiplier_for(schedule: Schedule, epsilon: float, delta: float) -> float:
    """Return the least noise multiplier, to a thousandth, with which all steps fit (ε, δ) by the accountant."""

    def fits(multiplier: float) -> bool:
        event = SubsampledGaussian(noise_multiplier=multiplier, sample_rate=schedule.rate, steps=schedule.steps)
        return accountant.epsilon(accountant.compose([event]), delta).epsilon <= epsilon

    low, high = 0.2, 100.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """A network, the way to its clipped gradients, and how it is trained."""

    network: nn.Module
    clipper: Clipper
    schedule: Schedule
    multiplier: float


def learn(
    learner: Learner, objective: Objective, units: int, rng: np.random.Generator, after: Callable[[], None]
) -> None:
    """Train by DP-SGD; ``after`` is called after each step and may read the network alone."""
    schedule, size = learner.schedule, len(flat(learner.network))
    parameters = [parameter for parameter in learner.network.parameters() if parameter.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, schedule.learning, betas=(0.5, 0.99))
    if schedule.momentum is not None:
        optimizer = torch.optim.SGD(parameters, schedule.learning, momentum=schedule.momentum)
    for _ in range(schedule.steps):
        chosen = np.flatnonzero(rng.random(units) < schedule.rate)
        total = clipped_sum(learner.clipper, objective, chosen, size, 100)
        noisy = (total + learner.multiplier * rng.standard_normal(size)) / (schedule.rate * units)
        start = 0
        for parameter in parameters:
            part = torch.from_numpy(noisy[start : start + parameter.numel()])
            parameter.grad, start = part.reshape(parameter.shape), start + parameter.numel()
        optimizer.step()
        after()


class Autoencoder(nn.Module):
    """A conditional variational autoencoder; a row holds pixels, class and the draw of its latents."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS + CLASSES, 128), nn.Tanh(), nn.Linear(128, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT + CLASSES, 128), nn.Tanh(), nn.Linear(128, PIXELS))
        with torch.no_grad():  # start at dark images: most pixels of any digit are
            self.decoder[2].bias -= 2.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (b, pixels + 2 latent): logits, mean and log-variance."""
        seen, draw = rows[:, : PIXELS + CLASSES], rows[:, PIXELS + CLASSES :]
        mean, spread = self.encoder(seen).chunk(2, dim=1)
        latent = torch.cat([mean + (0.5 * spread).exp() * draw, seen[:, PIXELS:]], dim=1)
        return torch.cat([self.decoder(latent), mean, spread], dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """The autoencoder's loss of each unit."""

    rows: torch.Tensor
    random: torch.Generator

    def batch(self, chosen: NDArray[np.int64]) -> Batch:
        """Return the units' rows, with fresh draws of the latents."""
        some = self.rows[torch.from_numpy(chosen)]
        draws = torch.randn((len(some), LATENT), generator=self.random, dtype=some.dtype)
        return (torch.cat([some, draws], dim=1), some[:, :PIXELS].clone())

    def losses(self, network: Callable[[Any], Any], *batch: torch.Tensor) -> torch.Tensor:
        """Return the units' negative evidence bounds."""
        told = network(batch[0])
        logits, mean, spread = told[:, :PIXELS], *told[:, PIXELS:].chunk(2, dim=1)
        fit = functional.binary_cross_entropy_with_logits(logits, batch[1], reduction="none").sum(dim=1)
        return fit + 0.5 * (mean.square() + spread.exp() - 1.0 - spread).sum(dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversary:
    """The discriminator's loss of each unit: its own image as real beside one of the generator's as not."""

    rows: torch.Tensor
    generator: nn.Module
    random: torch.Generator

    def batch(self, chosen: NDArray[np.int64]) -> Batch:
        """Return (b, 2, pixels + classes): the unit, and an image drawn for its class of the public generator."""
        some = self.rows[torch.from_numpy(chosen)]
        with torch.no_grad():
            made = self.generator(drawn(some[:, PIXELS:], self.random))
        return (torch.stack([some, torch.cat([made, some[:, PIXELS:]], dim=1)], dim=1),)

    def losses(self, network: Callable[[Any], Any], *batch: torch.Tensor) -> torch.Tensor:
        """Return the units' logistic losses."""
        told = network(batch[0])[..., 0]
        return functional.softplus(-told[:, 0]) + functional.softplus(told[:, 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """A classifier's cross entropy of each unit."""

    rows: torch.Tensor
    labels: torch.Tensor

    def batch(self, chosen: NDArray[np.int64]) -> Batch:
        """Return the units' rows and classes."""
        places = torch.from_numpy(chosen)
        return (self.rows[places], self.labels[places])

    def losses(self, network: Callable[[Any], Any], *batch: torch.Tensor) -> torch.Tensor:
        """Return the units' losses."""
        return functional.cross_entropy(network(batch[0]), batch[1], reduction="none")


def drawn(classes: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return the generator's input for these classes, given as (b, classes) of zeros and ones."""
    return torch.cat([torch.randn((len(classes), NOISE), generator=random, dtype=classes.dtype), classes], dim=1)


def coded(classes: NDArray[np.int64]) -> torch.Tensor:
    """Return classes as (n, classes) of zeros and ones."""
    return functional.one_hot(torch.from_numpy(classes), CLASSES).double()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a baseline gets: pooled private images, held-out ones, the budget, and its public random numbers."""

    agreed: Agreed
    images: NDArray[Any]
    classes: NDArray[np.int64]
    test: tuple[NDArray[Any], NDArray[np.int64]]
    random: torch.Generator
    rng: np.random.Generator
    noise: bool = True

    @property
    def rows(self) -> torch.Tensor:
        """Pixels in [0, 1] and the class's code, (n, pixels + classes)."""
        pixels = torch.from_numpy(self.images.reshape(len(self.images), -1).astype(np.float64) / 255.0)
        return torch.cat([pixels, coded(self.classes)], dim=1)

    def learner(self, network: nn.Module, schedule: Schedule, *, ghost: bool) -> Learner:
        """Return the network with its clipper and the noise that its schedule needs at the plan's ε."""
        privacy = self.agreed.plan.privacy
        clipper: Clipper = GhostClipping(network, 1.0) if ghost else PerUnitGradients(network, 1.0)
        multiplier = multiplier_for(schedule, privacy.epsilon, privacy.delta) if self.noise else 0.0
        return Learner(network=network, clipper=clipper, schedule=schedule, multiplier=multiplier)


Made = tuple[NDArray[np.uint8], NDArray[np.int64]]


def sampled(decoder: Callable[[torch.Tensor], torch.Tensor], size: int, task: Task) -> Made:
    """Return images of a decoder from ``size`` normal numbers and a class, every class as often."""
    classes = np.arange(SAMPLES) % CLASSES
    draws = torch.randn((SAMPLES, size), generator=task.random, dtype=torch.float64)
    with torch.no_grad():
        made = decoder(torch.cat([draws, coded(classes)], dim=1))
    return np.rint(255 * made.numpy()).astype(np.uint8).reshape(-1, 28, 28), classes


def autoencoder(task: Task) -> Made:
    """Return images of the variational autoencoder."""
    network = Autoencoder()
    learner = task.learner(network, VAE, ghost=True)
    objective = Likelihood(rows=task.rows, random=task.random)
    learn(learner, objective, len(task.images), task.rng, lambda: None)
    learner.clipper.close()
    return sampled(lambda rows: network.decoder(rows).sigmoid(), LATENT, task)


def adversarial(task: Task) -> Made:
    """Return images of the generative adversarial network."""
    critic = nn.Sequential(nn.Linear(PIXELS + CLASSES, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    generator = nn.Sequential(nn.Linear(NOISE + CLASSES, 128), nn.ReLU(), nn.Linear(128, PIXELS), nn.Sigmoid()).double()
    with torch.no_grad():
        generator[2].bias -= 2.0
    learner = task.learner(critic, GAN, ghost=True)
    optimizer = torch.optim.Adam(generator.parameters(), GENERATOR_LEARNING, betas=(0.5, 0.99))

    def after() -> None:
        codes = coded(task.rng.integers(CLASSES, size=256))
        told = critic(torch.cat([generator(drawn(codes, task.random)), codes], dim=1))
        optimizer.zero_grad()
        functional.softplus(-told).mean().backward()
        optimizer.step()

    objective = Adversary(rows=task.rows, generator=generator, random=task.random)
    learn(learner, objective, len(task.images), task.rng, after)
    learner.clipper.close()
    return sampled(generator, NOISE, task)


def convolutional(task: Task) -> float:
    """Return the accuracy of a convolutional network on pixels (layers of Tramèr and Boneh 2021)."""
    network = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, CLASSES),
    )  # fmt: skip

    def pixels(images: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(images[:, None].astype(np.float64) / 255.0)

    return classified(task, network, CNN, (pixels(task.images), pixels(task.test[0])))


def on_features(task: Task) -> float:
    """Return the accuracy of a network of one hidden layer on the public encoder's features."""
    encoder = tools_of(task.agreed.plan).encoder

    def features(images: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.asarray(encoder.encode(images), np.float64))

    rows = (features(task.images), features(task.test[0]))
    network = nn.Sequential(nn.Linear(rows[0].shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    return classified(task, network, FEATURES, rows)


def classified(task: Task, network: nn.Module, schedule: Schedule, rows: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the accuracy on the held-out rows after training on the private ones."""
    learner = task.learner(network, schedule, ghost=schedule is FEATURES)
    objective = Classes(rows=rows[0], labels=torch.from_numpy(task.classes))
    learn(learner, objective, len(rows[0]), task.rng, lambda: None)
    learner.clipper.close()
    with torch.no_grad():
        return float(np.mean(network(rows[1]).argmax(dim=1).numpy() == task.test[1]))


def distance(one: Floats, other: Floats) -> float:
    """Return the Fréchet distance of Gaussians fitted to two sets of features (Dowson and Landau 1982)."""
    first, second = np.cov(one.T), np.cov(other.T)
    product = np.linalg.eigvals(first @ second).real
    apart = np.square(one.mean(axis=0) - other.mean(axis=0)).sum()
    return float(apart + np.trace(first) + np.trace(second) - 2.0 * np.sqrt(np.maximum(product, 0.0)).sum())


def judged(task: Task, parts: Split, features: Floats, classes: NDArray[np.int64]) -> dict[str, float]:
    """Return the student's accuracy and the release's distance from the held-out images."""
    encoder = tools_of(task.agreed.plan).encoder
    held_out = encoder.encode(parts.test.values)
    accuracy = study.judge(features, classes, parts.test, encoder, JUDGES)[STUDENT]
    return {"accuracy": accuracy, "distance": distance(features, held_out), "samples": float(len(classes))}


SAMPLERS: dict[str, Callable[[Task], Made]] = {"VAE, DP-SGD": autoencoder, "GAN, DP-SGD": adversarial}
DIRECT: dict[str, Callable[[Task], float]] = {
    "direct use: convolutional classifier, DP-SGD": convolutional,
    "direct use: classifier on public features, DP-SGD": on_features,
}


def one(epsilon: float, seed: int, only: list[str] | None, *, without_noise: bool) -> dict[str, dict[str, float]]:
    """Return every method's figures of one seed; ``without_noise`` adds the generators trained without noise."""
    agreed = plan_of("digits", epsilon, seed)
    parts = data_of("digits", agreed.plan, seed)
    encoder, pooled = tools_of(agreed.plan).encoder, study.join(list(parts.train.values()))
    torch.manual_seed(seed)
    task = Task(
        agreed=agreed,
        images=pooled.values,
        classes=pooled.classes,
        test=(parts.test.values, parts.test.classes),
        random=torch.Generator().manual_seed(seed),
        rng=stream(seed, "trained by DP-SGD"),
    )
    found: dict[str, dict[str, float]] = {}

    def timed(name: str, run: Callable[[], dict[str, float]]) -> None:
        if only and not any(word in name for word in only):
            return
        start = time.process_time()
        found[name] = {**run(), "seconds": time.process_time() - start}
        print(f"<!-- seed {seed}, {name}: {json.dumps(found[name])} -->", flush=True)

    def product(changes: dict[str, Any]) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                released = study.make(vary(agreed, changes), parts.train, Path(folder) / "run").finished.released
            except ReleaseError as reason:
                print(f"<!-- {reason} -->", flush=True)
                return {"refused": 1.0}
        return judged(task, parts, released.features, released.samples.classes)

    def trained(sampler: Callable[[Task], Made], task: Task = task) -> dict[str, float]:
        images, classes = sampler(task)
        return judged(task, parts, encoder.encode(images), classes)

    timed("real images (no privacy)", lambda: judged(task, parts, encoder.encode(pooled.values), pooled.classes))
    timed("the simulator alone (ε = 0)", lambda: product(dict(PUBLIC_ONLY)))
    timed("patevolve (soft)", lambda: product({}))
    for name in ("histogram", "pcevolve", "pcevolve-prototype"):
        changes = dict(selections(CLASSES)[name])
        timed(f"selection '{name}'", lambda changes=changes: product(changes))  # type: ignore[misc]
    for name, sampler in SAMPLERS.items():
        timed(name, lambda sampler=sampler: trained(sampler))  # type: ignore[misc]
    bare = dataclasses.replace(task, noise=False)
    for name, sampler in SAMPLERS.items() if without_noise else ():
        timed(f"{name} without its noise", lambda sampler=sampler: trained(sampler, bare))  # type: ignore[misc]
    for name, classifier in DIRECT.items():
        timed(name, lambda classifier=classifier: {"accuracy": classifier(task)})  # type: ignore[misc]
    return found


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", help="rows whose name has one of these words")
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        found = one(options.epsilon, seed, options.only, without_noise=seed == options.seeds[0])
        rows.append({"epsilon": options.epsilon, "seed": seed, "methods": found})
        if options.json:
            options.json.write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n")
    print(f"digits, ε = {options.epsilon:g}, {len(rows)} seeds\n")
    print("| | accuracy of a student | Fréchet distance | CPU seconds |\n|---|---|---|---|")
    for name in rows[0]["methods"]:
        some = [row["methods"][name] for row in rows if name in row["methods"]]
        cells = [_cell(some, "accuracy", 3), _cell(some, "distance", 4), _cell(some, "seconds", 0)]
        print(f"| {name} | {' | '.join(cells)} |")


def _cell(rows: list[dict[str, float]], key: str, digits: int) -> str:
    values = [row[key] for row in rows if key in row]
    if not values:
        return "none"
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else " (one seed)"
    return f"{np.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
