"""The site's side of the secure sum on the disk: its roster of peers, and its state, stored before a byte leaves.

The roster is the site's own copy of who takes part: every site's public key and the coordinator's (there, or in what
the coordinator handed over). A coordinator that invents a peer, or leaves one out of the agreement, has another roster,
and nothing that it sends is taken.

Each run has a folder below ``secagg/``: its state, which does not grow, and a file for each reply. How many runs may be
open at once is bounded; ``forget`` closes one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patevolve.client.home import SiteHome
from patevolve.client.joined import read_joined
from patevolve.shared.errors import InputError, MessageError, ParameterError, PolicyError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed
from patevolve.shared.secagg import graph
from patevolve.shared.secagg.site import SiteSum, store_name
from patevolve.shared.secagg.spec import SumSpec

ROSTER = "roster.json"
RUNS, STATE, ABOUT, BATCHES, REPLIES = "secagg", "state.pv", "run.json", "batches.json", "replies"
MOST_RUNS = 16  # open at once
MOST_TIED = 4096  # questions of one run; a plan asks some hundred at most


@dataclass(frozen=True, slots=True)
class ReplyFiles:
    """A site's replies in one run, each a file: a state that held them would be written anew, whole, at every sum."""

    folder: Path

    def get(self, slot: str) -> bytes | None:
        """Return a kept reply, or None."""
        path = self._path(slot)
        return path.read_bytes() if path.exists() else None

    def put(self, slot: str, reply: bytes) -> None:
        """Keep a reply on the disk. One whose state was never stored is never sent, and replaced by the next."""
        write_atomic(self._path(slot), reply, mode=0o600)

    def drop(self, slot: str) -> None:
        """Forget a reply, if there is one."""
        self._path(slot).unlink(missing_ok=True)

    def inside(self) -> dict[str, bytes]:
        """Return none: they are files."""
        return {}

    def _path(self, slot: str) -> Path:
        return self.folder / f"{hashlib.sha256(slot.encode()).hexdigest()[:32]}.pv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """A site in the secure sums of one run; hold the site's ledger while using it."""

    folder: Path
    site: SiteSum

    def save(self) -> None:
        """Put the state on the disk, so that a killed site neither masks nor unmasks a question twice."""
        write_atomic(self.folder / STATE, self.site.export_state(), mode=0o600)

    def bind(self, questions: Sequence[str], batch: str) -> None:
        """Tie questions (by hash) to the one batch under which their answers may ever be summed, on the disk.

        An answer keeps its noise when it is asked for again. Two sums over the same answers and other survivors would
        differ by single sites' values under single shares of noise, which nobody charged. Raises MessageError for a
        question that is tied to another batch, or twice in this one; then nothing is tied.
        """
        if len(set(questions)) != len(questions):
            raise MessageError("a question twice in one sum found; expected each once.")
        path = self.folder / BATCHES
        tied = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if any(tied.get(question, batch) != batch for question in questions):
            raise MessageError(
                "a question that was summed with others before found; expected the same questions again."
            )
        if not all(question in tied for question in questions):
            if len(tied) + len(questions) > MOST_TIED:
                raise MessageError(f"more than {MOST_TIED} questions of one run found; nothing more is summed in it.")
            text = json.dumps({**tied, **dict.fromkeys(questions, batch)}, sort_keys=True)
            write_atomic(path, text.encode(), mode=0o600)  # label: one-batch-per-answer


