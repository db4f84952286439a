"""``patevolve client doctor``: what stands between this site and its coordinator, with its fix and an exit code.

The checks go from the site outwards; each names one cause. The report tells them all; the exit code is that of the
first that failed, for one cause often brings others with it. ``CAUSES`` is the table of docs/deploy.md.
"""

from __future__ import annotations

import datetime as dt
import errno
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patevolve.client.approved import approved_plan
from patevolve.client.device import device_of
from patevolve.client.doctor_network import Ill, clock, connected, proxy_for, resolved, secured, through
from patevolve.client.executor import check_flower
from patevolve.client.home import SiteHome, open_home
from patevolve.client.joined import Joined, read_joined, split_address
from patevolve.client.joining import AUTHORITY
from patevolve.client.policy import FILE as POLICY
from patevolve.client.policy import read_policy
from patevolve.shared.errors import PatevolveError

CAUSES: Mapping[str, tuple[int, str, str]] = {
    "joined": (20, "the site has not joined, or its folder is damaged", "run `patevolve client join FOLDER`"),
    "version": (21, "another patevolve or Flower than the coordinator's", "install the version that the message names"),
    "policy-missing": (22, "there is no policy.toml", "review the plan and run `patevolve client approve PLAN`"),
    "policy-unreadable": (23, "policy.toml cannot be read", "correct the line that the message names"),
    "policy-forbids": (24, "the policy does not permit the plan", "approve the plan in policy.toml, or stay away"),
    "disk-full": (25, "too little free space for the ledger", "free some space on that disk"),
    "disk-unwritable": (
        26,
        "the site's folder cannot be written",
        "give the user that runs patevolve the right to write",
    ),
    "data": (27, "the data cannot be read, or is not what the plan says", "correct the file or its rights"),
    "budget": (28, "the budget does not cover what the plan still asks", "raise the cap in policy.toml, or stay away"),
    "ledger": (29, "the ledger or the identity is lost, damaged or in use", "restore it from its backup"),
    "name": (30, "the coordinator's name is not known here", "correct the address in join.toml, or ask IT for DNS"),
    "port": (31, "nobody answers at the coordinator's port", "ask whether the coordinator is up, and IT for the port"),
    "proxy": (32, "the proxy does not let this connection through", "ask IT to permit it, or set NO_PROXY"),
    "plaintext": (33, "the coordinator speaks no TLS", "refuse; ask the coordinator to start it with TLS"),
    "tls-name": (34, "the certificate is for another name", "use a name in it, or ask for a new certificate"),
    "tls-authority": (35, "the certificate is from another authority", "a TLS proxy between, or a new ca.crt is due"),
    "clock": (36, "this machine's clock is wrong", "set the clock (NTP)"),
    "tls-expired": (37, "the certificate has expired", "ask the coordinator for a new certificate"),
    "tls": (38, "the TLS handshake failed", "look for a middlebox between; show IT the message"),
}
FREE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: ``cause`` is empty when it passed, else a key of CAUSES; ``detail`` is for the site's own eyes."""

    check: str
    cause: str = ""
    detail: str = ""

    @property
    def exit_code(self) -> int:
        """0, or the cause's exit code."""
        return CAUSES[self.cause][0] if self.cause else 0

    @property
    def fix(self) -> str:
        """What to do about it."""
        return CAUSES[self.cause][2] if self.cause else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What the checks look at; ``environment`` holds the proxy variables."""

    home: Path
    environment: Mapping[str, str]
    now: Callable[[], dt.datetime]
    tls: bool = True
    free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free


def examine(patient: Patient) -> list[Finding]:
    """Return the findings of all checks that could be made."""
    return list(_examined(patient))


def examine_home(home: Path, *, tls: bool = True) -> list[Finding]:
    """Return the findings for a site's folder on this machine."""
    now = lambda: dt.datetime.now(dt.UTC)  # noqa: E731 - a clock, replaced in tests
    return examine(Patient(home=home, environment=os.environ, now=now, tls=tls))


def _examined(patient: Patient) -> Iterator[Finding]:
    joined = None
    try:
        joined = read_joined(patient.home)
        yield Finding(check="joined", detail=f"site {joined.site!r}, coordinator {joined.address}")
    except PatevolveError as reason:
        yield Finding(check="joined", cause="joined", detail=str(reason))
    if joined is not None:
        yield _finding("version", lambda: _version(joined))
    yield _finding("policy", lambda: _policy(patient.home))
    yield _finding("disk", lambda: _disk(patient))
    if joined is not None:
        yield from _ledger_and_data(patient, joined)
        yield from _network(patient, joined)


