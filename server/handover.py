"""A coordinator's folder: what ``server init`` makes, and the folder that each site is handed.

::

    DIR/server.toml           name, address, plan, bundle
    DIR/plan.toml             the plan, as the sites get it
    DIR/pki/                  authority and server certificate (keys: mode 0600)
    DIR/coordinator.key       Ed25519 key that signs the release, the secure sum's requests, questions carried by file
    DIR/app/                  the Flower app: a thin bundle without code, for every side runs what it installed
    DIR/sites/SITE/           to hand over: join.toml, plan.toml, ca.crt, node.key, README.txt
    DIR/flower/               Flower's own state
    DIR/run/                  the run folder
    DIR/mail/                 questions and answers carried by file
    DIR/roster.json           the sites' public keys, where they were pinned
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patevolve.server import pki
from patevolve.shared import tomlfile
from patevolve.shared.errors import InputError
from patevolve.shared.files import write_atomic, write_new
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.privacy.signing import create_identity

FILE, PLAN, KEY = "server.toml", "plan.toml", "coordinator.key"
APP, PKI, SITES, FLOWER, RUN, MAIL = "app", "pki", "sites", "flower", "run", "mail"
ROSTER = "roster.json"
NODE_KEY, NODE_PUBLIC = "node.key", "node.pub"
_APP = """\
# A thin bundle: it holds no code. Coordinator and sites run the patevolve that they installed.
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "patevolve-run"
version = "{version}"
description = "Federated, differentially private data synthesis"
license = {{file = "LICENSE"}}
dependencies = ["flwr>=1.42,<1.43", "patevolve=={version}"]

[tool.flwr.app]
publisher = "patevolve"
fab-include = ["/pyproject.toml", "/README.md"]

[tool.flwr.app.components]
serverapp = "patevolve.server.app:app"
clientapp = "patevolve.client.app:app"

# Paths on the coordinator, or seconds; none can change the guarantee or the result.
[tool.flwr.app.config]
plan = ""
out = ""
run = ""
roster = ""
hello-deadline = 300.0
deadline = 900.0
patience = 120.0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a coordinator's folder says.

    address:  host:port at which the sites reach the coordinator
    bind:     host:port on which the SuperLink listens, perhaps behind a reverse proxy
    bundle:   SHA-256 of the Flower bundle that the sites permit
    sites:    their names
    folders:  the hand-over folder of each, below DIR/sites
    """

    name: str
    address: str
    bind: str
    plan: str
    bundle: str
    coordinator: str
    sites: tuple[str, ...]
    folders: tuple[str, ...]


def initialise(
    path: Path, agreed: Agreed, *, hosts: Sequence[str], sites: Sequence[str], bind: tuple[str, int], port: int
) -> Deployment:
    """Make a coordinator's folder and return what it says. Raises InputError before anything is written."""
    _check_sites(agreed, sites)
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path} is not empty; a deployment's keys are never overwritten. Choose a new folder.")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    pki.write_pki(path / PKI, agreed.plan.name, hosts)
    bundle = write_app(path / APP)
    host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    deployment = Deployment(
        name=agreed.plan.name,
        address=f"{host}:{port}",
        bind=f"{bind[0]}:{bind[1]}",
        plan=agreed.sha256,
        bundle=bundle,
        coordinator=create_identity(path / KEY).public_key,
        sites=tuple(sites),
        folders=tuple(f"{number:02d}-{_slug(site)}" for number, site in enumerate(sites, 1)),
    )
    write_new(path / PLAN, agreed.text.encode())
    for site, folder in zip(deployment.sites, deployment.folders, strict=True):
        _hand_over(path, deployment, agreed, site, path / SITES / folder)
    write_new(path / FILE, toml_text(deployment).encode())
    return deployment


def read_deployment(path: Path) -> tuple[Deployment, Agreed]:
    """Return what a coordinator's folder says and its plan. Raises InputError."""
    if not (path / FILE).exists():
        raise InputError(f"no {FILE} found in {path}; expected a folder made by `patevolve server init`.")
    deployment = tomlfile.parse(tomlfile.read_text(path / FILE, InputError), Deployment, FILE, InputError)
    agreed = read_plan(path / PLAN)
    if agreed.sha256 != deployment.plan:
        raise InputError(
            f"{path / PLAN} is plan {agreed.sha256[:12]}…; the sites were handed {deployment.plan[:12]}…. Restore it, "
            f"or make a new deployment for another plan."
        )
    return deployment, agreed


