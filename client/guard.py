"""Charge, commit, then draw: the only way from an exact tally to an answer.

The order is the guarantee (design rule 4): policy and budget are checked and the charge is on the disk before the
first noise byte is drawn; the answer is stored before it is returned. A crash between the charge and the stored answer
costs that charge again on the retry; a retry after the answer was stored returns the same bytes at no cost.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from patevolve.client.policy import SitePolicy
from patevolve.shared.messages import Answer, Migrants, Question, encode_answer, encode_migrants
from patevolve.shared.privacy.ledger import AnswerKey, Charge, Ledger
from patevolve.shared.privacy.signing import Identity, head_to_json, sign_head
from patevolve.shared.protocols import Genomes
from patevolve.shared.randomness import NoiseSource
from patevolve.shared.schedule import Ask
from patevolve.shared.tally import ExactTally, NoisyTally

log = logging.getLogger(__name__)

SALT = 16  # bytes: nobody tries them all
NoiseFor = Callable[[str, str], NoiseSource]  # (site, question hash) -> the noise of that answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One site's gate between its private sums and the world."""

    policy: SitePolicy
    ledger: Ledger
    identity: Identity
    noise: NoiseFor

    def stored(self, key: AnswerKey) -> bytes | None:
        """Return the bytes already given to this question, if any. Raises MessageError if its name was used before."""
        return self.ledger.answer(key)

    def release(self, question: Question, ask: Ask, key: AnswerKey, exact: ExactTally) -> bytes:
        """Charge the ledger, draw the noise, store the answer and return its bytes.

        Raises BudgetError (nothing is written) if the policy's cap does not cover the charge.
        """
        charge, noisy = self._noised(ask, key, exact)
        answer = Answer(
            question=key.question_sha256,
            site=self.policy.site,
            values=noisy.values,
            std=noisy.std,
            full=ask.full,
            head=self._head(),
            salt=secrets.token_hex(SALT),  # label: salted-before-chained
        )
        return self._kept(question.name, key, encode_answer(answer), charge)

    def emigrate(self, ask: Ask, key: AnswerKey, exact: ExactTally, choose: Callable[[NoisyTally], Genomes]) -> bytes:
        """Charge the ledger, draw the noise, store what ``choose`` makes of the noised tally and return its bytes.

        ``choose`` sees nothing else, so that the migrants are post-processing of a charged tally.
        Raises BudgetError (nothing is written) if the policy's cap does not cover the charge.
        """
        charge, noisy = self._noised(ask, key, exact)
        genomes = choose(noisy)  # label: migrants-from-noise-alone
        migrants = Migrants(question=key.question_sha256, site=self.policy.site, genomes=genomes, head=self._head())
        return self._kept(key.question, key, encode_migrants(migrants), charge)

    def _noised(self, ask: Ask, key: AnswerKey, exact: ExactTally) -> tuple[Charge, NoisyTally]:
        charge = self.ledger.charge(
            key,
            part=ask.part,
            event=ask.mechanism.event(),
            cap=self.policy.budget,
            scope=ask.scope,
        )  # label: charge-before-draw
        return charge, ask.mechanism.release(exact, self.noise(self.policy.site, key.question_sha256))

    def _head(self) -> str:
        return head_to_json(sign_head(self.ledger.head(), self.identity))

    def _kept(self, name: str, key: AnswerKey, data: bytes, charge: Charge) -> bytes:
        self.ledger.store_answer(key, data, charge.seq)  # label: store-before-send
        log.info("%s answered %s under charge %d", self.policy.site, name, charge.seq)
        return data