def _finding(check: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(check=check, detail=look())
    except Ill as ill:
        return Finding(check=check, cause=ill.cause, detail=ill.detail)


def _version(joined: Joined) -> str:
    own = importlib.metadata.version("patevolve")
    if own != joined.version:
        raise Ill("version", f"patevolve {own} is installed; the coordinator runs {joined.version}. Install that one.")
    try:
        return f"patevolve {own}, Flower {check_flower()}"
    except PatevolveError as reason:
        raise Ill("version", str(reason)) from reason


def _policy(home: Path) -> str:
    path = home / POLICY
    if not path.exists():
        raise Ill("policy-missing", f"no {path} found; without it nothing is answered.")
    try:
        return f"site {read_policy(path).site!r}"
    except PatevolveError as reason:
        raise Ill("policy-unreadable", str(reason)) from reason


def _disk(patient: Patient) -> str:
    home = patient.home
    try:
        with tempfile.NamedTemporaryFile(dir=home, prefix=".doctor-") as draft:
            draft.write(b"\0" * 4096)
            draft.flush()
            os.fsync(draft.fileno())
    except OSError as reason:
        full = reason.errno in {errno.ENOSPC, errno.EDQUOT}
        raise Ill("disk-full" if full else "disk-unwritable", f"{home}: {reason.strerror}.") from reason
    free = patient.free(home)
    if free < FREE_BYTES:
        raise Ill("disk-full", f"{free >> 20} MiB are free at {home}; expected at least {FREE_BYTES >> 20}.")
    return f"{free >> 20} MiB free"


def _ledger_and_data(patient: Patient, joined: Joined) -> Iterator[Finding]:
    """Look at what a greeting would look at; without a policy the site's folder is not opened, so nothing is made."""
    try:
        home = open_home(patient.home, site=joined.site)
    except PatevolveError as reason:
        if (patient.home / POLICY).exists() and reason.code != "policy":
            yield Finding(check="ledger", cause="ledger", detail=str(reason))
        elif reason.code == "policy" and _readable(patient.home / POLICY):
            yield Finding(check="policy", cause="policy-forbids", detail=str(reason))
        return
    permitted = _finding("plan", lambda: _permitted(home, joined))
    yield permitted
    if not permitted.cause:
        yield _finding("data", lambda: _data(home, joined))
        yield _finding("budget", lambda: _budget(home, joined))


def _readable(path: Path) -> bool:
    try:
        read_policy(path)
    except PatevolveError:
        return False
    return True


def _permitted(home: SiteHome, joined: Joined) -> str:
    try:
        return f"plan {approved_plan(home, joined.plan).plan.name!r} is permitted"
    except PatevolveError as reason:
        raise Ill("policy-forbids", str(reason)) from reason


def _data(home: SiteHome, joined: Joined) -> str:
    from patevolve.client.station import Station  # noqa: PLC0415 - loads NumPy, which the other checks do without

    path = Path(joined.data)
    try:
        with path.open("rb"):
            pass
        index = Station(home=home.path, data=path).prepare(home, joined.plan).index
    except OSError as reason:
        raise Ill("data", f"{path} cannot be read: {reason.strerror}.") from reason
    except PatevolveError as reason:
        raise Ill("data", f"{path}: {reason}") from reason
    return f"{index.units} units"


def _budget(home: SiteHome, joined: Joined) -> str:
    from patevolve.client.simulate import affords  # noqa: PLC0415 - the same
    from patevolve.shared.schedule import schedule  # noqa: PLC0415 - the same
    from patevolve.shared.tools import tools_of  # noqa: PLC0415 - the same

    agreed = approved_plan(home, joined.plan)
    asks = schedule(agreed.plan, tools_of(agreed.plan, device_of(home.path)).encoder.embedding_size)
    try:
        with home.open_ledger() as ledger:
            runs = [charge.key.run for charge in ledger.charges() if charge.key.plan_sha256 == joined.plan]
            enough = affords(ledger, home.policy, agreed, asks, run=runs[-1] if runs else "")
            spent = ledger.spent(home.policy.budget.delta).epsilon
    except PatevolveError as reason:
        raise Ill("ledger", str(reason)) from reason
    cap = home.policy.budget.epsilon
    if not enough:
        raise Ill(
            "budget", f"ε = {spent:.3g} of {cap:g} is spent; the plan asks for ε = {agreed.plan.privacy.epsilon:g}."
        )
    return f"ε = {spent:.3g} of {cap:g} spent"


def _network(patient: Patient, joined: Joined) -> Iterator[Finding]:
    host, port = split_address(joined.address)
    proxy = proxy_for(host, patient.environment) if patient.tls else None
    try:
        if proxy is None:
            yield Finding(check="name", detail=", ".join(sorted(resolved(host, port))))
            stream = connected(host, port)
            yield Finding(check="port", detail=f"{host}:{port} answers")
        else:
            stream = through(proxy, host, port)
            yield Finding(check="proxy", detail=f"{proxy} lets {host}:{port} through")
    except Ill as ill:
        yield Finding(check="connection", cause=ill.cause, detail=ill.detail)
        return
    if not patient.tls:
        stream.close()
        return
    try:
        date = secured(stream, host, patient.home / AUTHORITY, patient.now())
    except Ill as ill:
        yield Finding(check="tls", cause=ill.cause, detail=ill.detail)
        return
    yield Finding(check="tls", detail=f"the certificate is for {host} and from the coordinator's authority")
    yield _finding("clock", lambda: clock(date, patient.now()))
