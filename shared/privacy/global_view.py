"""The coordinator's ledger for a reader that may not write, such as a page that is looked at while a run goes on."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patevolve.shared.privacy import accountant, events
from patevolve.shared.privacy.chain import parse, walk
from patevolve.shared.privacy.chain_file import verified
from patevolve.shared.privacy.global_ledger import GLOBAL_LEDGER, HEADS, QUESTION, verify_global
from patevolve.shared.privacy.signing import head_from_json

if TYPE_CHECKING:
    import sqlite3

    from patevolve.shared.privacy.accountant import Curve, Epsilon
    from patevolve.shared.privacy.chain import Head
    from patevolve.shared.privacy.events import Event


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GlobalView:
    """What a verified coordinator's ledger says.

    questions:  the bodies of the recorded questions, in order
    heads:      by site, the last head that it signed
    """

    questions: tuple[Mapping[str, Any], ...]
    heads: Mapping[str, Head]

    def epsilon(self, delta: float, site: str | None = None, unseen: Iterable[Event] = ()) -> Epsilon:
        """Return ε of what ``site`` was asked, or of all that was asked, at ``delta``.

        unseen: what each site charges in its own ledger alone, such as its private head

        All: shared tallies add up, and of mechanisms local to a site the worst site counts at each order, as in
        ``GlobalLedger.epsilon``. It bounds what was charged: a site that refused was not.
        """
        shared = [row for row in self.questions if row["scope"] == "shared" and site in {None, *row["sites"]}]
        local = [row for row in self.questions if row["scope"] == "local"]
        sites = {name for row in local for name in row["sites"]} if site is None else {site}
        curves = [_curve([row for row in local if name in row["sites"]]) for name in sites]
        worst = np.max(curves, axis=0) if curves else np.zeros(len(accountant.ORDERS))
        return accountant.epsilon(_curve(shared) + worst + accountant.compose(list(unseen)), delta)


def _curve(rows: list[Mapping[str, Any]]) -> Curve:
    return accountant.compose([events.from_record(row["event"]) for row in rows])


def view_global(path: str | os.PathLike[str]) -> GlobalView:
    """Verify the ledger and return what it says. Raises LedgerError, and only that, at the first fault."""
    target = Path(path).absolute()
    verify_global(target)
    return verified(target, GLOBAL_LEDGER, functools.partial(_read, path=target))


def _read(connection: sqlite3.Connection, *, path: Path) -> GlobalView:
    questions: list[Mapping[str, Any]] = []
    heads: dict[str, Head] = {}
    for link in walk(lambda statement, values: connection.execute(statement, values).fetchall(), path):
        body = parse(link.body, where=f"{path}: row {link.seq}")
        if link.kind == QUESTION:
            questions.append(body)
        if link.kind == HEADS:
            heads |= {one.head.site: one.head for one in map(head_from_json, body["heads"])}
    return GlobalView(questions=tuple(questions), heads=heads)
