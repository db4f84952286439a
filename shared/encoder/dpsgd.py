"""DP-SGD on one vector per unit: clip each unit's gradient and add up; a mechanism outside adds the noise.

Private records are read by ``clipped_sum`` and nowhere else, and its result goes to the mechanism and nowhere else. The
premise of the mechanism's sensitivity is proven in SENSITIVITY.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.guards import Passes, check_gradients, check_trainable, is_out_of_memory
from patevolve.shared.errors import InputError

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
log = logging.getLogger(__name__)


class Objective(Protocol):
    """Losses of units, each a function of that unit's own tensors and of public constants."""

    def batch(self, chosen: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Return the tensors of these units, units along every first axis."""

    def losses(self, network: Callable[[Any], Any], *batch: torch.Tensor) -> torch.Tensor:
        """Return (b,) losses of such a batch."""


class Clipper(Protocol):
    """A way to the sum of clipped gradients."""

    def sums(self, objective: Objective, chosen: NDArray[np.int64]) -> Floats:
        """Return the sum (p,) of these units' gradients, each clipped."""

    def close(self) -> None:
        """Leave the network as it was found, but for its parameters."""


def parameters_of(network: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the trainable parameters in order. Raises InputError for none."""
    found = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not found:
        raise InputError("a network without trainable parameters found; expected at least one. Unfreeze a layer.")
    return found


def flat(network: torch.nn.Module) -> Floats:
    """Return the trainable parameters as one vector (p,)."""
    return np.concatenate([p.detach().cpu().double().numpy().ravel() for p in parameters_of(network)])


def load_flat(network: torch.nn.Module, vector: Floats) -> None:
    """Set the trainable parameters from one vector (p,)."""
    import torch  # noqa: PLC0415 - heavy: training alone

    start = 0
    with torch.no_grad():
        for parameter in parameters_of(network):
            part = torch.from_numpy(vector[start : start + parameter.numel()]).reshape(parameter.shape)
            parameter.copy_(part)
            start += parameter.numel()


class GhostClipping:
    """Clips by ghost norms, so that no unit's gradient is ever formed. For linear layers, such as a head.

    A unit's inputs (its records and their views) lie along the middle axis: (b, m, d) to (b, m, k). Float64, so that
    the arithmetic stays far inside the mechanism's slack.
    Source: Goodfellow 2015; Li et al. 2022, Section 4; norms by Opacus 1.6.
    """

    def __init__(self, network: torch.nn.Module, clip: float) -> None:
        """Wrap the network. Raises InputError for layers that cannot be clipped unit by unit."""
        check_trainable(network)
        try:
            from opacus.grad_sample import GradSampleModuleFastGradientClipping  # noqa: PLC0415 - heavy
        except ImportError as reason:
            raise InputError("training needs Opacus; install it: pip install 'patevolve[train]'") from reason
        self._network, self._clip = network.double(), clip
        self._passes = Passes(self._network)
        self._wrapped = GradSampleModuleFastGradientClipping(
            self._network, max_grad_norm=clip, use_ghost_clipping=True, loss_reduction="sum"
        )

    def sums(self, objective: Objective, chosen: NDArray[np.int64]) -> Floats:
        """Return the sum (p,) of the clipped gradients. Raises InputError where a parameter escapes the norms."""
        import torch  # noqa: PLC0415 - heavy: training alone

        parameters = parameters_of(self._network)
        self._begin()
        batch = objective.batch(chosen)
        batch[0].requires_grad_()  # Opacus' hooks on the first layer want a path through its input
        with self._passes:
            losses = objective.losses(self._wrapped, *batch)
        torch.autograd.backward(losses.sum(), retain_graph=True)
        check_gradients(self._network, "_norm_sample", len(chosen))
        norms = torch.stack([getattr(parameter, "_norm_sample") for parameter in parameters]).norm(dim=0)  # noqa: B009 - Opacus' own attribute
        self._wrapped.disable_hooks()
        self._wrapped.zero_grad(set_to_none=True)
        factors = self._clip / norms.clamp(min=self._clip)  # label: ghost-clip
        torch.autograd.backward((factors.detach() * losses).sum())
        return _gradients(parameters)

    def _begin(self) -> None:
        self._wrapped.enable_hooks()
        self._wrapped.zero_grad(set_to_none=True)
        # A pass that ran out of memory half-way must leave nothing behind that would stand in for this one.
        for parameter in self._network.parameters():
            for name, value in (("_norm_sample", None), ("_forward_counter", 0)):
                if hasattr(parameter, name):
                    setattr(parameter, name, value)
        for layer in self._network.modules():
            if hasattr(layer, "activations"):
                setattr(layer, "activations", [])  # noqa: B010 - Opacus' own attribute

    def close(self) -> None:
        """Take every hook off again: what is exported is the plain network with plain names."""
        self._passes.close()
        self._wrapped.to_standard_module()


class PerUnitGradients:
    """Clips gradients that ``torch.func`` forms unit by unit: for whole encoders, whose layers have no ghost norms."""

    def __init__(self, network: torch.nn.Module, clip: float) -> None:
        """Take a network. Raises InputError for layers that tie units together."""
        check_trainable(network)
        self._network, self._clip = network.double(), clip

    def sums(self, objective: Objective, chosen: NDArray[np.int64]) -> Floats:
        """Return the sum (p,) of the clipped gradients."""
        import torch  # noqa: PLC0415 - heavy: training alone

        values = {name: parameter.detach() for name, parameter in self._network.named_parameters()}
        names = [name for name, parameter in self._network.named_parameters() if parameter.requires_grad]
        batch = objective.batch(chosen)

        def loss(trained: dict[str, torch.Tensor], *unit: torch.Tensor) -> torch.Tensor:
            def applied(rows: torch.Tensor) -> Any:
                return torch.func.functional_call(self._network, {**values, **trained}, (rows,))

            return objective.losses(applied, *(part[None] for part in unit))[0]

        own = torch.func.grad(loss)
        each = torch.func.vmap(own, in_dims=(None, *(0 for _ in batch)))({name: values[name] for name in names}, *batch)
        rows = torch.cat([each[name].reshape(len(chosen), -1) for name in names], dim=1)
        factors = self._clip / rows.norm(dim=1, keepdim=True).clamp(min=self._clip)  # label: unit-clip
        return np.asarray((rows * factors).sum(dim=0).cpu().numpy(), np.float64)

    def close(self) -> None:
        """Do nothing: the network was never wrapped."""


def clipped_sum(clipper: Clipper, objective: Objective, chosen: NDArray[np.int64], size: int, physical: int) -> Floats:
    """Return the sum (size,) of the chosen units' clipped gradients, ``physical`` units at a time; zeros for no unit.

    Out of memory, half as many are taken at a time; the sum is the same, and it is one step whatever it takes.
    """
    total, start, at_once = np.zeros(size), 0, physical
    while start < len(chosen):
        try:
            total += clipper.sums(objective, chosen[start : start + at_once])
        except (RuntimeError, MemoryError) as reason:
            if not is_out_of_memory(reason) or at_once == 1:
                raise
            at_once = max(1, at_once // 2)
            log.warning("out of memory: %d units at a time from now on; the step stays one step", at_once)
            continue
        start += at_once
    return total


def _gradients(parameters: list[torch.nn.Parameter]) -> Floats:
    found = [parameter.grad for parameter in parameters]
    return np.concatenate([np.zeros(0), *(grad.cpu().numpy().ravel() for grad in found if grad is not None)])
