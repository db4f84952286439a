"""The plan: the pre-registered protocol, frozen and hashed; one changed byte is another plan.

Everything that can change the guarantee or the result stands here and is public. What depends on private records is
never a field. Device settings (threads, batch sizes) are elsewhere and can change neither.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from patevolve.shared import checks, tomlfile
from patevolve.shared.errors import PlanError
from patevolve.shared.plan_head import HeadPlan
from patevolve.shared.schema import Column

FORMAT = 1
MAX_CANDIDATES = 100_000
_HASH = re.compile("[0-9a-f]{64}")
QUESTION_KEYS: Mapping[str, tuple[str, ...]] = {  # beside ``share``
    "counts": (),
    "prototypes": ("contrast",),
    "neighbours": ("times", "candidates", "nearest"),
    "choices": ("times", "candidates"),
    "confidence": ("times", "candidates", "teachers"),
    "labels": ("candidates", "teachers"),
    "copies": ("within", "catch"),
    "score": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """The budget and whom it protects against.

    epsilon, delta:  for everything the plan asks, all parts together
    unit:            what is protected whole: a patient with all records, or one record
    trust:           "each-site": every site adds the full noise and nobody else is trusted;
                     "secure-sum": sites add shares and only their masked sum is seen
    dropouts:        sites that may fail without ending the run or making the noise too small
    colluders:       sites whose shares the coordinator is assumed to know (secure-sum)
    """

    epsilon: float
    delta: float
    unit: Literal["patient", "record"] = "patient"
    trust: Literal["each-site", "secure-sum"] = "each-site"
    dropouts: int = 0
    colluders: int = 0
    records_per_unit: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.positive(epsilon=self.epsilon)
        checks.open_unit(delta=self.delta)
        checks.integer(dropouts=self.dropouts, at_least=0)
        checks.integer(colluders=self.colluders, at_least=0)
        checks.integer(records_per_unit=self.records_per_unit, at_least=1, at_most=1000)
        if self.unit == "record" and self.records_per_unit != 1:
            raise PlanError("privacy.records_per_unit is for unit = 'patient'; a record is one record. Remove the key.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """The cohort: how many sites take part, and the public guess of their size that planning uses."""

    count: int
    expected_units: int

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(count=self.count, at_least=1, at_most=100_000)
        checks.integer(expected_units=self.expected_units, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What a record is: its kind, its class column, its unit, and the public schema or image target.

    height, width:  every image becomes one of this size, with levels 0 to 255
    channels:       1: grey, to which colour is converted; 3: RGB, in which grey is repeated
    fit:            images of another size are refused ("exact"), padded with black to the shape, cropped to it around
                    the middle, or stretched; then resampled
    value_range:    (low, high) of the source that become black and white; empty: DICOM's own window, or the whole
                    range of 8- and 16-bit values; other values are refused without it
    frames:         of a file with several frames or slices: refuse the file, or take the "first", "middle" or "all"
    """

    kind: Literal["table", "image"]
    classes: tuple[str, ...]
    label: str
    unit: str = ""
    site: str = ""
    hold_out: float = 0.0
    columns: tuple[Column, ...] = ()
    height: int = 0
    width: int = 0
    channels: int = 1
    fit: Literal["exact", "pad", "crop", "stretch"] = "exact"
    value_range: tuple[float, ...] = ()
    frames: Literal["refuse", "first", "middle", "all"] = "refuse"

    def __post_init__(self) -> None:
        """Refuse a data section whose parts do not fit its kind."""
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise PlanError(f"data.classes = {list(self.classes)} found; expected two or more distinct names.")
        if any(not name or name != name.strip() for name in (*self.classes, self.label)):
            raise PlanError(
                f"data.label = {self.label!r} with classes {list(self.classes)} found; expected names without spaces "
                f"around them, none of them empty."
            )
        if not 0.0 <= self.hold_out <= 0.5:
            raise PlanError(f"data.hold_out = {self.hold_out} found; expected a fraction from 0 to 0.5.")
        if self.kind == "table" and not self.columns:
            raise PlanError("data.kind = 'table' without columns; list the public schema under [[data.columns]].")
        if self.kind == "table" and all(column.levels == 1 for column in self.columns):
            raise PlanError("every column of [[data.columns]] has one level; expected at least one that can vary.")
        names = [*(name for name in (self.label, self.unit, self.site) if name), *(c.name for c in self.columns)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PlanError(f"data names {', '.join(map(repr, twice))} twice; expected one column for each purpose.")
        if self.kind == "image" and not (8 <= self.height <= 1024 and 8 <= self.width <= 1024):
            raise PlanError(f"data.height/width = {self.height}/{self.width} found; expected 8 to 1024 pixels each.")
        _check_target(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image: (height, width), or (height, width, 3) in colour."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)


def _check_target(data: Data) -> None:
    """Refuse a range that maps nothing, and settings of images for a table."""
    if data.kind == "table" and (data.channels, data.fit, data.value_range, data.frames) != (1, "exact", (), "refuse"):
        raise PlanError("data.channels, fit, value_range and frames are for kind = 'image'. Remove them.")
    if data.channels not in (1, 3):
        raise PlanError(f"data.channels = {data.channels} found; expected 1 (grey) or 3 (RGB).")
    if data.channels == 3 and data.value_range:
        raise PlanError(
            "data.value_range with channels = 3 found; it is for grey: colours have their type's. Remove it."
        )
    bounds = [checks.finite(value_range=bound) for bound in data.value_range]
    if bounds and not (len(bounds) == 2 and bounds[0] < bounds[1]):
        raise PlanError(f"data.value_range = {bounds} found; expected the two values that become black and white.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One part of the budget: its share of ρ, split evenly over how often it is asked.

    share:       fraction of the plan's ρ; 0 = not asked
    times:       how many questions of this part the run asks
    candidates:  how many candidates one question carries (all classes together)
    nearest:     soft votes: a unit's k nearest candidates of its class
    teachers:    PATE teachers, or classifiers that say how sure they are, at each site
    contrast:    prototypes: share of a ballot's squared norm that tells classes apart; 0 = one slot per class
    within:      copies: distance in public features up to which a sample counts as a copy of a record
    catch:       copies: probability with which a sample that is a copy is to be dropped
    """

    share: float = 0.0
    times: int = 1
    candidates: int = 0
    nearest: int = 0
    teachers: int = 0
    contrast: float = 0.0
    within: float = 0.0
    catch: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        share = checks.non_negative(share=self.share)
        if not share <= 1.0:
            raise PlanError(f"share = {share} found; expected a fraction of the budget from 0 to 1.")
        checks.integer(times=self.times, at_least=1, at_most=1000)
        checks.integer(candidates=self.candidates, at_least=0, at_most=MAX_CANDIDATES)
        checks.integer(nearest=self.nearest, at_least=0, at_most=MAX_CANDIDATES)
        checks.integer(teachers=self.teachers, at_least=0, at_most=100_000)
        if not 0.0 <= checks.finite(contrast=self.contrast) < 1.0:
            raise PlanError(f"contrast = {self.contrast} found; expected a share from 0 to below 1.")
        checks.non_negative(within=self.within)
        if not 0.0 <= checks.finite(catch=self.catch) < 1.0:
            raise PlanError(f"catch = {self.catch} found; expected a probability from 0 to below 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What may be asked; a question outside this table is refused by every site."""

    counts: Asking = field(default_factory=Asking)
    prototypes: Asking = field(default_factory=Asking)
    neighbours: Asking = field(default_factory=Asking)
    choices: Asking = field(default_factory=Asking)
    confidence: Asking = field(default_factory=Asking)
    labels: Asking = field(default_factory=Asking)
    copies: Asking = field(default_factory=Asking)
    score: Asking = field(default_factory=Asking)


GENERATORS: Mapping[str, tuple[str, ...]] = {  # by kind of data, the first being the usual one
    "table": ("tabular",),
    "image": ("simulator", "pool", "vqvae", "diffusers"),
}
GREY_ONLY = frozenset({"simulator", "vqvae"})  # kinds that draw no colours
FROM_FILES = frozenset({"vqvae", "pool", "diffusers", "onnx"})  # kinds that a public file defines
MAY_HAVE_FILES = frozenset({"simulator"})  # kinds that work without one too


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """The public generator: what a genome is and how it is rendered.

    asset:      SHA-256 of the public file that a kind of FROM_FILES draws from; "simulator": of more font faces, if any
    variation:  "pool": how far its images are shifted and bent, 0 (as they are) to 1 (a pixel or two of 28);
                "simulator": how far single strokes bend and thicken, 0 (not by themselves) to 1
    prompts:    "diffusers": texts to draw images from, with {class} where the class name goes
    steps:      "diffusers": denoising steps of an image
    """

    kind: Literal["tabular", "simulator", "pool", "vqvae", "diffusers"]
    asset: str = ""
    variation: float = 0.0
    prompts: tuple[str, ...] = ()
    steps: int = 0

    def __post_init__(self) -> None:
        """Refuse a kind without its file, or a setting without use."""
        _check_asset("generator", self.kind, self.asset)
        if not 0.0 <= checks.finite(variation=self.variation) <= 1.0:
            raise PlanError(f"generator.variation = {self.variation} found; expected 0 to 1.")
        _check_prompts(self)
        if self.variation and self.kind not in ("pool", "simulator"):
            raise PlanError(f"generator.variation found; kind {self.kind!r} has no use for it. Remove it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The public encoder of records and candidates.

    kind:       "auto": the public schema for tables, orientation histograms for images; "onnx": a public network
    asset:      SHA-256 of the public file that a kind of FROM_FILES encodes with
    fitted:     SHA-256 of the statistics that `patevolve encoder fit` wrote; empty: every machine fits them itself
    dimension:  features kept of what the network or the histograms say (principal components of public images)
    embedding:  what prototypes are class means of: "fourier" features of the components, or the components ("linear")
    widths:     of the Gaussian kernels that the Fourier features stand for, in units of the components' mean norm
    head:       what each site trains on these features for its own ``neighbours`` votes (docs/encoder.md)
    pairs:      tables: share of an embedding's squared norm for the two-way tables of all pairs of columns;
                0 = columns are taken as independent within a class
    """

    kind: Literal["auto", "onnx"] = "auto"
    asset: str = ""
    fitted: str = ""
    dimension: int = 64
    embedding: Literal["fourier", "linear"] = "fourier"
    widths: tuple[float, ...] = (0.25, 0.5)
    head: HeadPlan = field(default_factory=HeadPlan)
    pairs: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a kind without its file, or a size outside its domain."""
        if not 0.0 <= checks.finite(pairs=self.pairs) < 1.0:
            raise PlanError(f"encoder.pairs = {self.pairs} found; expected a share from 0 to below 1.")
        _check_asset("encoder", self.kind, self.asset)
        if self.fitted and not _HASH.fullmatch(self.fitted):
            raise PlanError(f"encoder.fitted = {self.fitted!r} found; expected the 64 hex digits of a file's SHA-256.")
        checks.integer(dimension=self.dimension, at_least=2, at_most=128)
        if not 1 <= len([checks.positive(widths=width) for width in self.widths]) <= 4:
            raise PlanError(f"encoder.widths = {list(self.widths)} found; expected one to four positive numbers.")


def _check_prompts(generator: Generator) -> None:
    checks.integer(steps=generator.steps, at_least=0, at_most=1000)
    if generator.kind != "diffusers":
        if generator.prompts or generator.steps:
            raise PlanError(f"generator.prompts or steps found; kind {generator.kind!r} has no use for them.")
        return
    if not generator.prompts or not all("{class}" in prompt for prompt in generator.prompts):
        raise PlanError(
            f"generator.prompts = {list(generator.prompts)} found; kind 'diffusers' expects one or more texts, each "
            f"with {{class}} where the class name goes."
        )
    if not generator.steps:
        raise PlanError("generator.steps = 0 found; kind 'diffusers' expects the denoising steps of an image, as 20.")


def _check_asset(section: str, kind: str, asset: str) -> None:
    needed = kind in FROM_FILES
    if needed and not _HASH.fullmatch(asset):
        raise PlanError(
            f"{section}.asset = {asset!r} found; kind {kind!r} expects the SHA-256 of its public file in 64 hex digits."
        )
    if asset and not _HASH.fullmatch(asset):
        raise PlanError(f"{section}.asset = {asset!r} found; expected the 64 hex digits of a file's SHA-256.")
    if asset and not needed and kind not in MAY_HAVE_FILES:
        raise PlanError(f"{section}.asset found; kind {kind!r} has no use for a file. Remove it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """How the population evolves between questions; everything here is public and free (docs/evolution.md).

    selection:    "soft": steered by released prototypes and soft votes; "histogram": Private Evolution (Lin 2024);
                  "pcevolve": each site chooses one candidate per class by the exponential mechanism (Zhang 2025);
                  "pcevolve-prototype": its filter and calibrator around released prototypes, free;
                  "classifier-laplace": the sites' classifiers say how sure they are, with Laplace noise;
                  "discriminant": the images of a public pool, told apart by the released prototypes, free;
                  "none": candidates stay as the generator first drew them
    population:   candidates kept per generation, all classes together
    generations:  how many generations
    mutation:     strengths along the run, first to last, in equal stretches (floor 0.05)
    crossover:    fraction of offspring made by crossing two parents
    offspring:    children per member of the population in each generation
    bandwidth:    width, in feature distance, over which "soft" votes are averaged over neighbouring candidates
    jitter:       strength of a last mutation, so that candidates chosen twice differ; 0 = none
    threshold:    "histogram" only: votes lose this many standard deviations of their noise, and stop at 0
    lookahead:    "histogram" only: variations by whose mean features a candidate is judged; 0 = by its own
    tau:          similarity calibrator of both "pcevolve" selections
    diversity:    λ of λ·(1 − largest similarity to those already kept), added to a candidate's score in [0, 1]
    elites:       candidates of each class kept for their score alone, before λ counts
    collapse:     a class has collapsed below this fraction of the spread of the generator's own draws; 0 = never
    restart:      fraction of a collapsed class, its worst, that is drawn afresh
    diversity_collapsed:  λ for a collapsed class
    refine:       "discriminant" only: how often the pool is told apart anew by what it was told to be
    rollback:     end with the generation whose mean embedding is nearest to the released prototypes, not with the last
    """

    selection: Literal[
        "soft", "histogram", "pcevolve", "pcevolve-prototype", "classifier-laplace", "discriminant", "none"
    ] = "soft"
    population: int = 256
    generations: int = 10
    mutation: tuple[float, ...] = (0.3, 0.15, 0.05)
    crossover: float = 0.5
    offspring: int = 4
    bandwidth: float = 0.25
    threshold: float = 0.0
    jitter: float = 0.0
    lookahead: int = 0
    tau: float = 10.0
    diversity: float = 0.0
    elites: int = 0
    collapse: float = 0.0
    restart: float = 0.1
    diversity_collapsed: float = 0.6
    refine: int = 0
    rollback: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(population=self.population, at_least=2, at_most=MAX_CANDIDATES)
        checks.integer(generations=self.generations, at_least=0, at_most=10_000)
        checks.integer(offspring=self.offspring, at_least=1, at_most=1000)
        checks.positive(bandwidth=self.bandwidth)
        checks.non_negative(threshold=self.threshold)
        if not checks.non_negative(jitter=self.jitter) <= 1.0:
            raise PlanError(f"evolution.jitter = {self.jitter} found; expected a strength from 0 to 1.")
        if not 0.0 <= checks.finite(crossover=self.crossover) <= 1.0:
            raise PlanError(f"evolution.crossover = {self.crossover} found; expected a fraction from 0 to 1.")
        if not self.mutation or not all(0.05 <= checks.finite(mutation=m) <= 1.0 for m in self.mutation):
            raise PlanError(f"evolution.mutation = {list(self.mutation)} found; expected strengths from 0.05 to 1.")
        checks.integer(refine=self.refine, at_least=0, at_most=100)
        checks.integer(lookahead=self.lookahead, at_least=0, at_most=100)
        checks.integer(elites=self.elites, at_least=0, at_most=MAX_CANDIDATES)
        checks.positive(tau=self.tau)
        for name in ("diversity", "diversity_collapsed", "collapse", "restart"):
            value = getattr(self, name)
            if not 0.0 <= checks.finite(**{name: value}) <= (10.0 if name.startswith("diversity") else 1.0):
                raise PlanError(f"evolution.{name} = {value} found; expected a fraction (λ: up to 10).")


@dataclass(frozen=True, slots=True, kw_only=True)
class Islands:
    """Sub-populations that the sites evolve on their own devices, from the section ``[islands]``; without it, none.

    They start from what the coordinator sends of its population, towards the released prototypes, in the ``times``
    generations before those that are voted on.

    migrants:     candidates of each class that a site sends home each time
    candidates:   size of a site's sub-population, all classes together
    generations:  how many generations it evolves before it sends its migrants
    times:        how many exchanges the run has
    share:        fraction of the plan's ρ for each site's votes on its own sub-population, all times together; 0 = they
                  follow what was released and read no private record
    nearest:      soft votes: a unit's k nearest candidates of its class; only with a share
    """

    migrants: int
    candidates: int
    generations: int = 1
    times: int = 1
    share: float = 0.0
    nearest: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(migrants=self.migrants, at_least=1, at_most=MAX_CANDIDATES)
        checks.integer(candidates=self.candidates, at_least=2, at_most=MAX_CANDIDATES)
        checks.integer(generations=self.generations, at_least=1, at_most=1000)
        checks.integer(times=self.times, at_least=1, at_most=1000)
        checks.integer(nearest=self.nearest, at_least=0, at_most=MAX_CANDIDATES)
        if not checks.non_negative(share=self.share) <= 1.0:
            raise PlanError(f"islands.share = {self.share} found; expected a fraction of the budget from 0 to 1.")
        if self.share and not self.nearest:
            raise PlanError("islands.share without islands.nearest found; say how many candidates a unit votes for.")
        if self.nearest and not self.share:
            raise PlanError(f"islands.nearest = {self.nearest} without a share found; nobody votes. Remove it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is released: how many samples, and how their labels are decided.

    labels:  "votes": the class for which a candidate was voted; "pate": noisy teacher votes;
             "auto": the planner chooses and says why
    blurred: largest share of images that may look blurred, beyond what the generator's own do; 0 = nobody looks
    """

    samples: int
    labels: Literal["auto", "votes", "pate"] = "auto"
    blurred: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(samples=self.samples, at_least=2, at_most=MAX_CANDIDATES)
        if not 0.0 <= checks.finite(blurred=self.blurred) <= 1.0:
            raise PlanError(f"release.blurred = {self.blurred} found; expected a share from 0 to 1.")


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
        _check_generator(self.data, self.generator.kind)
        if self.data.kind == "table" and dataclasses.replace(self.encoder, pairs=0.0) != Encoder():
            raise PlanError("[encoder] is for images; a table is encoded by its public schema. Keep pairs at most.")
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


def _check_generator(data: Data, kind: str) -> None:
    expected = GENERATORS[data.kind]
    if kind not in expected:
        raise PlanError(
            f"generator.kind = {kind!r} found; data of kind {data.kind!r} needs {' or '.join(map(repr, expected))}."
        )
    if data.channels == 3 and kind in GREY_ONLY:
        raise PlanError(
            f"generator.kind = {kind!r} with data.channels = 3 found; it draws grey images alone. Use 'pool' or "
            f"'diffusers', or channels = 1."
        )


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
    if q.score.share and not plan.data.hold_out:
        raise PlanError("questions.score needs data.hold_out > 0: it is asked of held-out units alone.")


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


NEEDS: Mapping[str, str] = {  # the question without which a selection cannot work
    "pcevolve": "choices",
    "pcevolve-prototype": "prototypes",
    "discriminant": "prototypes",
    "classifier-laplace": "confidence",
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
    needed = NEEDS.get(evolution.selection, "")
    if needed and not getattr(questions, needed).share:
        raise PlanError(f"evolution.selection = {evolution.selection!r} needs a share for questions.{needed}.")
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
    if evolution.selection == "discriminant" and (plan.generator.kind != "pool" or evolution.generations != 1):
        raise PlanError("evolution.selection = 'discriminant' needs generator.kind = 'pool' and generations = 1.")
    if evolution.refine and evolution.selection != "discriminant":
        raise PlanError("evolution.refine is for selection = 'discriminant'. Remove it.")
    if (evolution.diversity or evolution.elites) and evolution.selection not in SCORED:
        raise PlanError(f"evolution.diversity and elites are for selection = {' or '.join(map(repr, SCORED))}. Remove.")
    if evolution.collapse and not (
        evolution.selection in SCORED or (evolution.selection == "soft" and plan.data.kind == "image")
    ):
        raise PlanError("evolution.collapse is for scored selections, and for 'soft' with images. Remove it.")


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
