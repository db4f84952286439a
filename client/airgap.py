"""Taking part without any connection: a question comes as a file, the answer leaves as a file.

The request goes through the same station as over the network: same policy, same guard, same ledger, same replays.
"""

from __future__ import annotations

from pathlib import Path

from patevolve.client.home import open_home
from patevolve.client.joined import Joined
from patevolve.client.station import Station
from patevolve.shared.envelopes import decode_response
from patevolve.shared.files import write_atomic
from patevolve.shared.sealed import SealedAnswer, open_question, read_sealed, seal_answer


def answer_file(home: Path, joined: Joined, question: Path, out: Path, station: Station | None = None) -> SealedAnswer:
    """Answer a question file into an answer file, signed by the site, and return the answer.

    Raises MessageError, before the ledger is opened, unless the coordinator that the site joined signed the question
    for this very site. A refusal is an answer too: it leaves as a code, and its reason stands in the site's log.
    """
    found = open_question(read_sealed(question), coordinator=joined.coordinator, site=joined.site)
    opened = open_home(home, site=joined.site)
    body = (station or Station(home=home, data=Path(joined.data))).handle(found.action, found.body)
    answer = SealedAnswer(site=joined.site, action=found.action, question=found.sha256, body=body)
    write_atomic(out, seal_answer(answer, opened.identity))
    return answer


def codes_of(answer: SealedAnswer) -> tuple[str, ...]:
    """Return the codes of an answer, one for each part; empty text where the part was answered."""
    return decode_response(answer.body, answer.action).codes