def write_app(folder: Path) -> str:
    """Write the thin Flower app and return the SHA-256 of its bundle, which Flower builds the same way every time."""
    try:
        from flwr.cli.build import build_fab_from_disk  # noqa: PLC0415 - an extra: only a deployment needs it
    except ImportError as reason:
        raise InputError("a deployment needs Flower; install it with: pip install 'patevolve[federation]'") from reason
    text = _APP.format(version=importlib.metadata.version("patevolve"))
    write_new(folder / "pyproject.toml", text.encode())
    write_new(folder / "README.md", b"patevolve: see the installed package.\n")
    write_new(folder / "LICENSE", b"Apache-2.0\n")
    return hashlib.sha256(build_fab_from_disk(folder)).hexdigest()


def pin_key(path: Path, deployment: Deployment, site: str, key: str) -> dict[str, str]:
    """Pin a site's public key and return all that are pinned. Raises InputError."""
    if site not in deployment.sites:
        raise InputError(f"site {site!r} found; the deployment is for {', '.join(deployment.sites)}.")
    if not re.fullmatch(r"[0-9a-f]{64}", key):
        raise InputError(f"key {key!r} found; expected 64 hexadecimal digits, as `patevolve client status` shows them.")
    pinned = pinned_keys(path)
    if pinned.get(site, key) != key:
        raise InputError(f"another key is pinned for {site!r}; if it has truly changed, edit {path / ROSTER} by hand.")
    pinned[site] = key
    write_atomic(path / ROSTER, (json.dumps({"sites": pinned}, indent=1, ensure_ascii=False) + "\n").encode())
    return pinned


def pinned_keys(path: Path) -> dict[str, str]:
    """Return the sites' pinned public keys. Raises InputError."""
    if not (path / ROSTER).exists():
        return {}
    try:
        return {str(k): str(v) for k, v in json.loads((path / ROSTER).read_text(encoding="utf-8"))["sites"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise InputError(f"{path / ROSTER} cannot be read as a list of sites ({reason}); restore it.") from reason


def check_roster(path: Path, deployment: Deployment, agreed: Agreed) -> None:
    """Raise InputError where some sites' keys are pinned and others are not, or where a secure sum lacks them."""
    left = [site for site in deployment.sites if site not in pinned_keys(path)]
    needed = agreed.plan.privacy.trust == "secure-sum" or (path / ROSTER).exists()
    if left and needed:
        raise InputError(
            f"the keys of {', '.join(left)} are not pinned; expected those of all sites in {path / ROSTER}. Ask each "
            f"site for its key (`patevolve client key`) and `patevolve server pin` it; then send every site the roster."
        )


def toml_text(value: Deployment) -> str:
    """Return the TOML text of a deployment; JSON's strings and lists of strings are TOML's as well."""
    names = Deployment.__dataclass_fields__
    return "".join(f"{name} = {json.dumps(_plain(getattr(value, name)), ensure_ascii=False)}\n" for name in names)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _check_sites(agreed: Agreed, sites: Sequence[str]) -> None:
    count = agreed.plan.sites.count
    if len(sites) != count or len(set(sites)) != count:
        raise InputError(
            f"{len(sites)} sites found ({', '.join(sites) or 'none'}); the plan is for {count} distinct ones. Give "
            f"--site once for each."
        )
    if any(not site.strip() or not site.isprintable() or len(site) > 100 for site in sites):
        raise InputError("a site name that is empty, over 100 letters or not printable found; expected plain names.")


def _slug(site: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in site).lower()[:40]


def _hand_over(path: Path, deployment: Deployment, agreed: Agreed, site: str, folder: Path) -> None:
    key = pki.create_node_key()
    join = {
        "format": 1,
        "site": site,
        "address": deployment.address,
        "plan": deployment.plan,
        "coordinator": deployment.coordinator,
        "bundles": [deployment.bundle],
        "version": importlib.metadata.version("patevolve"),
    }
    text = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in join.items())
    write_new(folder / "join.toml", text.encode())
    write_new(folder / PLAN, agreed.text.encode())
    write_new(folder / pki.CA_CERTIFICATE, (path / PKI / pki.CA_CERTIFICATE).read_bytes())
    write_new(folder / NODE_KEY, key.private, mode=0o600)
    write_new(folder / NODE_PUBLIC, key.public)
    write_new(
        folder / "README.txt", _README.format(site=site, plan=deployment.plan, address=deployment.address).encode()
    )


_README = """\
For {site}: how to take part
============================
This folder came from the coordinator. node.key is your site's key to the coordinator: pass it on by a trusted way only.

1. Compare the plan's SHA-256 with the one the coordinator told you by another way (telephone, paper):
   {plan}
2. patevolve client join FOLDER --home site --data DATA.csv
3. patevolve plan site/plan.toml                       what the plan asks and costs, in words
4. patevolve client approve site/plan.toml --home site --site "{site}"     writes site/policy.toml: yours to restrict
5. patevolve client doctor --home site                 checks network, clock, policy, disk, data and budget
6. patevolve client start --home site                  connects to {address}, outbound only

Nothing listens at your site except on its own loopback. docs/deploy.md says what leaves and what to approve.
"""
