"""A coordinated run: find the sites, run the loop over them into a run folder, and say how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patevolve.server.cohort import Directory, load_cohort, missing, save_cohort
from patevolve.server.flower_institutions import FlowerInstitutions
from patevolve.server.needs import Needs, needs_of
from patevolve.server.post import Post, Timing
from patevolve.server.secure_sum import open_sum
from patevolve.shared import rounds
from patevolve.shared.contacts import FILE as CONTACTS
from patevolve.shared.contacts import load_contacts
from patevolve.shared.envelopes import Request
from patevolve.shared.errors import InputError, LedgerError, PatevolveError
from patevolve.shared.finish import Released, Score, conclude
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.signing import Identity, load_identity
from patevolve.shared.release.proof import Signer
from patevolve.shared.rounds import Generation, Outcome
from patevolve.shared.runfolder import LEDGER as GLOBAL
from patevolve.shared.runfolder import RunFolder, check_run, open_run, run_id
from patevolve.shared.schedule import Ask, schedule
from patevolve.shared.secagg.spec import SumSpec
from patevolve.shared.tools import Tools, tools_of

log = logging.getLogger(__name__)
STATUS = "status.json"
LOCK = "run.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run is carried out; nothing here can change the guarantee or the result.

    path:    the run's folder, new or to be resumed
    known:   the sites' public keys if they are known beforehand; empty to take whoever the network lets in
    hello:   how long to wait for sites at the start
    timing:  how long to wait for answers
    run:     the run's name if it is new; random by default
    key:     the coordinator's signing key, which the sites know: it signs the secure sum's requests and the release
    remind:  whether a resumed run shows each site the head of its ledger that is held here: one more greeting
    """

    path: Path
    known: Mapping[str, str]
    hello: Timing
    timing: Timing
    run: str | None = None
    key: Path | None = None
    remind: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished run, from the coordinator's side."""

    outcome: Outcome
    released: Released
    score: Score | None
    folder: RunFolder
    tools: Tools
    asks: tuple[Ask, ...]
    institutions: FlowerInstitutions


def coordinate(
    agreed: Agreed, post: Post, settings: Settings, watch: Callable[[Generation], None] = lambda _: None
) -> Finished:
    """Run the plan over the sites behind ``post`` and return what came out; a killed run is resumed from its folder.

    Raises QuorumError, or PolicyError, BudgetError or MessageError where the sites' refusals alone explain it.
    """
    tools = tools_of(agreed.plan)
    asks = schedule(agreed.plan, tools.encoder.embedding_size)
    check_run(settings.path, agreed)
    folder = open_run(settings.path, agreed)
    with _alone(settings.path):
        folder.sweep()
        institutions = gather(agreed, post, settings, run_id(settings.path, settings.run), needs_of(agreed, tools))
        with folder.open_ledger() as ledger:
            inquiry = Inquiry(
                agreed=agreed, asks=asks, institutions=institutions, folder=folder, ledger=ledger, run=institutions.run
            )
            outcome = rounds.run(inquiry, tools, watch)
            released, score = conclude(inquiry, outcome, tools, _signers(settings, ledger.coordinator))
    return Finished(
        outcome=outcome,
        released=released,
        score=score,
        folder=folder,
        tools=tools,
        asks=asks,
        institutions=institutions,
    )


def _signers(settings: Settings, coordinator: str) -> list[Signer]:
    if settings.key is None:
        log.warning("no key of the coordinator is given, so nobody signs the release; patevolve verify will refuse it")
        return []
    return [Signer(role="coordinator", name=coordinator, identity=load_identity(settings.key))]


def gather(agreed: Agreed, post: Post, settings: Settings, run: str, needs: Needs) -> FlowerInstitutions:
    """Find the sites and fix the cohort. Raises QuorumError, or the sites' own reason, if they are too few."""
    cohort = load_cohort(settings.path)
    request = Request(action="hello", plan=agreed.sha256, run=run)
    contacts = load_contacts(settings.path / CONTACTS)
    directory = Directory(
        post=post,
        request=request,
        known=cohort or settings.known,
        needs=needs,
        heads=held_heads(settings.path) if settings.remind else {},
        contacts=contacts,
    )
    least = agreed.plan.sites.count - agreed.plan.privacy.dropouts
    directory.greet(settings.hello, least=least, enough=len(cohort) or agreed.plan.sites.count)
    if not least <= len(directory.nodes) <= agreed.plan.sites.count:
        raise missing(agreed, "hello", len(directory.nodes), directory.refused)
    if not cohort:
        cohort = dict(sorted(directory.keys.items()))
        save_cohort(settings.path, cohort)
    log.info("the cohort: %s", ", ".join(cohort))
    secure_sum = None
    if agreed.plan.privacy.trust == "secure-sum":
        spec, identity = _agreed_sum(agreed, settings, run)
        secure_sum = open_sum(settings.path, spec, agreed=agreed, identity=identity, sites=list(cohort))
    return FlowerInstitutions(
        secure_sum=secure_sum,
        agreed=agreed,
        run=run,
        cohort=cohort,
        post=post,
        directory=directory,
        timing=settings.timing,
        contacts=contacts,
    )


def held_heads(folder: Path) -> dict[str, str]:
    """Return the newest signed head of each site's ledger that the run's folder holds."""
    path = folder / GLOBAL
    if not path.exists():
        return {}
    with GlobalLedger.open(path) as ledger:
        return ledger.newest_heads()


def _agreed_sum(agreed: Agreed, settings: Settings, run: str) -> tuple[SumSpec, Identity]:
    if settings.key is None or not settings.known:
        raise InputError(
            "trust = 'secure-sum' without a roster or the coordinator's key found; expected both: the sites sum "
            "only with peers and a coordinator that they know. Give the run's configuration roster and key."
        )
    identity = load_identity(settings.key)
    privacy = agreed.plan.privacy
    spec = SumSpec(
        plan=agreed.sha256,
        run=run,
        sites=dict(settings.known),
        coordinator=identity.public_key,
        dropouts=privacy.dropouts,
        colluders=privacy.colluders,
    )
    return spec, identity


def reported(agreed: Agreed, folder: Path, run: Callable[[], object]) -> int:
    """Run and write ``status.json`` with the exit code, which Flower has no channel for; return the code.

    Raises PlanError or InputError, writing nothing, for a folder that is not this run's.
    """
    record = open_run(folder, agreed)
    record.write_json(STATUS, {"state": "running", "exit_code": None, "code": "", "message": "", "pid": os.getpid()})
    try:
        run()
    except PatevolveError as reason:
        log.error("%s", reason)  # noqa: TRY400 - said in words; a trace helps nobody here
        status = {"state": "failed", "exit_code": reason.exit_code, "code": reason.code, "message": str(reason)}
    except Exception as reason:
        log.exception("the run failed")
        status = {"state": "failed", "exit_code": 1, "code": "error", "message": f"{type(reason).__name__}: {reason}"}
    else:
        status = {"state": "finished", "exit_code": 0, "code": "", "message": ""}
    record.write_json(STATUS, status)
    code = status["exit_code"]
    return code if isinstance(code, int) else 1


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the run folder. Raises LedgerError if another coordinator does."""
    handle = os.open(path / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        raise LedgerError(f"{path} is in use by another coordinator; expected one at a time. Wait for it.") from reason
    else:
        yield
    finally:
        os.close(handle)
