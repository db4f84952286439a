"""The public generator and encoder that a plan names: the same objects at every site and at the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from patevolve.shared.encoder.table import TableEncoder
from patevolve.shared.generators.tabular import Tabular
from patevolve.shared.plan import Plan
from patevolve.shared.protocols import Encoder, Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a run computes with, all of it public."""

    generator: Generator
    encoder: Encoder


def tools_of(plan: Plan) -> Tools:
    """Return the plan's generator and encoder."""
    schema = plan.data.columns
    return Tools(generator=Tabular(schema=schema), encoder=TableEncoder(schema=schema))
