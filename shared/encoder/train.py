"""Training an encoder, or a head on a backbone's features, at one site: step after step, each charged before its noise.

The loop owns no randomness of its own: views and queues come from public streams, the sample and the noise from the
``Account`` that also charges. A trained network is a function of public values and of the released noisy sums alone, so
a run that was killed is resumed by replaying the sums that were stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.encoder.contrastive import Loss, Public, check_temperature, spread, unit_losses
from patevolve.shared.encoder.dpsgd import Clipper, GhostClipping, PerUnitGradients, clipped_sum, flat, load_flat
from patevolve.shared.errors import DataError, InputError, ParameterError
from patevolve.shared.randomness import stream

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
# Magnitude of an input beyond which something is wrong. No public network with its statistics reaches it: which records
# a site holds never decides whether it trains.
LARGEST = 1e100
REACH = 10.0  # features longer than this are scaled down: ghost norms of longer ones would drown in rounding
LEAST_CLIP = 0.1  # below it that rounding would no longer be far inside the mechanism's slack
WIDEST = 4.0  # times the length that the parameters began with: longer ones would amplify rounding beyond the slack
COLLAPSED = 0.2  # of the first public spread: below it the network maps everything to one place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Units:
    """A site's records as training reads them.

    views:    (v, n, ...) float64, each record under v public changes of view, v >= 2; features of norm at most REACH
    classes:  (n,) whole numbers from 0
    rows:     (u, r) positions of each unit's records, any position where ``weights`` is 0
    weights:  (u, r) 1 / number of the unit's records
    """

    views: Floats
    classes: NDArray[np.int64]
    rows: NDArray[np.int64]
    weights: Floats

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.rows)


def units_of(views: Floats, classes: NDArray[np.int64], names: NDArray[np.str_], count: int) -> Units:
    """Return the records grouped by their units' names. Raises DataError, before any charge, for what cannot train.

    count: the plan's number of classes
    """
    if len(views) < 2 or views.shape[1] != len(classes) or len(names) != len(classes):
        raise DataError(f"views of shape {views.shape} of {len(classes)} records found; expected two or more of each.")
    if not np.abs(views).max(initial=0.0) <= LARGEST:  # NaN is at most nothing
        raise DataError(
            f"a feature that is not finite or beyond {LARGEST:g} found; expected clean values. Inspect them."
        )
    if classes.dtype.kind not in "iu" or not ((classes >= 0) & (classes < count)).all():
        raise DataError(f"labels outside 0 to {count - 1} found; expected the plan's classes. Inspect the labels.")
    found, which, sizes = np.unique(names, return_inverse=True, return_counts=True)
    rows = np.zeros((len(found), int(sizes.max(initial=1))), np.int64)
    weights = np.zeros(rows.shape)
    order = np.argsort(which, kind="stable")
    column = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows[which[order], column] = order
    weights[which[order], column] = 1.0 / sizes[which[order]]  # label: unit-average
    return Units(views=_within_reach(views), classes=classes.astype(np.int64), rows=rows, weights=weights)


def _within_reach(views: Floats) -> Floats:
    """Return features (v, n, d) scaled down, each by itself, to norm at most REACH; images (v, n, c, h, w) stay."""
    if views.ndim != 3:
        return views
    norms = np.sqrt(np.square(views).sum(axis=-1, keepdims=True))
    return np.asarray(views * (REACH / np.maximum(norms, REACH)), np.float64)  # label: feature-reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps of one setting.

    batch: expected units in a step's sample, by which the noisy sum is divided: public, for the true number is not
    """

    steps: int
    batch: float
    temperature: float

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(steps=self.steps, at_least=1)
        checks.positive(batch=self.batch)
        check_temperature(self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a network is trained; all of it public.

    stretches:   one after another
    supervised:  weight of the loss against class prototypes, 0 to 1
    rate:        learning rate of the first step; it falls linearly to a tenth
    queue:       public negatives of a step
    physical:    units whose gradients are formed at once; changes neither result nor cost
    ghost:       clip by ghost norms (heads) or by per-unit gradients (whole encoders)
    seed:        of the public streams
    """

    stretches: tuple[Stretch, ...]
    clip: float = 1.0
    rate: float = 1.0
    supervised: float = 0.0
    queue: int = 512
    physical: int = 256
    ghost: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        if not self.stretches:
            raise ParameterError("no stretch of steps found; expected one or more.")
        checks.non_negative(above_least=checks.positive(clip=self.clip) - LEAST_CLIP)
        checks.positive(rate=self.rate)
        checks.integer(queue=self.queue, at_least=1)
        checks.integer(physical=self.physical, at_least=1)
        Loss(supervised=self.supervised)

    @property
    def steps(self) -> tuple[Stretch, ...]:
        """The stretch of every step."""
        return tuple(stretch for stretch in self.stretches for _ in range(stretch.steps))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bank:
    """Public inputs with classes, from which queues and prototypes are embedded anew at each step: (N, ...), (N,)."""

    inputs: Floats
    classes: NDArray[np.int64]


class Account(Protocol):
    """Where a step is charged, sampled, noised and kept."""

    def stored(self, step: int) -> Floats | None:
        """Return the noisy sum that this step released before, or None."""

    def sample(self, step: int, units: int) -> NDArray[np.bool_]:
        """Charge the step, then return which of the units enter it."""

    def release(self, step: int, total: Floats, units: int) -> Floats:
        """Return the noisy sum of a charged step's clipped sum over its sampled units, once it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """What training ends with.

    vector:     (p,) trainable parameters
    steps:      steps taken; fewer than planned if the public spread collapsed
    spreads:    the public spread before the first step and after each
    """

    vector: Floats
    steps: int
    spreads: tuple[float, ...]


class ContrastiveObjective:
    """The contrastive losses of a site's units at one step."""

    def __init__(self, units: Units, pair: tuple[int, int], public: Public, loss: Loss, device: str) -> None:
        """Compare two of the units' views, the same two for every unit."""
        import torch  # noqa: PLC0415 - heavy: training alone

        self._units, self._pair, self._public, self._loss = units, list(pair), public, loss
        self._tensor: Callable[[Any], Any] = lambda values: torch.from_numpy(np.ascontiguousarray(values)).to(device)

    def batch(self, chosen: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Return (b, r, 2, ...) views, (b, r) weights and (b, r) classes of these units."""
        rows = self._units.rows[chosen]
        views = np.moveaxis(self._units.views[self._pair][:, rows], 0, 2)
        return self._tensor(views), self._tensor(self._units.weights[chosen]), self._tensor(self._units.classes[rows])

    def losses(self, network: Callable[[Any], Any], *batch: torch.Tensor) -> torch.Tensor:
        """Return (b,) losses."""
        views, weights, classes = batch
        units, records, pair = views.shape[:3]
        flat_features = views.dim() == 4  # features are (b, r, 2, d); images have more axes
        rows = views.flatten(1, 2) if flat_features else views.flatten(0, 2)
        embedded = network(rows).reshape(units, records, pair, -1)
        return unit_losses(embedded, weights, classes, self._public, self._loss)


def train(
    network: torch.nn.Module,
    units: Units,
    bank: Bank,
    settings: Settings,
    account: Account,
    *,
    device: str = "cpu",
    tick: Callable[[int], None] = lambda _: None,
) -> Trained:
    """Train the network in place, step by step, and return its parameters; stored steps are replayed at no cost.

    Stops early, leaving the rest uncharged, where the spread of *public* embeddings falls below COLLAPSED of the first:
    a function of released values alone. The parameters before that step are then returned.
    Raises DataError for a site without units, before any charge; InputError if a parameter is no longer finite.
    """
    if len(units) == 0:
        raise DataError(
            "no unit to train on found; expected at least one. Take part without a head, or check the data."
        )
    clipper: Clipper = (GhostClipping if settings.ghost else PerUnitGradients)(network.to(device), settings.clip)
    vector, plan = flat(network), settings.steps
    most = WIDEST * max(1.0, float(np.linalg.norm(vector)))
    spreads, taken = [spread(embed(network, bank.inputs, device))], 0
    try:
        for step, stretch in enumerate(plan):
            noisy = account.stored(step)
            if noisy is None:
                sampled = account.sample(step, len(units))
                objective = objective_at(network, units, bank, settings=settings, step=step, device=device)
                chosen = np.flatnonzero(sampled)
                total = clipped_sum(clipper, objective, chosen, len(vector), settings.physical)
                noisy = account.release(step, total, len(chosen))
            rate = settings.rate * (1 - 0.9 * step / len(plan))
            moved = _shortened(finite(vector - rate / stretch.batch * noisy), most)
            load_flat(network, moved)
            spreads.append(spread(embed(network, bank.inputs, device)))
            if not spreads[-1] >= COLLAPSED * spreads[0]:
                load_flat(network, vector)
                break
            vector, taken = moved, step + 1
            tick(step)
    finally:
        clipper.close()
    return Trained(vector=vector, steps=taken, spreads=tuple(spreads))


def _shortened(vector: Floats, most: float) -> Floats:
    """Return the parameters, scaled down to length at most ``most``: a function of released values alone."""
    largest = float(np.abs(vector).max(initial=1.0))  # first, so that no square overflows
    length = largest * float(np.linalg.norm(vector / largest))
    return np.asarray(vector * (most / max(length, most)), np.float64)  # label: parameter-length


def objective_at(
    network: torch.nn.Module, units: Units, bank: Bank, *, settings: Settings, step: int, device: str
) -> ContrastiveObjective:
    """Return the step's objective: two public views of every record, a public queue, public prototypes."""
    first, second = stream(settings.seed, "views", step).choice(len(units.views), size=2, replace=False).tolist()
    chosen = stream(settings.seed, "queue", step).choice(
        len(bank.inputs), size=min(settings.queue, len(bank.inputs)), replace=False
    )
    loss = Loss(temperature=settings.steps[step].temperature, supervised=settings.supervised)
    public = Public(negatives=embed(network, bank.inputs[chosen], device), prototypes=prototypes(network, bank, device))
    return ContrastiveObjective(units, (first, second), public, loss, device)


def identity(size: int) -> torch.nn.Module:
    """Return the linear head that leaves public features as they are: where training a head begins."""
    import torch  # noqa: PLC0415 - heavy: training alone

    head = torch.nn.Linear(size, size, bias=False, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.eye(size, dtype=torch.float64))
    return head


def embed(network: torch.nn.Module, inputs: Floats, device: str = "cpu") -> torch.Tensor:
    """Return public inputs' embeddings (N, k), constants to any gradient."""
    import torch  # noqa: PLC0415 - heavy: training alone

    with torch.no_grad():
        return torch.as_tensor(network(torch.from_numpy(inputs).to(device)))


def prototypes(network: torch.nn.Module, bank: Bank, device: str = "cpu") -> torch.Tensor:
    """Return (classes, k) means of the bank's embeddings by class."""
    import torch  # noqa: PLC0415 - heavy: training alone

    embedded = embed(network, bank.inputs, device)
    classes = torch.from_numpy(bank.classes).to(device)
    return torch.stack([embedded[classes == cls].mean(dim=0) for cls in range(int(bank.classes.max()) + 1)])


def finite(vector: Floats) -> Floats:
    """Return the parameters. Raises InputError if one is not finite: such a network is never stored or exported."""
    if not np.isfinite(vector).all():
        raise InputError(
            "a parameter that is not finite found after a step; nothing is exported. Lower the learning rate."
        )
    return vector


def device_of(wanted: str = "auto") -> str:
    """Return "cuda" where a GPU is at hand, or else "cpu". Raises InputError for a GPU that is asked for and absent."""
    import torch  # noqa: PLC0415 - heavy: training alone

    if wanted not in {"auto", "cpu", "cuda"}:
        raise InputError(f"device {wanted!r} found; expected auto, cpu or cuda.")
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise InputError("no GPU that PyTorch can use found; install a CUDA build of PyTorch, or train on the cpu.")
    return "cuda" if there and wanted != "cpu" else "cpu"
