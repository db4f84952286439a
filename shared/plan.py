"""The plan: the pre-registered protocol, frozen and hashed; one changed byte is another plan.

Everything that can change the guarantee or the result stands here and is public. What depends on private records is
never a field. Device settings (threads, batch sizes) are elsewhere and can change neither. The keys are explained in
plan_sections.py and plan_head.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from patevolve.shared import checks, tomlfile
from patevolve.shared.errors import PlanError
from patevolve.shared.plan_sections import (
    Asking,
    Data,
    Encoder,
    Evolution,
    Generator,
    Islands,
    Privacy,
    Questions,
    Release,
    Sites,
)

FORMAT = 1
QUESTION_KEYS: Mapping[str, tuple[str, ...]] = {  # beside ``share``
    "counts": (),
    "prototypes": ("contrast",),
    "gradients": ("times",),
    "neighbours": ("times", "candidates", "nearest"),
    "choices": ("times", "candidates"),
    "confidence": ("times", "candidates", "teachers"),
    "labels": ("candidates", "teachers"),
    "copies": ("within", "catch"),
    "score": (),
}
GENERATORS: Mapping[str, tuple[str, ...]] = {  # by kind of data, the first being the usual one
    "table": ("tabular",),
    "image": ("simulator", "pool", "vqvae", "diffusers"),
    "text": ("pool",),
}
FEWEST_TOKENS = 8
GREY_ONLY = frozenset({"simulator", "vqvae"})  # kinds that draw no colours


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole protocol. ``seed`` names public randomness only; privacy noise has no seed."""

    format: int
    name: str
    seed: int
    privacy: Privacy
    sites: Sites
    data: Data
    generator: Generator
    release: Release
    encoder: Encoder = field(default_factory=Encoder)
    questions: Questions = field(default_factory=Questions)
    evolution: Evolution = field(default_factory=Evolution)
    islands: Islands | None = None

    def __post_init__(self) -> None:
        """Refuse a plan whose parts contradict one another."""
        if self.format != FORMAT:
            raise PlanError(f"format = {self.format} found; this version reads format {FORMAT}.")
        if not self.name.strip() or not self.name.isprintable():  # it is shown in terminals and policies
            raise PlanError(f"name = {self.name!r} found; expected one line of printable text.")
        checks.integer(seed=self.seed, at_least=0)
        _check_cohort(self)
        _check_questions(self)
        if self.islands is not None:
            _check_islands(self, self.islands)
        _check_generator(self.data, self.generator)
        if self.data.kind == "table" and dataclasses.replace(self.encoder, pairs=0.0) != Encoder():
            raise PlanError(
                "[encoder] is for images and texts; a table is encoded by its public schema. Keep pairs at most."
            )
        _check_tokens(self.data, self.encoder)
        if self.encoder.pairs and sum(column.levels > 1 for column in self.data.columns) < 2:
            raise PlanError("encoder.pairs found; expected a table of two or more columns that vary. Remove it.")
        if self.privacy.unit == "patient" and not self.data.unit:
            raise PlanError(
                "privacy.unit = 'patient' without data.unit; name the column of the patient id, or use 'record'."
            )
        if self.privacy.unit == "record" and self.data.unit:
            # One ballot per id: a record that leaves would exchange its patient's ballot, which no bound here covers.
            raise PlanError(
                f"privacy.unit = 'record' with data.unit = {self.data.unit!r} found; expected no id where every record "
                f"stands for itself. Remove data.unit, or protect the 'patient'."
            )
        n = self.sites.count * self.sites.expected_units
        if not self.privacy.delta < 1.0 / n:
            raise PlanError(
                f"delta = {self.privacy.delta} found; expected below 1/n = {1.0 / n:.2g} for {n} expected units."
            )


