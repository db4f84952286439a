"""One or many institutions in this process: the local mode and the simulated mode are the same code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patevolve.client.guard import Guard, NoiseFor
from patevolve.client.home import SiteHome, open_home
from patevolve.client.institution import Institution, render_once
from patevolve.client.island import evolve
from patevolve.client.policy import SitePolicy, check_plan
from patevolve.client.private_head import head_of, steps_left, train_head
from patevolve.client.private_index import PrivateIndex, build_index
from patevolve.client.stored_index import read_index
from patevolve.client.teachers import check_shards, confide, teach
from patevolve.shared import rounds
from patevolve.shared.contacts import FILE as CONTACTS
from patevolve.shared.contacts import Contacts, load_contacts
from patevolve.shared.data.index import Index
from patevolve.shared.data.load import Layout, load_images, load_table
from patevolve.shared.data.names import is_there
from patevolve.shared.data.records import Records
from patevolve.shared.data.target import target_of
from patevolve.shared.encoder.device import DEFAULT, DeviceProfile
from patevolve.shared.encoder.head import Head as PrivateHead
from patevolve.shared.envelopes import cohort_sha256
from patevolve.shared.errors import BudgetError, DataError, PolicyError
from patevolve.shared.finish import Released, Score, conclude
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.institutions import InProcess
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.ledger import Head, Ledger
from patevolve.shared.privacy.planner import choose_labels
from patevolve.shared.randomness import NoiseSource, SystemNoise
from patevolve.shared.release.proof import Signer
from patevolve.shared.rounds import Generation, Outcome
from patevolve.shared.runfolder import LEDGER as GLOBAL
from patevolve.shared.runfolder import RunFolder, check_run, known_run, open_run, run_id
from patevolve.shared.schedule import Ask, schedule
from patevolve.shared.tools import Tools, tools_of

DESCRIPTORS = 4  # that an open ledger holds: lock, file, log and its index
SPARE = 200  # that everything else may need


def load_records(path: Path, plan: Plan) -> dict[str, Records]:
    """Return each site's records from a table, texts, an image folder, a manifest or an NPZ file. Raises DataError."""
    data = plan.data
    layout = Layout(classes=data.classes, label=data.label, unit=data.unit, site=data.site)
    if not is_there(path):
        raise DataError(f"{path} does not exist; expected the data file. Check --data.")
    if data.kind != "image":
        return load_table(path, data.fields, layout)
    return load_images(path, (data.height, data.width), layout, target_of(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One institution of an in-process run: its folder and its records, in memory or embedded on its disk."""

    home: SiteHome
    records: Records | Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An in-process run: the outcome and what the report needs to know of the sites."""

    outcome: Outcome
    released: Released
    score: Score | None
    folder: RunFolder
    tools: Tools
    asks: tuple[Ask, ...]
    run: str
    units: Mapping[str, int]
    contacts: Contacts


def system_noise(site: str, question_sha256: str) -> NoiseSource:
    """Return the operating system's noise, whatever is asked."""
    del site, question_sha256
    return SystemNoise()


def open_sites(homes: Mapping[str, Path], records: Mapping[str, Records | Index], agreed: Agreed) -> dict[str, Site]:
    """Return the sites, each under its own policy. Raises PolicyError or DataError before anything is charged."""
    if len(records) != agreed.plan.sites.count:
        raise DataError(
            f"{len(records)} sites found in the data ({', '.join(sorted(records)) or 'none'}); the plan is for "
            f"{agreed.plan.sites.count}. The noise shares depend on it: agree on a plan for the right number."
        )
    sites = {}
    for name in sorted(records):
        if name not in homes:
            raise PolicyError(f"site {name!r} has no folder; expected one with a policy for every site of the data.")
        home = open_home(homes[name], site=name)
        check_plan(home.policy, agreed)
        sites[name] = Site(home=home, records=records[name])
    return sites


def simulate(
    agreed: Agreed,
    sites: Mapping[str, Site],
    path: Path,
    *,
    watch: Callable[[Generation], None] = lambda _: None,
    noise: NoiseFor = system_noise,
    run: str | None = None,
    device: DeviceProfile = DEFAULT,
) -> Finished:
    """Run the plan over these sites into a run folder, new or resumed, and return what came out."""
    tools = tools_of(agreed.plan, device)
    asks = schedule(agreed.plan, tools.encoder.embedding_size)
    alone = len(sites) == 1
    indexes = {name: index_of(one.home, one.records, agreed.plan, tools, alone=alone) for name, one in sites.items()}
    check_run(path, agreed)
    cohort = cohort_sha256(agreed.sha256, list(sites))

    rendered = render_once(tools.generator, tools.encoder)

    def join(site: Site, ledger: Ledger) -> Institution:
        index, head = indexes[site.home.policy.site], _head(agreed, site, ledger, tools, noise)
        _let_rest(ledger, len(sites))
        return Institution(
            agreed=agreed,
            asks=asks,
            cohort=cohort,
            guard=Guard(policy=site.home.policy, ledger=ledger, identity=site.home.identity, noise=noise),
            index=index,
            encoder=tools.encoder,
            generator=tools.generator,
            head=head,
            teach=teach(index.members, site.home.secret, agreed.plan.questions.labels.teachers),
            confide=confide(index.members, site.home.secret, agreed.plan.questions.confidence.teachers),
            rendered=rendered,
        )

    with _ledgers(agreed, asks, sites, path) as ledgers:
        contacts = load_contacts(path / CONTACTS)
        joined = {name: join(site, ledgers[name]) for name, site in sites.items()}
        institutions = InProcess(
            handlers={name: _then_rest(one.handle, ledgers, name) for name, one in joined.items()},
            islands={name: _then_rest(functools.partial(evolve, one), ledgers, name) for name, one in joined.items()},
            public_keys={name: site.home.identity.public_key for name, site in sites.items()},
            minimum=agreed.plan.sites.count - agreed.plan.privacy.dropouts,
            contacts=contacts,
        )
        folder = open_run(path, agreed)
        folder.sweep()
        identity = run_id(path, run)
        with folder.open_ledger() as ledger:
            inquiry = Inquiry(
                agreed=agreed, asks=asks, institutions=institutions, folder=folder, ledger=ledger, run=identity
            )
            outcome = rounds.run(inquiry, tools, watch)
            released, score = conclude(inquiry, outcome, tools, _signers(sites))
    units = {name: index.units for name, index in indexes.items()}
    return Finished(
        outcome=outcome,
        released=released,
        score=score,
        folder=folder,
        tools=tools,
        asks=asks,
        run=identity,
        units=units,
        contacts=contacts,
    )


def _signers(sites: Mapping[str, Site]) -> list[Signer]:
    """Return who vouches for the release: without a coordinator, every site does."""
    return [Signer(role="site", name=name, identity=site.home.identity) for name, site in sites.items()]


def _head(agreed: Agreed, site: Site, ledger: Ledger, tools: Tools, noise: NoiseFor) -> PrivateHead | None:
    """Return the site's private head under the plan, trained now if it was not before; None for a plan without one."""
    if not agreed.plan.encoder.head.share:
        return None
    if isinstance(site.records, Index):
        return head_of(site.home, agreed)
    return train_head(site.home, ledger, site.records, agreed, tools, noise=noise)


def index_of(home: SiteHome, records: Records | Index, plan: Plan, tools: Tools, *, alone: bool = True) -> PrivateIndex:
    """Return what the site votes with; ``alone`` refuses an index that holds another site's records as well.

    Raises DataError or PolicyError, before any charge, if it cannot take part.
    """
    policy = home.policy
    if isinstance(records, Index):
        index = read_index(records, plan, home.secret, site=policy.site if plan.data.site else "", alone=alone)
    else:
        index = build_index(records, plan, tools.encoder, home.secret)
    if index.units < policy.minimum_units:
        raise PolicyError(f"{policy.site}: {index.units} units found; the policy asks for {policy.minimum_units}.")
    if choose_labels(plan).method == "pate":
        check_shards(index.members, plan.data.classes, plan.questions.labels.teachers)
    return index


@contextlib.contextmanager
def _ledgers(
    agreed: Agreed, asks: tuple[Ask, ...], sites: Mapping[str, Site], path: Path
) -> Iterator[dict[str, Ledger]]:
    """Open every site's ledger for the length of the run; a second process that wants one is refused.

    Raises LedgerError, before anything is charged, for a ledger behind the heads that this run has already seen, and
    BudgetError unless enough sites can pay for all that is still to be asked.
    """
    heads, run = _seen_heads(sites, path), known_run(path)
    ledgers: dict[str, Ledger] = {}
    short = []
    with contextlib.ExitStack() as stack:
        for name, site in sites.items():
            ledger = ledgers[name] = stack.enter_context(site.home.open_ledger(heads[name]))
            if not affords(ledger, site.home.policy, agreed, asks, run=run):
                short.append(f"{name} (cap ε = {site.home.policy.budget.epsilon:g} for its ledger's life)")
            _let_rest(ledger, len(sites))
        _check_budgets(agreed, short)
        yield ledgers


def _let_rest(ledger: Ledger, sites: int) -> None:
    """Close a ledger until it is used again if this process may not hold all of its sites' files open at once."""
    import resource  # noqa: PLC0415 - not on Windows, where no ledger is locked either

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and DESCRIPTORS * sites + SPARE > most:
        ledger.rest()


def _then_rest(answer: Callable[[bytes], bytes], ledgers: Mapping[str, Ledger], name: str) -> Callable[[bytes], bytes]:
    def answered(data: bytes) -> bytes:
        try:
            return answer(data)
        finally:
            _let_rest(ledgers[name], len(ledgers))

    return answered


def _seen_heads(sites: Mapping[str, Site], path: Path) -> dict[str, list[Head]]:
    if not (path / GLOBAL).exists():
        return {name: [] for name in sites}
    with GlobalLedger.open(path / GLOBAL) as joined:
        return {name: joined.trusted_heads(name) for name in sites}


def _check_budgets(agreed: Agreed, short: list[str]) -> None:
    """Raise BudgetError if more sites than may drop out are short of what is still to be asked."""
    if len(short) > agreed.plan.privacy.dropouts:
        raise BudgetError(
            f"the budget of {', '.join(short)} does not cover what the plan still asks (ε = "
            f"{agreed.plan.privacy.epsilon:g} in all); nothing was asked. Raise the cap in the site's policy, or agree "
            f"on a plan that asks less."
        )


def affords(ledger: Ledger, policy: SitePolicy, agreed: Agreed, asks: tuple[Ask, ...], *, run: str) -> bool:
    """Return whether the site can pay for all that a run has still to ask of it; what it answered costs nothing."""
    labels = choose_labels(agreed.plan).method == "pate"
    answered = _answered(ledger, agreed, run)
    still = [ask for ask in asks if ask.name not in answered and (labels or ask.kind != "labels")]
    return ledger.affords([*(ask.event for ask in still), *steps_left(ledger, agreed)], policy.budget)


def _answered(ledger: Ledger, agreed: Agreed, run: str) -> set[str]:
    """Return the questions of this run whose answer is stored: asked again, they cost nothing."""
    without = {charge.seq for charge in ledger.unanswered()}
    return {
        charge.question
        for charge in ledger.charges()
        if (charge.key.plan_sha256, charge.key.run) == (agreed.sha256, run) and charge.seq not in without
    }
