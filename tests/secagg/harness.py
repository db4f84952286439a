"""A run of the secure sum in one process, every message as bytes, for tests of the protocol and of attacks."""

import dataclasses
import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from patevolve.shared.privacy.signing import Identity
from patevolve.shared.secagg.coordinator import CoordinatorSum
from patevolve.shared.secagg.site import SiteSum
from patevolve.shared.secagg.spec import SumSpec


def identity(name=None):
    """Return an identity: a fresh one, or the one of this name, so that a graph (drawn from identities) is the same."""
    if name is None:
        return Identity(key=Ed25519PrivateKey.generate())
    return Identity(key=Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


@dataclasses.dataclass
class Run:
    """Sites a, b, c ... with keys; ``setup`` brings them to the first question."""

    spec: SumSpec
    identities: dict
    coordinator_identity: Identity
    sites: dict
    coordinator: CoordinatorSum

    def restart_site(self, name):
        state = self.sites[name].export_state()
        self.sites[name] = SiteSum.restore(state, self.spec, identity=self.identities[name])

    def restart_coordinator(self):
        state = self.coordinator.export_state()
        self.coordinator = CoordinatorSum.restore(state, self.spec, identity=self.coordinator_identity)

    def setup(self, *, lost=()):
        for name, site in self.sites.items():
            if name not in lost:
                self.coordinator.receive_advert(site.advert())
        data = self.coordinator.close_setup()
        for name, site in self.sites.items():
            if name not in lost:
                site.accept_keys(data)
        return data

    def mask(self, question, values, *, lost=()):
        ask = self.coordinator.ask(question, len(next(iter(values.values()))))
        for name, vector in values.items():
            if name not in lost:
                self.coordinator.receive_masked(self.sites[name].mask(ask, vector))

    def unmask(self, question, *, lost=()):
        for name, request in self.coordinator.close_masked(question).items():
            if name not in lost:
                self.coordinator.receive_unmasked(self.sites[name].unmask(request))
        return self.coordinator.result(question)


def new_run(count, *, dropouts=0, colluders=0, trust="active", plan="ab" * 32, run="r1", identities=None, chief=None):
    """Return a run that has not begun."""
    identities = identities or {name: identity(name) for name in (f"site{number:03d}" for number in range(count))}
    chief = chief or identity("coordinator")
    spec = SumSpec(
        plan=plan,
        run=run,
        sites={name: one.public_key for name, one in identities.items()},
        coordinator=chief.public_key,
        dropouts=dropouts,
        colluders=colluders,
        trust=trust,
    )
    sites = {name: SiteSum(spec, site=name, identity=one) for name, one in identities.items()}
    return Run(spec, identities, chief, sites, CoordinatorSum(spec, identity=chief))
