"""What would make a unit's clipped gradient depend on other units, or leave a parameter unclipped: refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from patevolve.shared.errors import InputError

if TYPE_CHECKING:
    import torch

_BATCH = ("BatchNorm", "SyncBatchNorm", "LazyBatchNorm")
_OUT_OF_MEMORY = "out of memory"


def check_trainable(network: torch.nn.Module) -> None:
    """Raise InputError for a layer that mixes the units of a batch, or for weights that two layers share."""
    for name, layer in network.named_modules():
        kind = type(layer).__name__
        if kind.startswith(_BATCH):
            raise InputError(
                f"layer {name or '(the network itself)'!r} is {kind}, whose statistics tie a batch's records together "
                f"even in evaluation; put torch.nn.GroupNorm(8, channels) in its place."
            )
        if getattr(layer, "track_running_stats", False):
            raise InputError(
                f"layer {name!r} ({kind}) keeps running statistics of private records; set track_running_stats=False."
            )
    seen: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        other = seen.setdefault(id(parameter), name)
        if other != name and parameter.requires_grad:
            raise InputError(
                f"parameters {other!r} and {name!r} are one tensor; its gradient would be clipped in parts. Untie them."
            )


def check_gradients(network: torch.nn.Module, kept: str, units: int) -> None:
    """Raise InputError unless every trainable parameter has one entry per unit of the batch under the name ``kept``."""
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        found = getattr(parameter, kept, None)
        if found is None:
            raise InputError(
                f"parameter {name!r} got no gradient for each unit: its layer is unused, or of a kind without ghost "
                f"norms. Freeze or remove it, or train by per-unit gradients."
            )
        if len(found) != units:
            raise InputError(
                f"parameter {name!r} has {len(found)} gradients for {units} units; expected one each. Keep the units "
                f"on the first axis of every layer."
            )


class Passes:
    """Lets each layer with trainable parameters run once in a forward pass, as ghost norms need it."""

    def __init__(self, network: torch.nn.Module) -> None:
        """Watch every layer that has trainable parameters of its own."""
        self._ran: set[str] | None = None
        self._handles = [
            layer.register_forward_pre_hook(self._watching(name))
            for name, layer in network.named_modules()
            if any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
        ]

    def _watching(self, name: str) -> Callable[..., None]:
        def watch(*_: object) -> None:
            # The norm of the sum of two passes' gradients is not that of its parts.
            if self._ran is None:
                return
            if name in self._ran:
                raise InputError(
                    f"layer {name!r} ran twice in one pass; ghost clipping needs once. Stack the views along the "
                    f"middle axis, or train by per-unit gradients."
                )
            self._ran.add(name)

        return watch

    def __enter__(self) -> None:
        """Begin a forward pass that is watched."""
        self._ran = set()

    def __exit__(self, *_: object) -> None:
        """End it, however it ended."""
        self._ran = None

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()


def is_out_of_memory(reason: BaseException) -> bool:
    """Return whether an error says that the device's memory is full."""
    return isinstance(reason, MemoryError) or (isinstance(reason, RuntimeError) and _OUT_OF_MEMORY in str(reason))
