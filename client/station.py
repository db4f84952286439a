"""A site's end of the wire: bytes of a request in, bytes of a response out. It never raises and never explains.

Whatever goes wrong is told in words in the site's own log; an error code out of a fixed list is all that leaves. What
the plan asks, what it costs and who may join comes from the site's own copy of the plan and its policy, read anew for
every request. Nothing is kept in memory that a killed process would miss: ledger and answers lie on the disk.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from patevolve.client.approved import approved_plan
from patevolve.client.device import device_of
from patevolve.client.greeting import check_not_older, shown_head, welcome
from patevolve.client.guard import Guard, NoiseFor
from patevolve.client.home import SiteHome, open_home
from patevolve.client.institution import Institution, Rendered, render_once
from patevolve.client.island import evolve
from patevolve.client.masking import known_peers, open_masking
from patevolve.client.policy import FILE, SitePolicy, read_policy
from patevolve.client.private_head import head_of
from patevolve.client.private_index import PrivateIndex
from patevolve.client.simulate import affords, index_of, load_records, system_noise
from patevolve.client.teachers import confide, teach
from patevolve.shared import wire
from patevolve.shared.data.records import Records
from patevolve.shared.encoder.head import Head
from patevolve.shared.envelopes import (
    OK,
    Action,
    Request,
    Response,
    batch_name,
    cohort_sha256,
    decode_request,
    encode_head,
    encode_response,
    encode_welcome,
    refusal,
)
from patevolve.shared.errors import BudgetError, DataError, InputError, MessageError, PatevolveError, PolicyError
from patevolve.shared.messages import decode_answer, decode_migrants, decode_question, digest
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.schedule import Ask, find, schedule
from patevolve.shared.secagg.keys import MARK
from patevolve.shared.tools import Tools, tools_of

log = logging.getLogger(__name__)

MAX_WORDS = 2000  # characters of an error in the log: a message's header may have a million
Join = Callable[[str], Institution]  # the hash of the cohort that shares a tally -> this site in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a site computes with under one plan; made once per process."""

    agreed: Agreed
    asks: tuple[Ask, ...]
    tools: Tools
    index: PrivateIndex
    rendered: Rendered
    head: Head | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One site, reachable.

    home:   the site's folder: policy, approved plans, ledger
    data:   the site's file of records
    noise:  where the noise of an answer comes from; the system's generator outside tests
    unsafe: whether that noise can be repeated, which the coordinator is told
    of_all: whether the file holds every site's records, as in a simulation; else those of another are refused
    """

    home: Path
    data: Path
    noise: NoiseFor = system_noise
    unsafe: bool = False
    of_all: bool = False
    _prepared: dict[str, tuple[SitePolicy, Prepared]] = field(default_factory=dict, repr=False)
    _busy: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def handle(self, action: Action, data: bytes) -> bytes:
        """Return the response to a request; a refusal with a code for anything that cannot be answered."""
        site = ""
        try:
            with self._busy:
                policy = read_policy(self.home / FILE)
                site = policy.site
                _check_length(data, policy)
                request = decode_request(data, action)
                return _outgoing(_ACTIONS[action](self, request))
        except PatevolveError as reason:
            log.warning("%s refused %s: %s", site or self.home, action, in_one_line(reason))
            return refusal(action, site, told(reason))
        except Exception:  # an exception's text would reach the coordinator, file names and all
            log.exception("%s failed at %s", site or self.home, action)
            return refusal(action, site, PatevolveError.code)

    def prepare(self, home: SiteHome, plan_sha256: str) -> Prepared:
        """Return what the site computes with. Raises PolicyError or DataError, before any charge."""
        agreed = approved_plan(home, plan_sha256)
        policy, prepared = self._prepared.get(plan_sha256, (None, None))
        if prepared is not None and policy == home.policy:
            return prepared
        tools = tools_of(agreed.plan, device_of(self.home))
        prepared = Prepared(
            agreed=agreed,
            asks=schedule(agreed.plan, tools.encoder.embedding_size),
            tools=tools,
            index=index_of(home, self._records(home, agreed.plan), agreed.plan, tools),
            rendered=render_once(tools.generator, tools.encoder),
            head=head_of(home, agreed),
        )
        self._prepared[plan_sha256] = (home.policy, prepared)
        return prepared

    def _records(self, home: SiteHome, plan: Plan) -> Records:
        records = load_records(self.data, plan)
        if self.of_all:
            records = {site: own for site, own in records.items() if site == home.policy.site}
        if len(records) != 1:
            raise DataError(f"{len(records)} sites found in {self.data}; expected the records of this site alone.")
        ((named, own),) = records.items()
        if named not in {"", home.policy.site}:
            raise DataError(f"{self.data} holds records of {named!r}; this is {home.policy.site!r}. Name another file.")
        return own


def _hello(station: Station, request: Request) -> Response:
    """Say who the site is, after making sure that it could answer all that the plan asks."""
    home = open_home(station.home)
    shown = shown_head(request, home)
    prepared = station.prepare(home, request.plan)
    with home.open_ledger() as ledger:
        if shown is not None:
            check_not_older(ledger, shown)
        _check_affords(home, prepared, ledger, request.run)
    part = encode_welcome(request, welcome(home, unsafe=station.unsafe), home.identity)
    return Response(action="hello", site=home.policy.site, codes=(OK,), parts=(part,))


def _check_affords(home: SiteHome, prepared: Prepared, ledger: Ledger, run: str) -> None:
    if not affords(ledger, home.policy, prepared.agreed, prepared.asks, run=run):
        raise BudgetError(
            f"the cap ε = {home.policy.budget.epsilon:g} does not cover what plan {prepared.agreed.plan.name!r} still "
            f"asks (ε = {prepared.agreed.plan.privacy.epsilon:g} in all); nothing was answered. Raise the cap in "
            f"{home.path / FILE}, or stay away."
        )


def _setup(station: Station, request: Request) -> Response:
    """Give the site's key of this run."""
    home = open_home(station.home)
    prepared = station.prepare(home, request.plan)
    _check_masks(prepared)
    with home.open_ledger() as ledger:
        _check_affords(home, prepared, ledger, request.run)  # else any name would leave a state behind
        part = open_masking(home, prepared.agreed, request.run, begin=True).site.advert()
    return Response(action="setup", site=home.policy.site, codes=(OK,), parts=(part,))


