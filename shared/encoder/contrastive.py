"""Contrastive losses in which every unit's loss is its own, so that clipping each unit's gradient bounds the whole.

InfoNCE with the rest of a private batch as negatives is not per-sample decomposable: one record enters every other
record's loss, and clipping then bounds nothing (Kong et al. 2024; ``tests/encoder/test_adversarial_batch.py``). Here
the positives are two views of one record, and everything else that a loss reads is public and held constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patevolve.shared import checks

if TYPE_CHECKING:
    import torch

TEMPERATURE = 0.15
FLOOR = 0.05  # an embedding shorter than this is not scaled up to norm 1: its direction would be rounding alone
LOWEST = 0.05  # temperature below which the loss is steeper than the arithmetic's bound allows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Public:
    """What a loss compares with: embeddings of public records, constants to the gradient.

    negatives:   (N, k) of the queue
    prototypes:  (classes, k) one for each class, of public or already released samples
    """

    negatives: torch.Tensor
    prototypes: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How a unit's records are compared.

    temperature:  divides every inner product
    supervised:   weight of the loss against class prototypes beside that against the queue, 0 to 1
    """

    temperature: float = TEMPERATURE
    supervised: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        check_temperature(self.temperature)
        checks.non_negative(supervised=self.supervised)
        checks.non_negative(unsupervised=1.0 - self.supervised)


def check_temperature(value: float) -> float:
    """Return the temperature. Raises ParameterError unless it is from LOWEST to 10."""
    checks.non_negative(above_lowest=checks.positive(temperature=value) - LOWEST)
    checks.non_negative(below_ten=10.0 - value)
    return value


def normalised(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of norm below 1 that point the same way: x / √(‖x‖² + FLOOR²), smooth where x is 0."""
    return rows / (rows.square().sum(dim=-1, keepdim=True) + FLOOR**2).sqrt()


def unit_losses(
    embedded: torch.Tensor, weights: torch.Tensor, classes: torch.Tensor, public: Public, loss: Loss
) -> torch.Tensor:
    """Return (b,) losses, one for each unit.

    embedded:  (b, r, 2, k) two views of each of a unit's records, as the network maps them
    weights:   (b, r) 1/r_u for each of a unit's r_u records and 0 for the padding, so that a unit counts once
    classes:   (b, r) whole numbers; read by the supervised part alone

    Guarantee: entry i is a function of row i and of public values alone.
    """
    views = normalised(embedded)
    each = views.new_zeros(views.shape[:2])
    if loss.supervised < 1.0:
        each = each + (1.0 - loss.supervised) * _against_queue(views, public.negatives, loss.temperature)
    if loss.supervised > 0.0:
        each = each + loss.supervised * _against_prototypes(views, classes, public.prototypes, loss.temperature)
    return (each * weights).sum(dim=1)


def _against_queue(views: torch.Tensor, queue: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return (b, r) InfoNCE losses of each view against the other, among the queue's constants."""
    import torch  # noqa: PLC0415 - heavy: training alone

    constants = normalised(queue.detach())  # label: public-negatives
    alike = (views[:, :, 0] * views[:, :, 1]).sum(dim=-1, keepdim=True) / temperature
    losses = [
        torch.cat([alike, views[:, :, view] @ constants.T / temperature], dim=-1).logsumexp(dim=-1) - alike[..., 0]
        for view in (0, 1)
    ]
    return torch.stack(losses).mean(dim=0)


def _against_prototypes(
    views: torch.Tensor, classes: torch.Tensor, prototypes: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return (b, r) cross-entropies of the record's class among the prototypes' constants, both views averaged."""
    logits = views @ normalised(prototypes.detach()).T / temperature
    own = logits.gather(-1, classes[:, :, None, None].expand(*logits.shape[:3], 1))[..., 0]
    return (logits.logsumexp(dim=-1) - own).mean(dim=-1)


def spread(rows: torch.Tensor) -> float:
    """Return how far directions of public embeddings lie apart: 1 − ‖mean direction‖², 0 where all are one."""
    mean = normalised(rows.detach()).mean(dim=0)
    return max(0.0, 1.0 - float(mean.square().sum()))
