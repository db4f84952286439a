"""One record moves the clipped sum by at most C, on the batch that breaks InfoNCE with in-batch negatives.

The batch: every record's gradient of the naive loss turns round when one record joins (random batches hide the fault).
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from patevolve.shared.encoder.contrastive import Loss, Public, normalised, unit_losses  # noqa: E402
from patevolve.shared.encoder.dpsgd import GhostClipping, PerUnitGradients, flat  # noqa: E402

D, CLIP = 6, 0.01  # a clip below every gradient: each clipped gradient has norm exactly C
SIZES = (8, 16, 32, 64, 128)


def adversarial(size):
    """Return (size, 2, D) views: record 0 lies where all others' gradients are decided by it."""
    rng = np.random.default_rng(0)
    views = np.zeros((size, 2, D))
    views[:, :, 0] = 1.0  # all others lie at one place, so that their own negatives pull nowhere
    views[1:, 1, 1] = 1e-3
    views[0] = 0.0
    views[0, :, 0], views[0, :, 2] = 1.0, 1.5
    return views + 1e-9 * rng.normal(size=views.shape)


class Ours:
    """The product's loss: public negatives."""

    def __init__(self, views):
        rng = np.random.default_rng(1)
        self.views = torch.from_numpy(views)[:, None]
        self.public = Public(
            negatives=torch.from_numpy(rng.normal(size=(64, D))), prototypes=torch.from_numpy(rng.normal(size=(3, D)))
        )

    def batch(self, chosen):
        weights = torch.ones(len(chosen), 1, dtype=torch.float64)
        return self.views[chosen], weights, torch.zeros(len(chosen), 1, dtype=torch.int64)

    def losses(self, network, *batch):
        views, weights, classes = batch
        embedded = network(views.flatten(1, 2)).reshape(*views.shape[:3], -1)
        return unit_losses(embedded, weights, classes, self.public, Loss(supervised=0.3))


class Naive(Ours):
    """The planted twin: InfoNCE whose negatives are the rest of the private batch (the usual code)."""

    def losses(self, network, *batch):
        first, second = normalised(network(batch[0].flatten(1, 2))).unbind(dim=1)
        logits = first @ second.T / 0.15
        return logits.logsumexp(dim=1) - logits.diagonal()


def network():
    linear = torch.nn.Linear(D, D, bias=False).double()
    with torch.no_grad():
        linear.weight.copy_(torch.eye(D))
    return linear


def change(objective, size, clipper=GhostClipping):
    """Return ‖change of the clipped sum‖ / C when record 0 leaves."""
    own = clipper(network(), CLIP)
    with_it, without = own.sums(objective, np.arange(size)), own.sums(objective, np.arange(1, size))
    own.close()
    return float(np.linalg.norm(with_it - without)) / CLIP


def naive_change(size):
    """Return the same for the naive loss with exact per-record gradients, as usual code clips them."""
    objective = Naive(adversarial(size))

    def clipped(chosen):
        linear = network()
        losses = objective.losses(linear, *objective.batch(chosen))
        total = np.zeros(D * D)
        for loss in losses:
            (gradient,) = torch.autograd.grad(loss, linear.weight, retain_graph=True)
            own = gradient.numpy().ravel()
            total += own * CLIP / max(CLIP, np.linalg.norm(own))
        return total

    return float(np.linalg.norm(clipped(np.arange(size)) - clipped(np.arange(1, size)))) / CLIP


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clipper", [GhostClipping, PerUnitGradients])
def test_our_clipped_sum_moves_by_exactly_the_bound(size, clipper):
    assert change(Ours(adversarial(size)), size, clipper) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_the_planted_naive_loss_breaks_the_bound(size):
    assert naive_change(size) > 5


def test_the_units_that_stay_hardly_move():
    """Rounding that depends on the company stays far inside the mechanism's slack (2^-10)."""
    objective = Ours(adversarial(128))
    own = GhostClipping(network(), CLIP)
    alone = sum(own.sums(objective, np.array([unit])) for unit in range(1, 128))
    assert np.linalg.norm(own.sums(objective, np.arange(1, 128)) - alone) / CLIP < 2.0**-30
    own.close()


def test_flat_reads_what_a_step_writes():
    assert flat(network()) == pytest.approx(np.eye(D).ravel())
