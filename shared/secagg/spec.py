"""What a secure sum is agreed on before it starts, by every site from its own copy of the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from patevolve.shared import checks
from patevolve.shared.errors import ParameterError
from patevolve.shared.wire import canonical_json

Trust = Literal["active", "curious"]
MAX_SITES = 10_000
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSpec:
    """The public parameters of all secure sums of one run.

    plan:         SHA-256 of the plan, hexadecimal
    run:          the run's name
    sites:        name -> Ed25519 public key (64 hexadecimal digits) of every site of the plan. Each site pins its own
                  copy: a coordinator that invents a peer has another specification and is refused
    coordinator:  Ed25519 public key of the coordinator, which signs its requests
    dropouts:     d, sites that may be lost at any step
    colluders:    t, sites that may tell the coordinator all that they know
    trust:        "active": the coordinator may lie about drop-outs; parameters with which a lie could pay are refused.
                  "curious": it keeps to the protocol and only looks. SENSITIVITY.md says what each gives
    names:        the sites in the order of every message's rows
    context:      SHA-256 of everything agreed: every key, signature and message of the run is bound to it
    """

    plan: str
    run: str
    sites: Mapping[str, str]
    coordinator: str
    dropouts: int = 0
    colluders: int = 0
    trust: Trust = "active"
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    context: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse names, keys and numbers that no run could use. Raises ParameterError."""
        for name, key in {"plan": self.plan, "coordinator": self.coordinator, **self.sites}.items():
            if not isinstance(key, str) or len(key) != 64 or not _HEX.issuperset(key):
                raise ParameterError(f"{name}={key!r} found; expected 64 lower-case hexadecimal digits.")
        if not isinstance(self.run, str) or not self.run or not all(isinstance(s, str) and s for s in self.sites):
            raise ParameterError("an empty name of the run or of a site found; expected text.")
        if len(set(self.sites.values())) != len(self.sites):
            raise ParameterError("two sites with one public key found; expected one identity per site.")
        checks.integer(sites=len(self.sites), at_least=2, at_most=MAX_SITES)
        checks.integer(dropouts=self.dropouts, at_least=0)
        checks.integer(colluders=self.colluders, at_least=0)
        if self.trust not in ("active", "curious"):
            raise ParameterError(f"trust={self.trust!r} found; expected 'active' or 'curious'.")
        if self.count - self.dropouts - self.colluders < 1:
            raise ParameterError(
                f"{self.count} sites less {self.dropouts} drop-outs less {self.colluders} colluders leave none honest."
            )
        # Computed once: with many sites they are asked for at every message.
        object.__setattr__(self, "sites", MappingProxyType(dict(self.sites)))
        object.__setattr__(self, "names", tuple(sorted(self.sites)))
        object.__setattr__(self, "context", _context(self))

    @property
    def count(self) -> int:
        """Number of sites, n."""
        return len(self.sites)


def _context(spec: SumSpec) -> str:
    fields = {
        "protocol": "patevolve secagg 3",
        "plan": spec.plan,
        "run": spec.run,
        "sites": dict(spec.sites),
        "coordinator": spec.coordinator,
        "dropouts": spec.dropouts,
        "colluders": spec.colluders,
        "trust": spec.trust,
    }
    return hashlib.sha256(canonical_json(fields)).hexdigest()
