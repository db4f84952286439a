"""What an audit needs of the pipeline: a run's questions, the exact sums behind its answers, and runs in two worlds.

Exact sums are computed by the same code that answered, and stay in this process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from patevolve.client import study
from patevolve.client.guard import Guard, NoiseFor
from patevolve.client.home import LEDGER, SiteHome
from patevolve.client.institution import Institution, render_once
from patevolve.client.private_head import head_of
from patevolve.client.private_index import PrivateIndex, build_index
from patevolve.client.simulate import simulate, system_noise
from patevolve.client.teachers import confide, teach
from patevolve.shared import rounds
from patevolve.shared.audit.canaries import Finding, Probe, two_worlds
from patevolve.shared.data.records import Records
from patevolve.shared.encoder.head import Head
from patevolve.shared.errors import DataError, ReleaseError
from patevolve.shared.finish import STUDENT
from patevolve.shared.inquiry import Estimate, Inquiry
from patevolve.shared.messages import Kind, Question, decode_answer, digest, encode_question
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.privacy.planner import asking
from patevolve.shared.randomness import stream
from patevolve.shared.runfolder import RunFolder, known_run, open_run
from patevolve.shared.schedule import Ask, find, schedule
from patevolve.shared.tally import ExactTally
from patevolve.shared.tools import Tools, samples, tools_of
from patevolve.shared.votes.lattice import estimate, noise_std

BASE = 12  # public records per class and site in the two worlds
SECRET = bytes(32)  # the made-up sites of the two worlds have nothing to keep
CANARY = "the canary"
STEPS = 5  # of a classifier in the two worlds, with the whole of its budget
MEMORY = Path("/dev/shm")  # noqa: S108 - public records only; in memory the ledgers' flushes cost nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay:
    """An inquiry that puts no question: it notes each and gives back the sum that the run folder holds."""

    agreed: Agreed
    asks: tuple[Ask, ...]
    kept: RunFolder
    run: str
    questions: dict[str, bytes] = field(default_factory=dict)

    @property
    def folder(self) -> _Replay:
        """Generations are evolved anew, so that their questions are seen; nothing is written."""
        return self

    def load_generation(self, number: int) -> None:
        """Return None: evolve it."""
        del number

    def save_generation(self, *generation: object) -> None:
        """Write nothing."""

    def evolve(self, name: str, arrays: Mapping[str, NDArray[Any]], shape: object) -> Mapping[str, NDArray[np.float64]]:
        """Return the kept migrants. Raises DataError where the run folder has none."""
        del shape
        question = Question(kind="islands", name=name, plan=self.agreed.sha256, run=self.run, arrays=arrays)
        found = self.kept.load_migrants(name, digest(encode_question(question)))
        if found is None:
            raise DataError(f"{name}: no migrants of this island in {self.kept.path.name}; expected a finished run.")
        return found

    def note_progress(self, row: object) -> None:
        """Write nothing."""

    def asked(self, name: str) -> bool:
        """Return whether the plan has this question."""
        return any(ask.name == name for ask in self.asks)

    def ask(self, name: str, arrays: Mapping[str, NDArray[Any]] | None = None) -> Estimate:
        """Return the kept sum of one question."""
        return self.ask_all({name: arrays or {}})[0]

    def ask_all(self, questions: Mapping[str, Mapping[str, NDArray[Any]]]) -> list[Estimate]:
        """Return the kept sums. Raises DataError where the run folder has none: it is another run's."""
        found = []
        for name, arrays in questions.items():
            ask = find(self.asks, name)
            data = encode_question(
                Question(kind=ask.kind, name=name, plan=self.agreed.sha256, run=self.run, arrays=arrays)
            )
            reply = self.kept.load_reply(name, digest(data))
            if reply is None:
                raise DataError(f"{name}: no sum of this question in {self.kept.path.name}; expected a finished run.")
            self.questions[name] = data
            found.append(Estimate(values=estimate(reply.tally, ask.bounds), std=noise_std(reply.tally, ask.bounds)))
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A finished run as an audit sees it: its plan, its tools and the bytes of its questions."""

    agreed: Agreed
    asks: tuple[Ask, ...]
    tools: Tools
    questions: Mapping[str, bytes]


def asked_of(path: Path, agreed: Agreed) -> Asked:
    """Return what a finished run asked. Raises DataError for a folder that holds no finished run of the plan."""
    tools = tools_of(agreed.plan)
    asks = schedule(agreed.plan, tools.encoder.embedding_size)
    return Asked(agreed=agreed, asks=asks, tools=tools, questions=questions_of(path, agreed, tools, asks))


def questions_of(path: Path, agreed: Agreed, tools: Tools, asks: tuple[Ask, ...]) -> dict[str, bytes]:
    """Return the bytes of every question that a finished run put, by replaying it from its folder."""
    replay = _Replay(agreed=agreed, asks=asks, kept=RunFolder(path=path), run=known_run(path))
    inquiry = cast(Inquiry, replay)  # it offers what the loop uses, and can neither ask nor write
    rounds.run(inquiry, tools, lambda _: None)
    if replay.asked("score") and (path / STUDENT / "student.npz").exists():
        with np.load(path / STUDENT / "student.npz", allow_pickle=False) as student:
            replay.ask("score", dict(student))
    return replay.questions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listener:
    """Stands where the guard stands, and keeps the exact sum that would have been noised. It answers nothing."""

    heard: list[ExactTally] = field(default_factory=list)

    def stored(self, key: object) -> None:
        """Return None: compute the sum."""
        del key

    def release(self, question: object, ask: object, key: object, exact: ExactTally) -> bytes:
        """Keep the sum."""
        del question, ask, key
        self.heard.append(exact)
        return b""


def exact_sums(  # noqa: PLR0917 - as the answer path has them
    agreed: Agreed, asks: tuple[Ask, ...], tools: Tools, index: PrivateIndex, secret: bytes, head: Head | None = None
) -> Callable[[bytes], NDArray[np.int64]]:
    """Return a function from a question's bytes to the site's exact sum, computed by the code that answers."""
    listener = _Listener()
    institution = Institution(
        agreed=agreed,
        asks=asks,
        cohort="0" * 64,
        guard=cast(Guard, listener),  # the one place where the answer path can be listened to before the noise
        index=index,
        encoder=tools.encoder,
        generator=tools.generator,
        teach=teach(index.members, secret, agreed.plan.questions.labels.teachers),
        confide=confide(index.members, secret, agreed.plan.questions.confidence.teachers),
        rendered=render_once(tools.generator, tools.encoder),
        head=head,
    )

    def exact(question: bytes) -> NDArray[np.int64]:
        institution.handle(question)
        return listener.heard.pop().values

    return exact


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerPath:
    """One site's stored answers against their exact sums.

    residuals:  noise found, in units of the noise promised by the plan, all questions together
    missing:    questions of the run that the ledger has no answer for
    uncharged:  answers without a charge of the plan's event
    noise:      by question, the noise found in lattice steps; it tells the exact sum, so it stays in this process
    """

    residuals: NDArray[np.float64]
    noise: Mapping[str, NDArray[np.float64]]
    missing: tuple[str, ...]
    uncharged: tuple[str, ...]


def answer_path(run: Asked, home: SiteHome, records: Records) -> AnswerPath:
    """Compare every answer in the site's ledger with the exact sum of its records."""
    index = build_index(records, run.agreed.plan, run.tools.encoder, home.secret)
    exact = exact_sums(run.agreed, run.asks, run.tools, index, home.secret, head_of(home, run.agreed))
    noise, residuals, missing, uncharged = {}, [], [], []
    with Ledger.open(home.path / LEDGER) as ledger:
        charges = [charge for charge in ledger.charges() if charge.key.plan_sha256 == run.agreed.sha256]
        for name, data in run.questions.items():
            ask, own = (
                find(run.asks, name),
                [charge for charge in charges if charge.key.question_sha256 == digest(data)],
            )
            stored = ledger.answer(own[-1].key) if own else None
            if stored is None:
                missing.append(name)
                continue
            if all(charge.event != ask.event for charge in own):
                uncharged.append(name)
            if ask.mechanism.std > 0.0:  # a choice adds no noise to what it answers
                noise[name] = (decode_answer(stored).values - exact(data)).astype(np.float64)
                residuals.append(noise[name] / ask.mechanism.std)
    return AnswerPath(
        noise=noise,
        residuals=np.concatenate(residuals) if residuals else np.zeros(0),
        missing=tuple(missing),
        uncharged=tuple(uncharged),
    )


