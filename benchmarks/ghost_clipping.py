"""Clipping a head's gradients on cached features: ghost norms against per-unit gradients, as ratios.

    OMP_NUM_THREADS=1 python benchmarks/ghost_clipping.py

One step's clipped sum of a head of 128 × 128 on two views of each unit, in float64, three ways that give the same sum:
hooks  Opacus' per-sample gradients (GradSampleModule), formed, clipped and added up
func   torch.func.vmap(grad), as whole encoders are trained here
ghost  ghost norms (Opacus), as heads are trained here

Median of 7 alternating rounds on each of 3 seeds; sd over seeds.
"""

import argparse
import time

import numpy as np
import torch

from patevolve.shared.encoder.dpsgd import GhostClipping, PerUnitGradients
from patevolve.shared.encoder.train import Bank, Settings, Stretch, identity, objective_at, units_of

CLIP, ROUNDS = 0.5, 7


class Hooks:
    """Opacus' usual mode, for comparison."""

    def __init__(self, network):
        """Wrap the network."""
        from opacus.grad_sample import GradSampleModule

        self.network = network.double()
        self.wrapped = GradSampleModule(self.network, loss_reduction="sum")

    def sums(self, objective, chosen):
        """Return the sum of clipped gradients."""
        self.wrapped.zero_grad(set_to_none=True)
        self.network.weight.grad_sample = None
        batch = objective.batch(chosen)
        batch[0].requires_grad_()
        torch.autograd.backward(objective.losses(self.wrapped, *batch).sum())
        rows = self.network.weight.grad_sample.flatten(1)
        factors = (CLIP / rows.norm(dim=1)).clamp(max=1.0)
        return (factors[:, None] * rows).sum(dim=0).numpy()


def seconds(units, size, seed):
    """Return the median seconds of each way."""
    rng = np.random.default_rng(seed)
    records = units_of(rng.normal(size=(2, units, size)), rng.integers(0, 5, units), np.arange(units).astype(str), 5)
    bank = Bank(inputs=rng.normal(size=(512, size)), classes=np.arange(512) % 5)
    settings = Settings(stretches=(Stretch(steps=1, batch=float(units), temperature=0.15),), supervised=1.0)
    ways = {
        "hooks": Hooks(identity(size)),
        "func": PerUnitGradients(identity(size), CLIP),
        "ghost": GhostClipping(identity(size), CLIP),
    }
    objective = objective_at(identity(size), records, bank, settings=settings, step=0, device="cpu")
    chosen, took, sums = np.arange(units), {way: [] for way in ways}, {}
    for number in range(ROUNDS + 1):
        for way, clipper in ways.items():
            began = time.perf_counter()
            sums[way] = clipper.sums(objective, chosen)
            if number:
                took[way].append(time.perf_counter() - began)
    for way in ways:
        np.testing.assert_allclose(sums[way], sums["hooks"], atol=1e-10)
    return {way: float(np.median(values)) for way, values in took.items()}


def main():
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--size", type=int, default=128)
    given = parser.parse_args()
    print("| units | hooks, ms | hooks / ghost | func / ghost |\n|---|---|---|---|")
    for units in given.units:
        runs = [seconds(units, given.size, seed) for seed in (1, 2, 3)]
        cells = []
        for way in ("hooks", "func"):
            ratios = np.array([run[way] / run["ghost"] for run in runs])
            cells.append(f"{ratios.mean():.1f} ± {ratios.std(ddof=1):.1f}")
        print(f"| {units} | {1e3 * np.mean([run['hooks'] for run in runs]):.1f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