def _check_generator(data: Data, generator: Generator) -> None:
    expected, kind = GENERATORS[data.kind], generator.kind
    if kind not in expected:
        raise PlanError(
            f"generator.kind = {kind!r} found; data of kind {data.kind!r} needs {' or '.join(map(repr, expected))}."
        )
    if data.channels == 3 and kind in GREY_ONLY:
        raise PlanError(
            f"generator.kind = {kind!r} with data.channels = 3 found; it draws grey images alone. Use 'pool' or "
            f"'diffusers', or channels = 1."
        )
    if generator.blend and data.kind != "image":
        raise PlanError(f"generator.blend with data.kind = {data.kind!r} found; images alone blend. Remove it.")
    if data.kind == "text" and generator.variation:
        raise PlanError("generator.variation found; the texts of a pool are taken as they are. Remove it.")


def _check_tokens(data: Data, encoder: Encoder) -> None:
    """Refuse a network of texts without its tokens, tokens without such a network, and a head that texts cannot train.

    A head learns from two views of a record; of a text there are none.
    """
    if data.kind != "text" or encoder.kind != "onnx":
        if encoder.tokenizer or encoder.tokens:
            raise PlanError("encoder.tokenizer and tokens are for texts with encoder.kind = 'onnx'. Remove them.")
    elif not encoder.tokenizer or encoder.tokens < FEWEST_TOKENS:
        raise PlanError(
            f"encoder.tokenizer = {encoder.tokenizer!r} and tokens = {encoder.tokens} found; a network of texts needs "
            f"the SHA-256 of its tokenizer's file, and {FEWEST_TOKENS} tokens or more. `patevolve encoder "
            f"export-sentences` prints both."
        )
    if data.kind == "text" and encoder.head.share:
        raise PlanError("encoder.head found; it is trained on views of images, and a text has none. Remove it.")


def _check_cohort(plan: Plan) -> None:
    honest = plan.sites.count - plan.privacy.dropouts - plan.privacy.colluders
    if plan.privacy.trust == "each-site" and plan.privacy.colluders:
        raise PlanError("colluders are for trust = 'secure-sum'; each-site noise trusts nobody anyway. Remove the key.")
    if honest < 1:
        raise PlanError(f"{plan.sites.count} sites less drop-outs and colluders leave {honest}; expected at least 1.")


def _check_questions(plan: Plan) -> None:
    q = plan.questions
    shares = [getattr(q, kind).share for kind in QUESTION_KEYS]
    shares += [plan.encoder.head.share, *([plan.islands.share] if plan.islands else [])]
    if not math.fsum(shares) <= 1.0 + 1e-9:
        raise PlanError(f"the shares of the budget add up to {math.fsum(shares):.6g}; expected at most 1. Lower one.")
    for kind, used in QUESTION_KEYS.items():
        _check_keys(kind, getattr(q, kind), used)
    _check_population(plan)
    if q.neighbours.share:
        _check_neighbours(plan)
    _check_selection(plan)
    if plan.encoder.head.share and plan.encoder.head.supervised and plan.generator.kind != "simulator":
        raise PlanError(
            f"encoder.head.supervised needs public classes, and generator {plan.generator.kind!r} draws without any. "
            f"Set it to 0."
        )
    if plan.encoder.head.share and not q.neighbours.share:
        raise PlanError("encoder.head without a share for questions.neighbours; nothing would use it. Remove one.")
    if q.copies.share and not (q.copies.within > 0.0 and q.copies.catch > 0.0):
        raise PlanError("questions.copies needs within > 0 (a distance in features) and catch > 0 (a probability).")
    if q.labels.share:
        _check_labels(plan)
    elif plan.release.labels == "pate":
        raise PlanError("release.labels = 'pate' without a share for questions.labels; give it one.")
    _check_classifier(plan)
    if q.score.share and not plan.data.hold_out:
        raise PlanError("questions.score needs data.hold_out > 0: it is asked of held-out units alone.")


