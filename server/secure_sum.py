"""The coordinator's side of the secure sum on the disk, and its two exchanges.

The file is no message and has none of a message's limits: 1,000 sites' masked vectors of 10^4 values take 86 MB.
Layout: length of the heads (8 bytes, little endian) · heads (canonical JSON) · the sum's journal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patevolve.server.cohort import missing
from patevolve.server.post import Wave
from patevolve.shared import wire
from patevolve.shared.envelopes import Action, Request, Response, batch_name, decode_head, encode_request
from patevolve.shared.errors import MessageError, QuorumError
from patevolve.shared.files import write_atomic
from patevolve.shared.institutions import Reply
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.signing import Identity, head_from_json
from patevolve.shared.schedule import Ask
from patevolve.shared.secagg.coordinator import CoordinatorSum
from patevolve.shared.secagg.spec import SumSpec
from patevolve.shared.tally import NoisyTally

FILE = "secagg.pv"
Accept = Callable[[str, Response], bytes]
Send = Callable[[Action, Mapping[str, bytes], Accept, int], Wave[bytes]]  # the last: replies that are enough


@dataclass(kw_only=True, eq=False)
class SecureSum:
    """The secure sums of one run.

    request:  makes a request of this run out of its parts
    heads:    of the sums under way, by the batch's name: each site's signed heads, one for each question
    """

    path: Path
    agreed: Agreed
    sum: CoordinatorSum
    request: Callable[[Action, tuple[bytes, ...]], Request]
    heads: dict[str, dict[str, list[str]]]

    def save(self) -> None:
        """Keep what was received: a killed coordinator sends the same requests again, and gets the same replies."""
        heads = wire.canonical_json(self.heads)
        data = b"".join([len(heads).to_bytes(8, "little"), heads, self.sum.export_state()])
        write_atomic(self.path, data, mode=0o600)

    def set_up(self, sites: Sequence[str], send: Send) -> None:
        """Collect the sites' keys, once in a run. Raises QuorumError under the plan's minimum."""
        if self.path.exists():
            return
        body = encode_request(self.request("setup", ()))

        def accept(site: str, response: Response) -> bytes:
            (part,) = _parts(site, response, 1)
            if self.sum.receive_advert(part) != site:
                raise MessageError(f"the key of another site than {site!r} found.")
            return part

        wave = send("setup", dict.fromkeys(sites, body), accept, len(sites))
        if len(wave.accepted) < self.sum.least:
            raise missing(self.agreed, "setup", len(wave.accepted), wave.refused)
        self.sum.close_setup()
        self.save()

    def ask(self, sites: Sequence[str], questions: Sequence[bytes], asks: Sequence[Ask], send: Send) -> list[Reply]:
        """Return the sums of the questions.

        Raises QuorumError if too few sites answered either exchange, or the sites' own reason.
        """
        batch, refusals = batch_name(questions), {}
        for over in set(self.heads) - {batch}:  # its sum is in the run's folder
            self.sum.forget(over)
            del self.heads[over]
        asking = self.sum.ask(batch, sum(ask.bounds.size for ask in asks))
        if batch not in self.heads:
            body = encode_request(self.request("ask", (self.sum.close_setup(), asking, *questions)))
            refusals = self._collect(batch, dict.fromkeys(sites, body), asks, send)
        self._unmask(self.sum.close_masked(batch), send)
        opened = self.sum.result(batch)
        signed = [texts for _, texts in sorted(self.heads[batch].items())]
        replies, start = [], 0
        for place, ask in enumerate(asks):
            values = opened.values[start : start + ask.bounds.size]
            std = math.sqrt(math.fsum([ask.mechanism.std**2] * len(opened.sites)))
            tally = NoisyTally(values=values, std=std)
            heads = tuple(head_from_json(texts[place]) for texts in signed)
            replies.append(Reply(tally=tally, sites=opened.sites, heads=heads, refusals=refusals))
            start += ask.bounds.size
        return replies

    def _collect(self, batch: str, bodies: Mapping[str, bytes], asks: Sequence[Ask], send: Send) -> dict[str, str]:
        """Hold the first exchange: masked vectors. Return the refusals."""
        heads: dict[str, list[str]] = {}

        def accept(site: str, response: Response) -> bytes:
            masked, *signed = _parts(site, response, 1 + len(asks))
            texts = [decode_head(head) for head in signed]
            if any(head_from_json(text).head.site != site for text in texts):
                raise MessageError(f"the head of another site than {site!r} found.")
            if self.sum.receive_masked(masked) != site:
                raise MessageError(f"the masked vector of another site than {site!r} found.")
            heads[site] = texts
            return masked

        wave = send("ask", bodies, accept, len(bodies))
        if len(wave.accepted) < self.sum.least:
            raise missing(self.agreed, asks[0].name, len(wave.accepted), wave.refused)
        self.sum.close_masked(batch)
        self.heads[batch] = heads
        self.save()  # before the survivors are named: a second set of survivors would be refused
        return dict(wave.refused)

    def _unmask(self, requests: Mapping[str, bytes], send: Send) -> None:
        def accept(site: str, response: Response) -> bytes:
            (part,) = _parts(site, response, 1)
            if self.sum.receive_unmasked(part) != site:
                raise MessageError(f"the shares of another site than {site!r} found.")
            return part

        bodies = {site: encode_request(self.request("unmask", (data,))) for site, data in requests.items()}
        wave = send("unmask", bodies, accept, self.sum.least_shares)
        self.save()
        if len(wave.accepted) < self.sum.least_shares:
            raise QuorumError(
                f"{len(wave.accepted)} of {len(bodies)} sites gave their shares; expected >= {self.sum.least_shares}. "
                f"Refused: {', '.join(f'{site} ({code})' for site, code in wave.refused.items()) or 'nobody'}."
            )


def open_sum(path: Path, spec: SumSpec, *, agreed: Agreed, identity: Identity, sites: Sequence[str]) -> SecureSum:
    """Return the run's secure sum as it stands in its folder. Raises MessageError, ParameterError for another's."""

    def request(action: Action, parts: tuple[bytes, ...]) -> Request:
        return Request(action=action, plan=spec.plan, run=spec.run, sites=tuple(sorted(sites)), parts=parts)

    file = path / FILE
    heads: dict[str, dict[str, list[str]]] = {}
    if file.exists():
        heads, journal = _read(file)
        found = CoordinatorSum.restore(journal, spec, identity=identity)
    else:
        found = CoordinatorSum(spec, identity=identity)
    return SecureSum(path=file, agreed=agreed, sum=found, request=request, heads=heads)


def _read(file: Path) -> tuple[dict[str, dict[str, list[str]]], bytes]:
    """Return the heads and the sum's journal. Raises MessageError for a file that this version did not write."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        return {str(batch): dict(heads) for batch, heads in json.loads(data[8:end]).items()}, data[end:]
    except (ValueError, TypeError, AttributeError) as reason:
        raise MessageError(f"{file} was not written by this version, or is damaged; begin another run.") from reason


def _parts(site: str, response: Response, count: int) -> tuple[bytes, ...]:
    if response.site != site or len(response.parts) != count or not all(response.parts):
        raise MessageError(f"a response of {response.site!r} of {len(response.parts)} parts found; {site!r} was asked.")
    return response.parts
