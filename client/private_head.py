"""A site's private head: trained once under a plan, each step charged to the site's own ledger, and kept in its folder.

The head never leaves the site. It is a function of public values and of the noisy sums that the ledger stored, so that
training which was killed is resumed by the same call: a stored step is replayed, a charged step without a stored sum is
charged again and drawn afresh (encoder/SENSITIVITY.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patevolve.client.guard import NoiseFor
from patevolve.client.home import SiteHome
from patevolve.client.private_index import checked_units
from patevolve.shared.data.records import Records
from patevolve.shared.data.shard import bounded, held_out
from patevolve.shared.encoder.export import head_network, to_onnx, write_model
from patevolve.shared.encoder.head import Head, load_head, save_head
from patevolve.shared.encoder.temperature import search_temperature
from patevolve.shared.encoder.train import Bank, Settings, Stretch, identity, train, units_of
from patevolve.shared.encoder.views import changed_views
from patevolve.shared.errors import BudgetError, DataError, InputError, PolicyError
from patevolve.shared.noise.subsampled import SubsampledGaussianStep
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.plan_head import scheduled
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import SubsampledGaussian, to_record
from patevolve.shared.privacy.head_part import HeadPart, head_part
from patevolve.shared.privacy.ledger import AnswerKey, Ledger
from patevolve.shared.randomness import NoiseSource, stream
from patevolve.shared.tools import Tools, samples

HEADS = "heads"
PART = RUN = "head"  # as the ledger names them: a site has one head under a plan, whatever runs use it
BANK = 100  # public images of each class from which queues and prototypes are drawn

Floats = NDArray[np.float64]


def head_of(home: SiteHome, agreed: Agreed) -> Head | None:
    """Return the site's head under the plan, None if the plan has none. Raises DataError until it was trained."""
    if not agreed.plan.encoder.head.share:
        return None
    path = _path(home, agreed)
    if not path.exists():
        raise DataError(
            f"the plan asks for a private head and {home.policy.site} has none yet. Train it once, which is charged: "
            f"patevolve client train PLAN --data ... --home {home.path}"
        )
    return load_head(path)


def steps_left(ledger: Ledger, agreed: Agreed) -> tuple[SubsampledGaussian, ...]:
    """Return what the plan's head still costs the site: the steps without a stored sum."""
    part = head_part(agreed.plan)
    if part is None:
        return ()
    keys = (_key(agreed, ledger.site, part, step) for step in range(len(part.charges)))
    return tuple(event for event, key in zip(part.charges, keys, strict=True) if ledger.answer(key) is None)


def train_head(
    home: SiteHome,
    ledger: Ledger,
    records: Records,
    agreed: Agreed,
    tools: Tools,
    *,
    noise: NoiseFor,
    device: str = "cpu",
    tick: Callable[[int], None] = lambda _: None,
) -> Head:
    """Return the site's head under the plan: the one in its folder, or else newly trained, charged step by step.

    Raises BudgetError before a step that the policy's cap does not cover, DataError for records that cannot train;
    InputError for a plan without a head, or without PyTorch and Opacus. Nothing is charged by an error before step 1.
    """
    plan, part = agreed.plan, head_part(agreed.plan)
    if part is None:
        raise InputError("the plan asks for no head ([encoder.head] has no share); there is nothing to train.")
    if _path(home, agreed).exists():
        return load_head(_path(home, agreed))
    if not ledger.affords(steps_left(ledger, agreed), home.policy.budget):
        raise BudgetError(
            f"the cap ε = {home.policy.budget.epsilon:g} does not cover the head's steps that are left; nothing was "
            f"charged. Raise the cap in the site's policy, or stay away."
        )
    _require_training()
    kept = bounded(home.secret, records, plan.privacy.records_per_unit)
    if checked_units(kept.units, plan) < home.policy.minimum_units:
        raise PolicyError(f"{home.policy.site}: fewer units found than the policy's {home.policy.minimum_units}.")
    own = kept.pick(~held_out(home.secret, kept.units, plan.data.hold_out))
    views = _encoded_views(own.values, plan, tools, "head views")
    units = units_of(views, own.classes, own.units, len(plan.data.classes))
    bank, settings = _public(plan, part, tools)
    network = identity(tools.encoder.dimension)
    account = StepAccount(home=home, ledger=ledger, agreed=agreed, part=part, noise=noise)
    done = train(network, units, bank, settings, account, device=device, tick=tick)
    size = tools.encoder.dimension
    about = {
        "plan": agreed.sha256,
        "site": home.policy.site,
        "steps": done.steps,
        "noise_multiplier": part.noise_multiplier,
        "public_spread": [done.spreads[0], done.spreads[-1]],
    }
    head = Head(weights=done.vector.reshape(size, size), about=about)
    save_head(_path(home, agreed), head)
    return head