def _ask(station: Station, request: Request) -> Response:
    """Answer the questions, charged."""
    home = open_home(station.home)
    prepared = station.prepare(home, request.plan)
    check_cohort(request, prepared.agreed, home)
    with home.open_ledger() as ledger:
        join = functools.partial(_institution, station, home, prepared, ledger)
        if prepared.agreed.plan.privacy.trust == "secure-sum":
            response = _masked(home, prepared, join, request)
        else:
            response = _answered(home, join(cohort_sha256(request.plan, request.sites)), request)
        home.keep_head(ledger.head())  # before a byte leaves
    return response


def _answered(home: SiteHome, institution: Institution, request: Request) -> Response:
    """Return one answer for each question; a question that is refused takes no other with it."""
    codes, parts = [], []
    for question in request.parts:
        try:
            answer, code = institution.handle(question), OK
        except PatevolveError as reason:
            log.warning("%s refused a question: %s", home.policy.site, in_one_line(reason))
            answer, code = b"", told(reason)
        parts.append(answer)
        codes.append(code)
    return Response(action="ask", site=home.policy.site, codes=tuple(codes), parts=tuple(parts))


def _masked(home: SiteHome, prepared: Prepared, join: Join, request: Request) -> Response:
    """Return one masked vector for all questions together: a noise share never leaves by itself.

    The sum's request is checked before anything is charged; the answers are in the ledger and the masked bytes in the
    sum's state before they are sent, so that a retry draws nothing and masks nothing anew.
    """
    if len(request.parts) < 3:
        raise MessageError(f"{len(request.parts)} parts found; expected the keys, the sum's request and questions.")
    keys, asking, *questions = request.parts
    masking = open_masking(home, prepared.agreed, request.run)
    members = masking.site.accept_keys(keys)
    if len(members) < home.policy.minimum_sites:
        raise PolicyError(f"a sum over {len(members)} sites found; the policy asks for {home.policy.minimum_sites}.")
    posed = [decode_question(question) for question in questions]
    if any(question.run != request.run for question in posed):
        raise MessageError("a question of another run in this run's sum found; nothing was answered.")
    sizes = [find(prepared.asks, question.name).bounds.size for question in posed]
    asked = masking.site.read_ask(asking)
    if asked.question != batch_name(questions) or asked.length != sum(sizes):
        raise MessageError("a sum over other questions than were sent with it found; nothing was answered.")
    masking.save()  # the list of keys is taken once in a run
    masking.bind([digest(question) for question in questions], asked.question)
    institution = join(cohort_sha256(request.plan, members, asking))  # label: one-sum-per-charge
    answers = [decode_answer(institution.handle(question)) for question in questions]
    part = masking.site.mask(asking, np.concatenate([answer.values for answer in answers]))
    masking.save()  # label: mask-stored-before-sent
    heads = [encode_head(answer.head) for answer in answers]  # of each: a folder put back is seen at its first new row
    return Response(action="ask", site=home.policy.site, codes=(OK, *(OK for _ in heads)), parts=(part, *heads))


