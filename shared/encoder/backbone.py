"""A small public backbone: a convolutional network that learns which simulated glyphs are the same character.

It is trained on public simulated images alone (``benchmarks/train_backbone.py``), so that it costs no privacy. Group
normalisation throughout: batch statistics would let one private record change what another one's features are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

WIDTHS = (24, 48, 96, 96)  # channels of the four blocks
STRIDES = (1, 2, 2, 1)
GROUPS = 8
PROJECTED = 64  # the contrastive loss sees a projection that is thrown away afterwards (Chen et al. 2020)


def backbone(seed: int) -> torch.nn.Module:
    """Return the untrained network: (n, 1, h, w) float32 in [0, 1] to (n, 264) features pooled from all blocks."""
    import torch  # noqa: PLC0415 - heavy: training alone

    class Pooled(torch.nn.Module):
        """The mean over the image of every block's channels, side by side."""

        def __init__(self) -> None:
            super().__init__()
            blocks, before = [], 1
            for width, stride in zip(WIDTHS, STRIDES, strict=True):
                blocks.append(
                    torch.nn.Sequential(
                        torch.nn.Conv2d(before, width, 3, stride, 1, bias=False),
                        torch.nn.GroupNorm(GROUPS, width),
                        torch.nn.ReLU(),
                    )
                )
                before = width
            self.blocks = torch.nn.ModuleList(blocks)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            pooled = []
            for block in self.blocks:
                images = block(images)
                pooled.append(images.mean(dim=(2, 3)))
            return torch.cat(pooled, dim=1)

    network = Pooled()
    initialise(network, seed)
    return network


def initialise(network: torch.nn.Module, seed: int) -> None:
    """Draw every weight matrix or kernel anew (He et al. 2015) from a generator of its own; vectors stay."""
    import torch  # noqa: PLC0415 - heavy: training alone

    source = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            fan_in = parameter[0].numel()
            with torch.no_grad():
                parameter.normal_(0.0, math.sqrt(2.0 / fan_in), generator=source)


def train_backbone(
    images: NDArray[np.uint8],
    classes: NDArray[np.int64],
    *,
    seed: int,
    steps: int,
    batch: int = 256,
    temperature: float = 0.15,
    rate: float = 3e-3,
    tick: Callable[[float], None] = lambda _: None,
) -> torch.nn.Module:
    """Return the backbone trained on public images (n, h, w): images of one class attract, all others repel.

    Negatives are the rest of the batch, which is sound here because every image is public. Same inputs, same weights
    on one machine. ``tick`` hears of every step's loss.
    Source: supervised contrastive learning (Khosla et al. 2020), cosine decay of the learning rate.
    """
    import torch  # noqa: PLC0415 - heavy: training alone

    network = backbone(seed)
    projection = torch.nn.Linear(sum(WIDTHS), PROJECTED, bias=False)
    initialise(projection, seed + 1)
    parameters = [*network.parameters(), *projection.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-4)
    rng = np.random.Generator(np.random.Philox(key=seed))
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        chosen = rng.choice(len(images), size=batch, replace=False)
        pixels = torch.from_numpy(images[chosen].astype(np.float32) / np.float32(255))[:, None]
        loss = _supervised(projection(network(pixels)), torch.from_numpy(classes[chosen]), temperature)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        tick(float(loss.detach()))
    return network.eval()


def _supervised(rows: torch.Tensor, classes: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean over rows of −log of the share of each positive among all other rows (Khosla et al., L_out)."""
    import torch  # noqa: PLC0415 - heavy: training alone

    unit = torch.nn.functional.normalize(rows, dim=1)
    logits = unit @ unit.T / temperature
    itself = torch.eye(len(rows), dtype=torch.bool)
    log_share = logits - logits.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True)
    alike = (classes[:, None] == classes) & ~itself
    pairs = alike.sum(dim=1)
    each: Any = -(log_share * alike).sum(dim=1) / pairs.clamp(min=1)
    return torch.as_tensor(each[pairs > 0].mean())