def export_head(path: Path, head: Head, agreed: Agreed, tools: Tools) -> str:
    """Write the head as one ONNX file with a card, for the site's own tools; return its SHA-256. It stays private."""
    part = head_part(agreed.plan)
    if part is None:
        raise InputError("the plan asks for no head ([encoder.head] has no share); there is nothing to export.")
    bank, _ = _public(agreed.plan, part, tools)
    model = to_onnx(head_network(head.weights), bank.inputs.astype(np.float32), ("features", "embeddings"))
    spent = accountant.epsilon(accountant.compose(part.events), agreed.plan.privacy.delta)
    about = {
        "what": "a site's private head: (n, features) of the plan's public encoder to (n, embeddings) of norm below 1",
        "not to be given away": "its training was noised for the votes of this site, and for nobody else to hold it",
        "plan": f"{agreed.plan.name}, SHA-256 {agreed.sha256}",
        "site": head.about["site"],
        "training": f"{head.about['steps']} steps of DP-SGD, noise {part.noise_multiplier:.4g} times the clip",
        "ε of the training alone": f"{spent.epsilon:.4g} at δ = {agreed.plan.privacy.delta:g}",
    }
    return write_model(path, model, about, mode=0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """The ledger's side of each step: charge, commit, then draw; the noisy sum is stored before it is used."""

    home: SiteHome
    ledger: Ledger
    agreed: Agreed
    part: HeadPart
    noise: NoiseFor
    _open: dict[int, tuple[int, NoiseSource]] = field(default_factory=dict)

    def stored(self, step: int) -> Floats | None:
        """Return the noisy sum that this step released before, or None."""
        data = self.ledger.answer(_key(self.agreed, self.ledger.site, self.part, step))
        return None if data is None else np.frombuffer(data, np.dtype("<f8")).astype(np.float64)

    def sample(self, step: int, units: int) -> NDArray[np.bool_]:
        """Charge the step, then return which of the units enter it."""
        key = _key(self.agreed, self.ledger.site, self.part, step)
        charge = self.ledger.charge(
            key,
            part=PART,
            event=self.part.charges[step],
            cap=self.home.policy.budget,
            scope="local",
        )  # label: head-charge-before-draw
        source = self.noise(self.home.policy.site, key.question_sha256)
        self._open[step] = (charge.seq, source)
        return self._mechanism(step).sample(units, source)

    def release(self, step: int, total: Floats, units: int) -> Floats:
        """Return the noisy sum of a charged step, once it is stored. A step is released once for each charge."""
        seq, source = self._open.pop(step)
        noisy = self._mechanism(step).release_sum(total, units, source)
        key = _key(self.agreed, self.ledger.site, self.part, step)
        self.ledger.store_answer(key, noisy.astype("<f8").tobytes(), seq)  # label: head-store-before-use
        self.home.keep_head(self.ledger.head())
        return noisy

    def _mechanism(self, step: int) -> SubsampledGaussianStep:
        return SubsampledGaussianStep(
            noise_multiplier=self.part.noise_multiplier,
            sample_rate=self.part.rates[step],
            clip=self.agreed.plan.encoder.head.clip,
        )


def _key(agreed: Agreed, site: str, part: HeadPart, step: int) -> AnswerKey:
    asked = json.dumps({"head": step, **to_record(part.charges[step])}, sort_keys=True)
    return AnswerKey(
        plan_sha256=agreed.sha256,
        run=RUN,
        question=f"{PART}/{step + 1}",
        question_sha256=hashlib.sha256(f"{agreed.sha256} {asked}".encode()).hexdigest(),
        cohort_sha256=hashlib.sha256(f"alone {site}".encode()).hexdigest(),
    )


def _path(home: SiteHome, agreed: Agreed) -> Path:
    return home.path / HEADS / f"{agreed.sha256}.npz"


def _require_training() -> None:
    try:
        import importlib  # noqa: PLC0415 - for this check alone

        for name in ("torch", "opacus"):
            importlib.import_module(name)
    except ImportError as reason:
        raise InputError(
            f"training a head needs {reason.name}; install it: pip install 'patevolve[train]'. Voting with a trained "
            f"head does not need it."
        ) from reason


def _encoded_views(values: NDArray[np.uint8], plan: Plan, tools: Tools, name: str) -> Floats:
    """Return (v, n, d) public features of every record under the plan's public changes of view."""
    views = changed_views(values, stream(plan.seed, name), plan.encoder.head.views)
    return np.stack([tools.encoder.encode(view) for view in views])


def _public(plan: Plan, part: HeadPart, tools: Tools) -> tuple[Bank, Settings]:
    """Return the bank of public features and the settings of training; the temperature is searched if the plan says."""
    values, classes = samples(tools.generator, len(plan.data.classes), BANK, (plan.seed, "head bank"))
    head = plan.encoder.head

    def settings(temperatures: tuple[float, ...]) -> Settings:
        stretches = tuple(
            Stretch(steps=1, batch=batch, temperature=scheduled(temperatures, step, head.steps))
            for step, batch in enumerate(part.batches)
        )
        return Settings(stretches=stretches, clip=head.clip, rate=head.rate, supervised=head.supervised, seed=plan.seed)

    chosen = settings(head.temperature or (1.0,))
    if not head.temperature:
        order = stream(plan.seed, "head search").permutation(len(values))
        views = _encoded_views(values[order], plan, tools, "head views")
        chosen = settings((search_temperature(views, classes[order], chosen),))
    return Bank(inputs=tools.encoder.encode(values), classes=classes), chosen
