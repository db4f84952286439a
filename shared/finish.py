"""From chosen candidates to files: samples, the gate, the release folder and the student. All of it is public."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.files import write_atomic
from patevolve.shared.inquiry import Inquiry
from patevolve.shared.noise.discrete_gaussian import DiscreteGaussianMechanism
from patevolve.shared.noise.subsampled import LATTICE
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.accountant import Epsilon
from patevolve.shared.privacy.events import Event, to_record
from patevolve.shared.privacy.head_part import head_items, head_part
from patevolve.shared.randomness import stream
from patevolve.shared.release import gate
from patevolve.shared.release.folder import MANIFEST
from patevolve.shared.release.gate import CheckResult
from patevolve.shared.release.package import write_release
from patevolve.shared.release.proof import PROOF, Claim, Signer, write_proof
from patevolve.shared.release.samples import Samples
from patevolve.shared.release.sharpness import Discriminator, train
from patevolve.shared.report.statement import statement
from patevolve.shared.rounds import Outcome
from patevolve.shared.runfolder import RunFolder
from patevolve.shared.schedule import Ask
from patevolve.shared.schema import decode_column
from patevolve.shared.students.train import linear_student
from patevolve.shared.texts import unpacked
from patevolve.shared.tools import Tools, features_of, samples

RELEASE = "release"
STUDENT = "student"
SHARP = 100  # public draws per class that the discriminator of blurred images is trained and tried on
THINGS = {"table": "rows", "image": "images", "text": "texts"}
REFERENCE = 500  # public draws per class that the spread of the release is compared with


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Released:
    """What a run released.

    features:  (n, d) public features of the samples
    student:   arrays of a linear student trained on them
    """

    samples: Samples
    features: NDArray[np.float64]
    gate: tuple[CheckResult, ...]
    statement: list[tuple[str, str]]
    student: dict[str, NDArray[Any]]


def conclude(
    inquiry: Inquiry, outcome: Outcome, tools: Tools, signers: Sequence[Signer]
) -> tuple[Released, Score | None]:
    """Release what was chosen, signed, and have it scored if the plan says so. Raises ReleaseError and as ``ask``.

    signers: the coordinator of a deployment; every site of a run in one process
    """
    agreed, folder = inquiry.agreed, inquiry.folder
    claim = Claim(
        plan_sha256=agreed.sha256,
        run=inquiry.run,
        events=items(agreed.plan, inquiry.asks, outcome),
        epsilon=spent_by(agreed.plan, inquiry.asks, outcome).epsilon,
        delta=agreed.plan.privacy.delta,
    )

    def seal(manifest_sha256: str) -> bytes:
        return write_proof(claim, manifest_sha256=manifest_sha256, rows=inquiry.ledger.rows(), signers=signers)

    released = release(agreed, outcome, tools, inquiry.asks, folder, seal)
    score = ask_score(inquiry, released)
    if score is not None:  # its question is on record now, and the proof holds the whole record
        path = folder.path / RELEASE
        write_atomic(path / PROOF, seal(hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()))
    return released, score


def release(  # noqa: PLR0917 - as the loop has them
    agreed: Agreed,
    outcome: Outcome,
    tools: Tools,
    asks: tuple[Ask, ...],
    folder: RunFolder,
    seal: Callable[[str], bytes],
) -> Released:
    """Pass the gate and write the release and student folders. Raises ReleaseError; then nothing is released."""
    plan, every = agreed.plan, outcome.population
    values = tools.generator.render(every.genomes, every.classes)
    shown = gate.worth_showing(values, plan)
    population = every.pick(shown)
    samples = _samples(plan, values[shown], outcome.labelling.classes[shown])
    features = features_of(tools, population.genomes, population.classes)
    results = gate.run_gate(
        samples,
        plan,
        features=features,
        reference_spread=_reference(plan, tools),
        reference_duplicates=_natural_duplicates(plan, tools),
        sharpness=_discriminator(plan, tools),
        near_duplicates=gate.screened(**dataclasses.asdict(outcome.screening)) if outcome.screening else None,
        left_out=len(values) - len(shown),
    )
    gate.require(results)
    spent = spent_by(plan, asks, outcome)
    bias = sampler_delta(charged(asks, outcome), spent.epsilon) + _head_delta(plan, tools, spent.epsilon)
    words = statement(plan, spent, bias, label_method=outcome.labelling.method, unasked=gate.not_asked(results))
    write_release(
        folder.path / RELEASE,
        samples,
        plan_text=agreed.text,
        plan_sha256=agreed.sha256,
        statement=words,
        proof={"events": [{"question": name, **to_record(event)} for name, event in items(plan, asks, outcome)]},
        card=_card(plan, spent, len(samples.classes)),
        seal=seal,
    )
    student = linear_student(features, samples.classes, len(plan.data.classes))
    _write_student(folder.path / STUDENT, agreed, student)
    return Released(samples=samples, features=features, gate=results, statement=words, student=student)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The student's accuracy on held-out units as the sites answered it, with the standard deviation of its noise."""

    accuracy: float
    std: float


def ask_score(inquiry: Inquiry, released: Released) -> Score | None:
    """Return the noisy accuracy of the linear student on held-out units; None if the plan asks for none."""
    if not inquiry.asked("score"):
        return None
    tally = inquiry.ask("score", released.student)
    right, wrong = tally.values
    units = max(right + wrong, 1.0)
    return Score(accuracy=float(np.clip(right / units, 0.0, 1.0)), std=tally.std / units)


