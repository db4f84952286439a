"""The sections of a plan, key by key: what each means, and which numbers it may hold by itself.

What sections must agree on between them is checked by the plan as a whole (plan.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from patevolve.shared import checks
from patevolve.shared.errors import PlanError
from patevolve.shared.plan_head import HeadPlan
from patevolve.shared.schema import Column, Schema
from patevolve.shared.texts import TextColumn

MAX_CANDIDATES = 100_000
FROM_FILES = frozenset({"vqvae", "pool", "diffusers", "onnx"})  # kinds that a public file defines
MAY_HAVE_FILES = frozenset({"simulator"})  # kinds that work without one too
MOST_TOKENS = 1024  # of a text that a network reads
SHORTEST, LONGEST = 16, 4096  # bytes that a text keeps
_HASH = re.compile("[0-9a-f]{64}")


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
    text, length:   of texts: the column that holds them, and how many bytes of UTF-8 each keeps; longer ones are cut
    """

    kind: Literal["table", "image", "text"]
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
    text: str = ""
    length: int = 0

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
        names = [name for name in (self.label, self.unit, self.site, self.text) if name]
        names += [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PlanError(f"data names {', '.join(map(repr, twice))} twice; expected one column for each purpose.")
        if self.kind == "image" and not (8 <= self.height <= 1024 and 8 <= self.width <= 1024):
            raise PlanError(f"data.height/width = {self.height}/{self.width} found; expected 8 to 1024 pixels each.")
        _check_target(self)
        _check_text(self)

    @property
    def fields(self) -> Schema | TextColumn:
        """What a row of a table is read as: the columns of the schema, or the one that holds the text."""
        return TextColumn(name=self.text, length=self.length) if self.kind == "text" else self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a value: (height, width) of an image, (height, width, 3) in colour, (bytes,) of a text."""
        if self.kind == "text":
            return (self.length,)
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)


def _check_target(data: Data) -> None:
    """Refuse a range that maps nothing, and settings of images for another kind."""
    if data.kind != "image" and (data.channels, data.fit, data.value_range, data.frames) != (1, "exact", (), "refuse"):
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


def _check_text(data: Data) -> None:
    """Refuse texts without a column or a length, and either of them for another kind."""
    if data.kind != "text":
        if data.text or data.length:
            raise PlanError("data.text and data.length are for kind = 'text'. Remove them.")
        return
    if data.columns or data.height or data.width:
        raise PlanError("[[data.columns]], data.height or width found; a text has none of them. Remove them.")
    if not data.text or data.text != data.text.strip():
        raise PlanError(f"data.text = {data.text!r} found; expected the name of the column that holds the text.")
    if not SHORTEST <= data.length <= LONGEST:
        raise PlanError(f"data.length = {data.length} found; expected {SHORTEST} to {LONGEST} bytes of UTF-8.")


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
    gradients: Asking = field(default_factory=Asking)
    neighbours: Asking = field(default_factory=Asking)
    choices: Asking = field(default_factory=Asking)
    confidence: Asking = field(default_factory=Asking)
    labels: Asking = field(default_factory=Asking)
    copies: Asking = field(default_factory=Asking)
    score: Asking = field(default_factory=Asking)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """The public generator: what a genome is and how it is rendered.

    asset:      SHA-256 of the public file that a kind of FROM_FILES draws from; "simulator": of more font faces, if any
    variation:  "pool" of images: how far they are shifted and bent, 0 (as they are) to 1 (a pixel or two of 28);
                "simulator": how far single strokes bend and thicken, 0 (not by themselves) to 1
    blend:      fraction of the candidates that are means of two images, for a classifier to say what they are
                (``release.labels = "classifier"``)
    prompts:    "diffusers": texts to draw images from, with {class} where the class name goes
    steps:      "diffusers": denoising steps of an image
    """

    kind: Literal["tabular", "simulator", "pool", "vqvae", "diffusers"]
    asset: str = ""
    variation: float = 0.0
    blend: float = 0.0
    prompts: tuple[str, ...] = ()
    steps: int = 0

    def __post_init__(self) -> None:
        """Refuse a kind without its file, or a setting without use."""
        _check_asset("generator", self.kind, self.asset)
        if not 0.0 <= checks.finite(variation=self.variation) <= 1.0:
            raise PlanError(f"generator.variation = {self.variation} found; expected 0 to 1.")
        if not 0.0 <= checks.finite(blend=self.blend) <= 1.0:
            raise PlanError(f"generator.blend = {self.blend} found; expected a fraction from 0 to 1.")
        _check_prompts(self)
        if self.variation and self.kind not in ("pool", "simulator"):
            raise PlanError(f"generator.variation found; kind {self.kind!r} has no use for it. Remove it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The public encoder of records and candidates.

    kind:       "auto": the public schema for tables, orientation histograms for images, hashed words for texts;
                "onnx": a public network
    asset:      SHA-256 of the public file that a kind of FROM_FILES encodes with
    tokenizer:  SHA-256 of the public file that cuts texts into the tokens of the network in ``asset``
    tokens:     how many tokens of a text the network reads
    fitted:     SHA-256 of the statistics that `patevolve encoder fit` wrote; empty: every machine fits them itself
    dimension:  features kept of what the network, histograms or words say (principal components of public records)
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
    tokenizer: str = ""
    tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse a kind without its file, or a size outside its domain."""
        if not 0.0 <= checks.finite(pairs=self.pairs) < 1.0:
            raise PlanError(f"encoder.pairs = {self.pairs} found; expected a share from 0 to below 1.")
        _check_asset("encoder", self.kind, self.asset)
        if self.fitted and not _HASH.fullmatch(self.fitted):
            raise PlanError(f"encoder.fitted = {self.fitted!r} found; expected the 64 hex digits of a file's SHA-256.")
        if self.tokenizer and not _HASH.fullmatch(self.tokenizer):
            raise PlanError(f"encoder.tokenizer = {self.tokenizer!r} found; expected the 64 hex digits of a SHA-256.")
        checks.integer(tokens=self.tokens, at_least=0, at_most=MOST_TOKENS)
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
                  "discriminant": the images of a public pool, told apart by the classifier of
                  questions.gradients or, without one, by the released prototypes, free;
                  "classifier": what the classifier of questions.gradients takes for the class it was drawn for, free;
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
        "soft",
        "histogram",
        "pcevolve",
        "pcevolve-prototype",
        "classifier-laplace",
        "discriminant",
        "classifier",
        "none",
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

    labels:  "votes": the class for which a candidate was voted; "pate": noisy teacher votes; "classifier": what the
             classifier of questions.gradients says; "auto": the planner chooses and says why
    blurred: largest share of images that may look blurred, beyond what the generator's own do; 0 = nobody looks
    """

    samples: int
    labels: Literal["auto", "votes", "pate", "classifier"] = "auto"
    blurred: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(samples=self.samples, at_least=2, at_most=MAX_CANDIDATES)
        if not 0.0 <= checks.finite(blurred=self.blurred) <= 1.0:
            raise PlanError(f"release.blurred = {self.blurred} found; expected a share from 0 to 1.")