def _unmask(station: Station, request: Request) -> Response:
    """Give the shares that take the masks off the sum of the survivors, and of nothing else."""
    home = open_home(station.home)
    prepared = station.prepare(home, request.plan)
    _check_masks(prepared)
    if len(request.parts) != 1:
        raise MessageError(f"{len(request.parts)} parts found; expected the sum's second request alone.")
    with home.open_ledger():
        masking = open_masking(home, prepared.agreed, request.run)
        part = masking.site.unmask(request.parts[0])
        masking.save()
    return Response(action="unmask", site=home.policy.site, codes=(OK,), parts=(part,))


def _check_masks(prepared: Prepared) -> None:
    if prepared.agreed.plan.privacy.trust != "secure-sum":
        raise MessageError("a message of the secure sum found; the plan trusts each site alone.")


def _institution(station: Station, home: SiteHome, prepared: Prepared, ledger: Ledger, cohort: str) -> Institution:
    members = prepared.index.members
    return Institution(
        agreed=prepared.agreed,
        asks=prepared.asks,
        cohort=cohort,
        guard=Guard(policy=home.policy, ledger=ledger, identity=home.identity, noise=station.noise),
        index=prepared.index,
        encoder=prepared.tools.encoder,
        generator=prepared.tools.generator,
        teach=teach(members, home.secret, prepared.agreed.plan.questions.labels.teachers),
        confide=confide(members, home.secret, prepared.agreed.plan.questions.confidence.teachers),
        rendered=prepared.rendered,
        head=prepared.head,
    )


def _evolve(station: Station, request: Request) -> Response:
    """Evolve the site's island and send its migrants; charged if the plan gives islands a share."""
    home = open_home(station.home)
    prepared = station.prepare(home, request.plan)
    if prepared.agreed.plan.islands is None:
        raise MessageError("an island found; the plan has none.")
    check_cohort(request, prepared.agreed, home)
    if len(request.parts) != 1:
        raise MessageError(f"{len(request.parts)} parts found; expected what the island starts from alone.")
    with home.open_ledger() as ledger:
        institution = _institution(station, home, prepared, ledger, cohort_sha256(request.plan, request.sites))
        part = evolve(institution, request.parts[0])
        home.keep_head(ledger.head())  # before a byte leaves
    return Response(action="evolve", site=home.policy.site, codes=(OK,), parts=(part,))


def check_cohort(request: Request, agreed: Agreed, home: SiteHome) -> None:
    """Raise PolicyError or MessageError unless the site may join this cohort under its plan, policy and roster.

    Without a roster the other names are the coordinator's word. No guarantee rests on them: each answer then carries
    its whole noise.
    """
    most, found, policy = agreed.plan.sites.count, len(request.sites), home.policy
    least = most - agreed.plan.privacy.dropouts
    if policy.site not in request.sites or not least <= found <= most:
        raise MessageError(f"a cohort of {found} sites found; the plan says {least} to {most}, this one with them.")
    if found < policy.minimum_sites:
        raise PolicyError(f"a cohort of {found} sites found; the policy asks for {policy.minimum_sites}.")
    if strangers := set(request.sites) - known_peers(home, request.sites):
        raise PolicyError(f"a cohort with {', '.join(sorted(strangers))} found; the site's roster has no such site.")


def _check_length(data: bytes, policy: SitePolicy) -> None:
    if len(data) > policy.maximum_message:
        raise MessageError(
            f"a request of {len(data)} bytes found; the policy's maximum_message is {policy.maximum_message}. It was "
            f"not read."
        )


def told(reason: PatevolveError) -> str:
    """Return the code that the coordinator is told: what is wrong with the data is a veto like any other to it."""
    return PolicyError.code if isinstance(reason, InputError) else reason.code


def in_one_line(reason: Exception) -> str:
    """Return an error's words for the site's log; they may quote the coordinator, who writes no line there."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(reason)[:MAX_WORDS])


def _outgoing(response: Response) -> bytes:
    """Return the response's bytes. Raises PolicyError for a noise share that would leave without a mask."""
    if response.action == "ask":
        for part in filter(None, response.parts):
            _check_part(part)
    if response.action == "evolve":
        for part in response.parts:
            decode_migrants(part)  # nothing of another form
    return encode_response(response)


def _check_part(part: bytes) -> None:
    if part.startswith(wire.MAGIC):
        if wire.decode(part).kind == "head":
            return
        if not decode_answer(part).full:  # label: no-bare-share
            raise PolicyError("an answer with a share of the noise alone was about to leave; it stays.")
    else:
        wire.decode(part[MARK:], kind="secagg-masked")


_ACTIONS: Mapping[Action, Callable[[Station, Request], Response]] = {
    "hello": _hello,
    "setup": _setup,
    "ask": _ask,
    "unmask": _unmask,
    "evolve": _evolve,
}
