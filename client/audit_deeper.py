"""Attacks of an audit that rebuild, imitate or plant: inversion, shadow students, many canaries in one run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.client import study
from patevolve.client.audit_pipeline import (
    MEMORY,
    SECRET,
    Asked,
    exact_sums,
    public_records,
    questions_of,
    run_small,
    small_plan,
)
from patevolve.client.guard import NoiseFor
from patevolve.client.private_index import build_index
from patevolve.client.simulate import system_noise
from patevolve.shared.audit import inversion, one_run
from patevolve.shared.audit.inversion import Inversion
from patevolve.shared.audit.one_run import OneRun
from patevolve.shared.data.records import Records
from patevolve.shared.finish import STUDENT
from patevolve.shared.messages import digest
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy import accountant
from patevolve.shared.randomness import stream
from patevolve.shared.runfolder import RunFolder
from patevolve.shared.schedule import find, schedule
from patevolve.shared.tools import Tools, samples, tools_of
from patevolve.shared.votes.ballots import class_code

Floats = NDArray[np.float64]
TAUGHT = 2000  # public samples that teach a decoder, all classes together
REBUILT = 200  # records that are rebuilt
LINE_UP = 500  # records that a rebuilt one is picked from, besides itself
CANARIES = 100


def inversions(
    run: Asked, records: Records, others: Records | None, noise: Sequence[Mapping[str, Floats]]
) -> list[Inversion]:
    """Rebuild records from their embeddings, and from their ballots for the prototypes under the noise that was found.

    noise:  by site and question, the noise in the stored answers (``AnswerPath.noise``)
    The attacker on the votes knows every record but one, so that of the sum one ballot and the noise are left.
    """
    plan, encoder = run.agreed.plan, run.tools.encoder
    classes = len(plan.data.classes)
    values, _ = samples(run.tools.generator, classes, max(2, TAUGHT // classes), (plan.seed, "audit decoder"))
    embed, wanted = encoder.embed(encoder.encode(values)), _flat(plan, run.tools, values)
    chosen = np.linspace(0, len(records) - 1, min(REBUILT, len(records))).astype(np.int64)
    target, rest = records.pick(chosen), np.setdiff1d(np.arange(len(records)), chosen)
    pool = [records.pick(rest[:LINE_UP]), *([others.pick(np.arange(min(len(others), LINE_UP)))] if others else [])]
    line_up = _flat(plan, run.tools, np.concatenate([one.values for one in pool]))[:LINE_UP]
    true, seen = _flat(plan, run.tools, target.values), encoder.embed(encoder.encode(target.values))
    found = [inversion.inversion("the encoder: from embeddings", inversion.taught(embed, wanted)(seen), true, line_up)]
    mixed = [one["prototypes"] for one in noise if "prototypes" in one]
    if mixed:
        ask = find(run.asks, "prototypes")
        code = class_code(len(plan.data.classes), plan.questions.prototypes.contrast)
        apart = code @ np.sum(mixed, axis=0).reshape(len(code), -1) / ask.bounds.scale
        std = float(np.sqrt(np.mean(apart**2)))  # as it was found: the most that an attacker could know of it
        decoder = inversion.taught(embed, wanted, std)
        rebuilt = decoder(seen + apart[target.classes])
        found.append(inversion.inversion("the votes: all records known but one", rebuilt, true, line_up))
    return found


def _flat(plan: Plan, tools: Tools, values: NDArray[Any]) -> Floats:
    """Return what is to be rebuilt: one-hot rows of a table, features of a text, pixels of an image in [0, 1]."""
    if plan.data.kind != "image":
        return tools.encoder.encode(values)
    return np.asarray(values.reshape(len(values), -1) / 255.0, dtype=np.float64)


def shadow_students(
    agreed: Agreed, reference: Records, sizes: Mapping[str, int], count: int
) -> list[dict[str, Floats]]:
    """Return ``count`` linear students of the whole pipeline over records that took no part, drawn with replacement.

    sizes:  how many records each site has in the run that is attacked
    """
    found = []
    for number in range(count):
        rng = stream(agreed.plan.seed, "audit shadows", number)
        records = {}
        for site, size in sizes.items():
            drawn = reference.pick(rng.integers(len(reference), size=size))
            units = np.array([f"shadow {place}" for place in range(size)])
            records[site] = Records(values=drawn.values, classes=drawn.classes, units=units)
        with tempfile.TemporaryDirectory(prefix="patevolve-audit-", dir=_memory()) as scratch:
            path = Path(scratch) / "run"
            run_small(agreed, records, path, system_noise)
            student = path / STUDENT / "student.npz"
            if student.exists():
                with np.load(student, allow_pickle=False) as arrays:
                    found.append({"weights": arrays["weights"], "bias": arrays["bias"]})
    return found


def _memory() -> Path | None:
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def one_run_audit(
    agreed: Agreed, *, confidence: float, noise: NoiseFor = system_noise, canaries: int = CANARIES
) -> OneRun:
    """Run the shrunk pipeline once over public records, each canary in or out by a coin, and bound ε from below.

    The attacker is the coordinator: it sees every noisy sum, knows every ballot, and weighs them all against the noise
    (the best linear estimate of who is in).
    """
    small = small_plan(agreed)
    tools = tools_of(small.plan)
    asks = schedule(small.plan, tools.encoder.embedding_size)
    base = {f"site {number}": public_records(small.plan, tools, number) for number in range(small.plan.sites.count)}
    planted = _canaries(small.plan, tools, canaries)
    present = stream(small.plan.seed, "audit coins", os.urandom(16).hex()).random(canaries) < 0.5
    world = base | {"site 0": study.join([base["site 0"], planted.pick(present)])}
    with tempfile.TemporaryDirectory(prefix="patevolve-audit-", dir=_memory()) as scratch:
        path = Path(scratch) / "run"
        run_small(small, world, path, noise)
        questions = questions_of(path, small, tools, asks)
        kept = RunFolder(path=path)
        replies = {name: kept.load_reply(name, digest(data)) for name, data in questions.items()}
    seen = {name: reply.tally for name, reply in replies.items() if reply is not None and reply.tally.std > 0.0}

    def ballots(records: Records) -> Floats:
        index = build_index(records, small.plan, tools.encoder, SECRET)
        exact = exact_sums(small, asks, tools, index, SECRET)
        return np.concatenate([exact(questions[name]) / tally.std for name, tally in seen.items()])

    known = ballots(study.join(list(base.values())))
    own = np.stack([ballots(planted.pick(np.array([place]))) for place in range(canaries)])
    left = np.concatenate([tally.values / tally.std for tally in seen.values()]) - known - own.sum(axis=0) / 2.0
    scores = np.linalg.solve(own @ own.T + 4.0 * np.eye(canaries), own @ left)
    charged = accountant.epsilon(accountant.compose([ask.event for ask in asks]), small.plan.privacy.delta).epsilon
    return one_run.judged(scores, present, ledger=charged, delta=small.plan.privacy.delta, confidence=confidence)


def _canaries(plan: Plan, tools: Tools, count: int) -> Records:
    """Return ``count`` public draws, the classes in turn."""
    classes = np.arange(count) % len(plan.data.classes)
    values = []
    for cls in range(len(plan.data.classes)):
        size = int(np.sum(classes == cls))
        genomes = tools.generator.draw(stream(plan.seed, "audit canaries", cls), cls, size)
        values.append(tools.generator.render(genomes, np.full(size, cls)))
    order = np.argsort(classes, kind="stable")
    units = np.array([f"canary {place}" for place in range(count)])
    return Records(values=np.concatenate(values), classes=classes[order], units=units)
