"""Asking: each question at most once per run, its noisy sum kept on disk before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.institutions import Institutions, Reply
from patevolve.shared.messages import Question, digest, encode_question
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.runfolder import RunFolder
from patevolve.shared.schedule import Ask, find
from patevolve.shared.votes.lattice import estimate, noise_std


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """A noisy sum in units of ballots: values with unbiased noise of standard deviation ``std``."""

    values: NDArray[np.float64]
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """One run's questions, their sites and where the replies are kept."""

    agreed: Agreed
    asks: tuple[Ask, ...]
    institutions: Institutions
    folder: RunFolder
    ledger: GlobalLedger
    run: str

    def asked(self, name: str) -> bool:
        """Return whether the plan has this question."""
        return any(ask.name == name for ask in self.asks)

    def ask(self, name: str, arrays: Mapping[str, NDArray[Any]] | None = None) -> Estimate:
        """Return the noisy sum: the kept one if the question was asked before, else a new one from the sites."""
        ask = find(self.asks, name)
        question = Question(kind=ask.kind, name=name, plan=self.agreed.sha256, run=self.run, arrays=arrays or {})
        sha256 = digest(encode_question(question))
        reply = self.folder.load_reply(name, sha256) or self._fresh(question, ask, sha256)
        return Estimate(values=estimate(reply.tally, ask.bounds), std=noise_std(reply.tally, ask.bounds))

    def _fresh(self, question: Question, ask: Ask, sha256: str) -> Reply:
        keys = self.institutions.public_keys
        for site, key in keys.items():
            self.ledger.register_site(site, key)
        self.ledger.record_question(
            plan_sha256=self.agreed.sha256,
            run=self.run,
            question=ask.name,
            question_sha256=sha256,
            part=ask.part,
            event=ask.event,
            sites=keys,
        )
        reply = self.institutions.ask(question, ask)
        self.ledger.record_heads(self.run, self.asks.index(ask), reply.heads)
        self.folder.save_reply(question.name, sha256, reply)
        return reply