def _check_classifier(plan: Plan) -> None:
    """Refuse labels of a classifier that nobody trains, blends that nothing can name, and steps without any use."""
    gradients, labels = plan.questions.gradients, plan.release.labels
    if labels == "classifier" and not gradients.share:
        raise PlanError("release.labels = 'classifier' without a share for questions.gradients; give it one.")
    if labels == "classifier" and plan.questions.labels.share:
        raise PlanError("questions.labels with release.labels = 'classifier' found; nothing would use it. Remove one.")
    # Left to itself, a plan with teachers never asks its classifier for labels.
    named = labels == "classifier" or (labels == "auto" and not plan.questions.labels.share)
    if gradients.share and not (named or plan.evolution.selection in ("discriminant", "classifier")):
        raise PlanError(f"questions.gradients with release.labels = {labels!r} found; nothing would use it.")
    if plan.generator.blend and (labels != "classifier" or (plan.encoder.head.share and plan.encoder.head.supervised)):
        raise PlanError(
            "generator.blend needs release.labels = 'classifier' (and no encoder.head.supervised): the class that a "
            "blend was drawn for means nothing."
        )


def _check_keys(kind: str, asking: Asking, used: tuple[str, ...]) -> None:
    for key in dataclasses.fields(asking):
        value = getattr(asking, key.name)
        if key.name not in ("share", *used) and value != key.default:
            raise PlanError(f"questions.{kind}.{key.name} = {value} found; that question has no use for it. Remove it.")


def _check_population(plan: Plan) -> None:
    classes, kept, samples = len(plan.data.classes), plan.evolution.population, plan.release.samples
    if not (kept >= classes and samples >= classes):
        raise PlanError(
            f"evolution.population = {kept} and release.samples = {samples} found; expected at least one for each of "
            f"the {classes} classes."
        )


def _check_neighbours(plan: Plan) -> None:
    asking = plan.questions.neighbours
    if not (asking.candidates >= len(plan.data.classes) and asking.nearest >= 1):
        raise PlanError("questions.neighbours needs candidates (at least one per class) and nearest ≥ 1.")
    _check_asked(plan, "neighbours", asking)


NEEDS: Mapping[str, tuple[str, ...]] = {  # the questions of which a selection needs one
    "pcevolve": ("choices",),
    "pcevolve-prototype": ("prototypes",),
    "discriminant": ("prototypes", "gradients"),
    "classifier": ("gradients",),
    "classifier-laplace": ("confidence",),
}
SCORED = ("pcevolve-prototype", "classifier-laplace")  # selections that rank candidates by a score in [0, 1]
VOTES: Mapping[str, Literal["neighbours", "choices", "confidence"]] = {  # the question of its voted generations
    "soft": "neighbours",
    "histogram": "neighbours",
    "pcevolve": "choices",
    "classifier-laplace": "confidence",
}


def _check_selection(plan: Plan) -> None:
    """Refuse a selection without its question, and questions without their selection."""
    evolution, questions = plan.evolution, plan.questions
    needed = NEEDS.get(evolution.selection, ())
    if needed and not any(getattr(questions, kind).share for kind in needed):
        raise PlanError(
            f"evolution.selection = {evolution.selection!r} needs a share for questions.{' or .'.join(needed)}."
        )
    for kind in ("choices", "confidence"):
        asking: Asking = getattr(questions, kind)
        if not asking.share:
            continue
        if VOTES.get(evolution.selection) != kind:
            raise PlanError(
                f"questions.{kind} with evolution.selection = {evolution.selection!r} found; it has no use."
            )
        _check_asked(plan, kind, asking)
    if questions.confidence.share and questions.confidence.teachers < 1:
        raise PlanError("questions.confidence needs teachers ≥ 1: the classifiers at each site.")
    _check_unread(plan)
    if evolution.rollback and not questions.prototypes.share:
        raise PlanError("evolution.rollback needs a share for questions.prototypes: they tell what is best. Add it.")


