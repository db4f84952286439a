"""Asking: each question at most once per run, its noisy sum kept on disk before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.institutions import Institutions, Reply, Voyage
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
        return self.ask_all({name: arrays or {}})[0]

    def ask_all(self, questions: Mapping[str, Mapping[str, NDArray[Any]]]) -> list[Estimate]:
        """Return the noisy sums of several questions; those that are new travel to the sites together."""
        asks = [find(self.asks, name) for name in questions]
        posed = [
            Question(kind=ask.kind, name=ask.name, plan=self.agreed.sha256, run=self.run, arrays=arrays)
            for ask, arrays in zip(asks, questions.values(), strict=True)
        ]
        hashes = [digest(encode_question(question)) for question in posed]
        kept = [self.folder.load_reply(ask.name, sha256) for ask, sha256 in zip(asks, hashes, strict=True)]
        # Questions that travelled together are asked together again: under masks their answers have one sum only.
        known = [reply for reply in kept if reply is not None]
        replies = known if len(known) == len(posed) else self._fresh(list(zip(posed, asks, hashes, strict=True)), kept)
        return [
            Estimate(values=estimate(reply.tally, ask.bounds), std=noise_std(reply.tally, ask.bounds))
            for ask, reply in zip(asks, replies, strict=True)
        ]

    def evolve(
        self, name: str, arrays: Mapping[str, NDArray[Any]], shape: tuple[int, int]
    ) -> Mapping[str, NDArray[np.float64]]:
        """Return each site's migrants of this ``shape``: the kept ones, or new ones from the sites' islands.

        What the plan charges for it is recorded as local: each site's own votes on its own island, in no sum.
        """
        ask = find(self.asks, name) if self.asked(name) else None
        question = Question(kind="islands", name=name, plan=self.agreed.sha256, run=self.run, arrays=arrays)
        sha256 = digest(encode_question(question))
        kept = self.folder.load_migrants(name, sha256)
        if kept is not None:
            return kept
        if ask is not None:
            self._record([(ask, sha256)])
        found = self.institutions.evolve(question, Voyage(shape=shape, ask=ask))
        if ask is not None:
            self.ledger.record_heads(self.run, self.asks.index(ask), found.heads)
        self.folder.save_migrants(name, sha256, found)
        return found.genomes

    def _fresh(self, questions: Sequence[tuple[Question, Ask, str]], kept: Sequence[Reply | None]) -> list[Reply]:
        """Ask the sites: each question is on record before it leaves, each sum before it is used; kept sums stay."""
        self._record([(ask, sha256) for _, ask, sha256 in questions])
        replies = []
        answered = self.institutions.ask_all([(question, ask) for question, ask, _ in questions])
        for (_, ask, sha256), reply, before in zip(questions, answered, kept, strict=True):
            if before is None:
                self.ledger.record_heads(self.run, self.asks.index(ask), reply.heads)
                self.folder.save_reply(ask.name, sha256, reply)
            replies.append(before or reply)
        return replies

    def _record(self, asks: Sequence[tuple[Ask, str]]) -> None:
        """Put questions on record before they leave."""
        keys = self.institutions.public_keys
        self.ledger.register_sites(keys)
        for ask, sha256 in asks:
            self.ledger.record_question(
                plan_sha256=self.agreed.sha256,
                run=self.run,
                question=ask.name,
                question_sha256=sha256,
                part=ask.part,
                event=ask.event,
                sites=keys,
                scope=ask.scope,
            )