def charged(asks: tuple[Ask, ...], outcome: Outcome) -> tuple[Ask, ...]:
    """Return the questions that a run asked: all of the plan's, but teacher labels only if they were used."""
    return tuple(ask for ask in asks if ask.kind != "labels" or outcome.labelling.method == "pate")


def items(plan: Plan, asks: tuple[Ask, ...], outcome: Outcome) -> tuple[tuple[str, Event], ...]:
    """Return (name, event) of all that a run cost a site's units: its questions, and the site's private head."""
    return (*((ask.name, ask.event) for ask in charged(asks, outcome)), *head_items(plan))


def spent_by(plan: Plan, asks: tuple[Ask, ...], outcome: Outcome) -> Epsilon:
    """Return the ε of all that a run cost a site's units."""
    events = [event for _, event in items(plan, asks, outcome)]
    return accountant.epsilon(accountant.compose(events), plan.privacy.delta)


def _head_delta(plan: Plan, tools: Tools, epsilon: float) -> float:
    """Return the same as ``sampler_delta`` for the steps of the plan's head: as many values as it has weights."""
    part = head_part(plan)
    if part is None:
        return 0.0
    noise = DiscreteGaussianMechanism(sigma=part.noise_multiplier * LATTICE, l2=float(LATTICE))
    return noise.delta(len(part.rates) * tools.encoder.dimension**2, epsilon)


def sampler_delta(asks: tuple[Ask, ...], epsilon: float) -> float:
    """Return what the noise sampler's distance from its ideal law adds to δ, over all values of these questions."""
    return math.fsum(ask.mechanism.delta(ask.bounds.size, epsilon) for ask in asks)


def _samples(plan: Plan, values: NDArray[Any], classes: NDArray[np.int64]) -> Samples:
    if plan.data.kind == "image":
        return Samples(classes=classes, class_names=plan.data.classes, images=values)
    if plan.data.kind == "text":
        rows = tuple((text,) for text in unpacked(values))
        return Samples(classes=classes, class_names=plan.data.classes, columns=(plan.data.text,), rows=rows)
    cells = []
    for position, column in enumerate(plan.data.columns):
        uniforms = stream(plan.seed, "cells", column.name).random(len(values))
        cells.append(decode_column(column, values[:, position], uniforms))
    names = tuple(column.name for column in plan.data.columns)
    return Samples(classes=classes, class_names=plan.data.classes, columns=names, rows=tuple(zip(*cells, strict=True)))


def _reference(plan: Plan, tools: Tools) -> NDArray[np.float64]:
    """Return the spread, within each class, of the generator alone."""
    spreads = []
    for cls in range(len(plan.data.classes)):
        genomes = tools.generator.draw(stream(plan.seed, "reference", cls), cls, REFERENCE)
        features = features_of(tools, genomes, cls)
        spreads.append(gate.spread(features, np.zeros(REFERENCE, np.int64), 1)[0])
    return np.array(spreads)


def _discriminator(plan: Plan, tools: Tools) -> Discriminator | None:
    """Return a discriminator of blurred images trained on the generator's own, or None if the plan asks for none."""
    if plan.data.kind != "image" or not plan.release.blurred:
        return None
    images, _ = samples(tools.generator, len(plan.data.classes), SHARP, (plan.seed, "sharp"))
    return train(images)


def _natural_duplicates(plan: Plan, tools: Tools) -> float:
    """Return the share of repeated rows among as many public draws: a coarse schema repeats rows by itself."""
    if plan.data.kind != "table":
        return 0.0
    count = max(1, plan.release.samples // len(plan.data.classes))
    genomes = tools.generator.draw(stream(plan.seed, "duplicates"), 0, count)
    labels = np.zeros(count, np.int64)
    return gate.duplicate_share(_samples(plan, tools.generator.render(genomes, labels), labels))


def _card(plan: Plan, spent: Epsilon, count: int) -> dict[str, Any]:
    things = THINGS[plan.data.kind]
    origin = f"none is a real record: each was drawn from the public generator {plan.generator.kind!r}."
    if plan.generator.kind == "pool":
        thing = "an image" if plan.data.kind == "image" else "a text"
        origin = f"each is {thing} of a public pool, with a label that the sites' noised answers gave it."
    return {
        "title": plan.name,
        "what": f"{count} synthetic {things} of the classes {', '.join(plan.data.classes)}; {origin}",
        "how": [
            f"{plan.sites.count} site(s) answered noised questions; candidates evolved towards the answers.",
            f"Selection {plan.evolution.selection!r} over {plan.evolution.generations} generations, seed {plan.seed}.",
        ],
        "epsilon": spent.epsilon,
        "delta": plan.privacy.delta,
        "limits": ["Joint distributions are only as good as the questions asked; small classes are noisier."],
    }


def _write_student(folder: Path, agreed: Agreed, student: dict[str, NDArray[Any]]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **student)  # type: ignore[arg-type]  # numpy's stub takes keyword arrays for allow_pickle
    write_atomic(folder / "student.npz", buffer.getvalue())
    card = (
        f"# Student of {agreed.plan.name}\n\nMultinomial logistic regression on the public encoder's features, trained "
        f"on the released samples alone, so it costs no privacy beyond the release.\n\nPlan {agreed.sha256}. Arrays "
        f"`weights` (features, classes) and `bias` (classes,); classes: {', '.join(agreed.plan.data.classes)}.\n"
    )
    write_atomic(folder / "README.md", card.encode())
