"""Sites without any connection: the run's requests become files to carry, and their answers are carried back.

``FilePost`` is the transport of the one loop in ``shared/rounds.py``, as Flower's grid is. A run goes on as far as
the files that have come allow, then stops and says which are wanted; called again it resumes, with nothing asked anew.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patevolve.server.post import Letter, Timing
from patevolve.server.run import Settings, coordinate
from patevolve.shared.envelopes import OK, decode_response
from patevolve.shared.errors import InputError, MessageError, PatevolveError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.signing import Identity, load_identity
from patevolve.shared.sealed import SealedQuestion, open_answer, read_sealed, seal_question

OUT, IN, KEYS = "out", "in", "keys.json"
TIMING = Timing(deadline=0.5, patience=60.0, rest=60.0, poll=0.05)  # files are there or they are not


class WaitingError(PatevolveError):
    """The run waits for answers that have to be carried; nothing is wrong."""

    exit_code = 13
    code = "waiting"


@dataclass(kw_only=True, eq=False)
class FilePost:
    """Letters as files below a folder: questions in ``out``, answers in ``in``.

    sites:    their names; a site's node is its position, counted from 1
    wanted:   question files of this call without an answer
    """

    path: Path
    sites: Sequence[str]
    identity: Identity
    wanted: dict[str, Path] = field(default_factory=dict)

    def nodes(self) -> Collection[int]:
        """Return every site's node: by file, all of them can be reached."""
        return range(1, len(self.sites) + 1)

    def push(self, letters: Sequence[Letter], ttl: float) -> Sequence[str]:
        """Write a question file for each letter; the same letter is the same file."""
        del ttl
        ids = []
        for letter in letters:
            question = SealedQuestion(site=self.sites[letter.node - 1], action=letter.action, body=letter.data)
            path = self.path / OUT / f"site-{letter.node:03d}-{letter.action}-{question.sha256[:12]}.pv"
            if not path.exists():
                write_atomic(path, seal_question(question, self.identity))
            self.wanted[question.sha256] = path
            ids.append(question.sha256)
        return ids

    def pull(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Return the answers that have been collected."""
        found: dict[str, bytes | None] = {}
        for sha256 in ids:
            path = self.path / IN / f"{sha256}.pv"
            if path.exists():
                found[sha256] = open_answer(path.read_bytes(), key=None)[0].body  # checked when it was collected
                self.wanted.pop(sha256, None)
        return found


def ask(agreed: Agreed, path: Path, run: Path, sites: Sequence[str], key: Path) -> None:
    """Go on with a run as far as the collected answers allow. Raises WaitingError naming the files to carry."""
    if agreed.plan.privacy.trust != "each-site":
        raise InputError(
            f"trust = {agreed.plan.privacy.trust!r} found; by file, sites answer one at a time and need trust = "
            f"'each-site', where every answer carries its own whole noise. Agree on such a plan."
        )
    post = FilePost(path=path, sites=sites, identity=load_identity(key))
    # A greeting more would be a file more to carry, at every stop.
    settings = Settings(path=run, known=known_keys(path), hello=TIMING, timing=TIMING, key=key, remind=False)
    try:
        coordinate(agreed, post, settings)
    except PatevolveError as reason:
        if not post.wanted:
            raise
        names = "\n".join(f"  {wanted}" for wanted in post.wanted.values())
        raise WaitingError(
            f"{len(post.wanted)} answers are wanted. Carry each question to its site, run `patevolve client answer` "
            f"there, and bring the answers to `patevolve server collect`:\n{names}"
        ) from reason


def collect(path: Path, sites: Sequence[str], answer: Path, roster: Mapping[str, str] | None = None) -> str:
    """File an answer and return its site. Raises MessageError unless it fits a question and its site's key signed it.

    A site's key is the one of ``roster``, if it stands there; else it is kept from the site's first greeting on.
    """
    data = read_sealed(answer)
    known = known_keys(path)
    found, key = open_answer(data, key=None)
    pinned = {**known, **(roster or {})}.get(found.site)
    if found.site not in sites:
        raise MessageError(f"an answer of {found.site!r} found; the sites are {', '.join(sites)}.")
    if pinned is None and found.action != "hello":
        raise MessageError(f"an answer of {found.site!r} before its greeting found; collect that one first.")
    if pinned is not None and key != pinned:
        raise MessageError(f"an answer of {found.site!r} signed by another key than the one pinned found; refuse it.")
    expected = f"site-{sites.index(found.site) + 1:03d}-{found.action}-{found.question[:12]}.pv"
    if not (path / OUT / expected).exists():
        raise MessageError(
            f"{answer} answers no question that was asked; expected an answer to a file in {path / OUT}."
        )
    if found.site not in known and decode_response(found.body, "hello").codes == (OK,):
        write_atomic(path / KEYS, json.dumps({**known, found.site: key}, ensure_ascii=False).encode())
    write_atomic(path / IN / f"{found.question}.pv", data)
    return found.site


def known_keys(path: Path) -> dict[str, str]:
    """Return the sites' pinned public keys."""
    if not (path / KEYS).exists():
        return {}
    keys: dict[str, str] = json.loads((path / KEYS).read_text(encoding="utf-8"))
    return keys