def small_plan(agreed: Agreed) -> Agreed:
    """Return the plan with its questions and noise, shrunk to a fraction of a second: fewer sites, candidates, samples.

    Teacher labels, copies and scores are left out: their answers are covered by ``answer_path``. Islands are too: no
    sum over the sites is made of what they answer; and private heads, which no question releases.
    """
    plan, gradients = agreed.plan, agreed.plan.questions.gradients
    repeated: tuple[Kind, ...] = ("neighbours", "choices", "confidence")
    asked = [kind for kind in repeated if asking(plan, kind).share > 0]
    times = max((asking(plan, kind).times for kind in asked), default=0)
    changes: dict[str, Any] = {
        "sites.count": max(2, plan.privacy.dropouts + plan.privacy.colluders + 1),
        "evolution.generations": max(1, times),
        "evolution.population": 20 * len(plan.data.classes),
        "release.samples": 20 * len(plan.data.classes),
        "data.hold_out": None,
        "questions.score": None,
        "questions.labels": None,
        "questions.copies": None,
        "release.labels": plan.release.labels if plan.release.labels == "classifier" else None,
        "islands": None,
    }
    changes |= {"questions.gradients.times": min(gradients.times, STEPS)} if gradients.share else {}
    changes |= {"encoder.head": None} if plan.encoder.head.share else {}
    changes |= {f"questions.{kind}.candidates": 20 * len(plan.data.classes) for kind in asked}
    return vary(agreed, changes)