def _check_unread(plan: Plan) -> None:
    """Refuse keys that the plan's selection does not read."""
    evolution = plan.evolution
    if evolution.lookahead and evolution.selection != "histogram":
        raise PlanError("evolution.lookahead is for selection = 'histogram'. Remove it.")
    if evolution.selection == "discriminant" and (plan.generator.kind != "pool" or plan.generator.blend):
        raise PlanError("evolution.selection = 'discriminant' needs generator.kind = 'pool' as it is, without blend.")
    if evolution.selection in ("discriminant", "classifier") and evolution.generations != 1:
        raise PlanError(f"evolution.selection = {evolution.selection!r} needs generations = 1: it chooses once.")
    if evolution.refine and evolution.selection != "discriminant":
        raise PlanError("evolution.refine is for selection = 'discriminant'. Remove it.")
    if (evolution.diversity or evolution.elites) and evolution.selection not in SCORED:
        raise PlanError(f"evolution.diversity and elites are for selection = {' or '.join(map(repr, SCORED))}. Remove.")
    if evolution.collapse and not (
        evolution.selection in SCORED or (evolution.selection == "soft" and plan.data.kind != "table")
    ):
        raise PlanError("evolution.collapse is for scored selections, and for 'soft' without tables. Remove it.")


def _check_asked(plan: Plan, kind: str, asking: Asking) -> None:
    if asking.candidates < len(plan.data.classes):
        raise PlanError(f"questions.{kind} needs candidates: at least one per class.")
    if asking.times > plan.evolution.generations:
        raise PlanError(
            f"questions.{kind}.times = {asking.times} with {plan.evolution.generations} generations found; expected at "
            f"most one question in a generation. Lower it, or the budget of the others is wasted."
        )


def _check_labels(plan: Plan) -> None:
    asking, samples = plan.questions.labels, plan.release.samples
    if not (asking.candidates >= 1 and asking.teachers >= 1):
        raise PlanError("questions.labels needs candidates ≥ 1 and teachers ≥ 1.")
    if asking.candidates != samples:
        raise PlanError(
            f"questions.labels.candidates = {asking.candidates} found; expected release.samples = {samples}, for every "
            f"released sample gets its label. Make them equal."
        )


def _check_islands(plan: Plan, islands: Islands) -> None:
    classes, votes = len(plan.data.classes), plan.questions.neighbours
    if plan.evolution.selection != "soft" or not plan.questions.prototypes.share:
        raise PlanError(
            "[islands] needs evolution.selection = 'soft' and a share for questions.prototypes: islands evolve towards "
            "released prototypes. Add them, or remove the section."
        )
    if islands.migrants > islands.candidates // classes:
        raise PlanError(
            f"islands.migrants = {islands.migrants} of each class found; a site's {islands.candidates} candidates hold "
            f"{islands.candidates // classes} of a class. Lower it, or raise islands.candidates."
        )
    arriving = plan.sites.count * islands.migrants * classes
    if 2 * arriving > plan.evolution.population:
        raise PlanError(
            f"{arriving} migrants of all sites found; expected at most half of evolution.population = "
            f"{plan.evolution.population}. Lower islands.migrants."
        )
    voted = votes.times if votes.share else 0
    if islands.times + voted > plan.evolution.generations:
        raise PlanError(
            f"islands.times = {islands.times} before {voted} generations with votes found; expected at most "
            f"{plan.evolution.generations} generations in all. Lower it, or raise evolution.generations."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """A plan with the text it was read from and the hash that names it."""

    plan: Plan
    text: str
    sha256: str


def read_plan(path: Path) -> Agreed:
    """Return the plan in a TOML file. Raises PlanError with what was found, expected and to do."""
    return agree(tomlfile.read_text(path, PlanError), where=path.name)


def agree(text: str, *, where: str = "plan") -> Agreed:
    """Return the plan in a TOML text. Raises PlanError."""
    text = tomlfile.normalise(text)
    return Agreed(plan=tomlfile.parse(text, Plan, where, PlanError), text=text, sha256=tomlfile.sha256(text))