def sum_spec(home: SiteHome, agreed: Agreed, run: str) -> SumSpec:
    """Return what the site has agreed on with its peers. Raises PolicyError without a roster that fits the plan."""
    path = home.path / ROSTER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sites = dict(found["sites"])
        coordinator = found["coordinator"] if "coordinator" in found else read_joined(home.path).coordinator
    except (OSError, ValueError, KeyError, TypeError, InputError) as reason:
        raise PolicyError(
            f"{path} cannot be read ({type(reason).__name__}); expected the public keys of all sites and of the "
            f"coordinator, compared with them by a trusted way. Without it nothing is summed."
        ) from reason
    if len(sites) != agreed.plan.sites.count or sites.get(home.policy.site) != home.identity.public_key:
        raise PolicyError(
            f"{path} lists {len(sites)} sites; expected {agreed.plan.sites.count}, {home.policy.site!r} with its key "
            f"among them. Get the roster of this plan."
        )
    privacy = agreed.plan.privacy
    try:
        spec = SumSpec(
            plan=agreed.sha256,
            run=run,
            sites=sites,
            coordinator=coordinator,
            dropouts=privacy.dropouts,
            colluders=privacy.colluders,
        )
        graph.build(spec)
    except ParameterError as reason:
        raise PolicyError(f"{path} holds no roster for this plan: {reason}") from reason
    assumed = agreed.plan.sites.count - privacy.dropouts - privacy.colluders
    left = graph.honest_values(spec)
    if left < assumed:
        raise PolicyError(
            f"a coordinator that lies about who dropped could open a sum with {left} honest shares; "
            f"the plan's noise assumes {assumed}. Allow fewer drop-outs or colluders in the plan."
        )
    return spec


def known_peers(home: SiteHome, sites: Sequence[str]) -> set[str]:
    """Return those of these sites that the site's roster lists; all of them if it has none. Raises PolicyError."""
    path = home.path / ROSTER
    if not path.exists():
        return set(sites)
    try:
        return set(sites) & set(json.loads(path.read_text(encoding="utf-8"))["sites"])
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise PolicyError(f"{path} cannot be read ({type(reason).__name__}); restore it.") from reason


def open_masking(home: SiteHome, agreed: Agreed, run: str, *, begin: bool = False) -> Masking:
    """Return the site's state in this run; ``begin`` makes one if there is none yet.

    Raises MessageError if the run was not set up here, PolicyError if too many runs are open to begin another.
    """
    spec = sum_spec(home, agreed, run)
    folder = home.path / RUNS / store_name(spec, home.policy.site)
    replies, state = ReplyFiles(folder / REPLIES), folder / STATE
    if state.exists():
        restored = SiteSum.restore(state.read_bytes(), spec, identity=home.identity, replies=replies)
        return Masking(folder=folder, site=restored)
    if not begin:
        raise MessageError("a question under masks before the run was set up found; expected the set-up first.")
    if len(open_runs(home.path)) >= MOST_RUNS:
        raise PolicyError(
            f"{MOST_RUNS} runs are open in {home.path / RUNS}; no other is begun. Close those that are over: "
            f"`patevolve client status` lists them, `patevolve client forget RUN` closes one."
        )
    text = json.dumps({"run": run, "plan": agreed.sha256}, ensure_ascii=False)
    write_atomic(folder / ABOUT, text.encode(), mode=0o600)
    masking = Masking(folder=folder, site=SiteSum(spec, site=home.policy.site, identity=home.identity, replies=replies))
    masking.save()
    return masking


def open_runs(home: Path) -> dict[Path, str]:
    """Return the folder and the name of each run that the site keeps a state of."""
    found = {}
    for path in sorted((home / RUNS).glob(f"*/{ABOUT}")):
        found[path.parent] = str(json.loads(path.read_text(encoding="utf-8"))["run"])
    return found


def forget(home: SiteHome, run: str) -> int:
    """Delete what the site keeps of a run's sums and return how many plans' it was. Raises InputError for none.

    Its key goes with it: nothing masked in that run can be opened with this site's help any more. If the run goes on,
    it has to be set up anew, and every sum is drawn and charged anew.
    """
    runs = open_runs(home.path)
    folders = [folder for folder, name in runs.items() if name == run]
    if not folders:
        raise InputError(f"no open run {run!r} found; expected one of {sorted(set(runs.values())) or 'none'}.")
    with home.open_ledger():  # nobody answers meanwhile
        for folder in folders:
            (folder / ABOUT).unlink()  # first, so that what a killed process leaves counts no more
            shutil.rmtree(folder)
    return len(folders)