def public_records(plan: Plan, tools: Tools, site: int) -> Records:
    """Return the records of a made-up site: draws of the public generator."""
    values, classes = samples(tools.generator, len(plan.data.classes), BASE, (plan.seed, "audit", site))
    units = np.array([f"public {site} {number}" for number in range(len(classes))])
    return Records(values=values, classes=classes, units=units)


def _canary(plan: Plan, tools: Tools, copies: int) -> Records:
    """Return the public draw whose embedding is longest, under ``copies`` names: its ballot moves a sum the most."""
    genomes = tools.generator.draw(stream(plan.seed, "audit canary"), 0, 50)
    values = tools.generator.render(genomes, np.zeros(50, np.int64))
    lengths = np.linalg.norm(tools.encoder.embed(tools.encoder.encode(values)), axis=1)
    chosen = int(np.argmax(lengths))
    return Records(
        values=np.repeat(values[chosen : chosen + 1], copies, axis=0),
        classes=np.zeros(copies, np.int64),
        units=np.array([f"{CANARY} {copy}" for copy in range(copies)]),
    )


def two_world_runs(
    agreed: Agreed, *, trials: int, confidence: float, noise: NoiseFor = system_noise, copies: int = 1
) -> Finding:
    """Run the whole pipeline ``trials`` times with and without a planted record and bound its ε from below.

    The records are public draws, so nothing private is touched and nothing is charged. The attacker is the coordinator:
    it sees every noisy sum.
    copies:  under how many names the canary is planted (1, except to test that more is found)
    """
    small = small_plan(agreed)
    tools = tools_of(small.plan)
    asks = schedule(small.plan, tools.encoder.embedding_size)
    base = {f"site {number}": public_records(small.plan, tools, number) for number in range(small.plan.sites.count)}
    planted = _canary(small.plan, tools, copies)
    single = _canary(small.plan, tools, 1)
    worlds = {False: base, True: base | {"site 0": study.join([base["site 0"], planted])}}

    def sums(records: Records) -> Callable[[bytes], NDArray[np.int64]]:
        return exact_sums(small, asks, tools, build_index(records, small.plan, tools.encoder, SECRET), SECRET)

    without, own = sums(study.join(list(base.values()))), sums(single)

    def score(present: bool, number: int) -> float:
        del number
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="patevolve-audit-", dir=memory) as scratch:
            path = Path(scratch) / "run"
            run_small(small, worlds[present], path, noise)
            questions = questions_of(path, small, tools, asks)
            kept = RunFolder(path=path)
            replies = {name: kept.load_reply(name, digest(data)) for name, data in questions.items()}
        # A choice is no sum with noise in it: its law is tested where it is drawn.
        given = [(questions[name], reply.tally) for name, reply in replies.items() if reply is not None]
        seen = [(data, tally) for data, tally in given if tally.std > 0.0]
        probe = Probe(
            base=tuple(without(data) for data, _ in seen),
            canary=tuple(own(data) for data, _ in seen),
            std=tuple(tally.std for _, tally in seen),
        )
        return probe.score(tuple(tally.values for _, tally in seen))

    charged = accountant.epsilon(accountant.compose([ask.event for ask in asks]), small.plan.privacy.delta).epsilon
    return two_worlds(score, trials=trials, ledger=charged, delta=small.plan.privacy.delta, confidence=confidence)


def run_small(agreed: Agreed, records: Mapping[str, Records], path: Path, noise: NoiseFor) -> None:
    """Run a plan over made-up sites into a new folder; a release that the gate stops is no matter here."""
    open_run(path, agreed)
    sites = study.found_sites(path / "sites", records, agreed)
    try:
        simulate(agreed, sites, path, noise=noise)
    except ReleaseError:
        return  # too few samples for the gate at times; the sums, which the attacker reads, are there
