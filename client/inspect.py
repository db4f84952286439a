"""What a site's data holds and whether it can take part, for the eyes of the site alone.

Nothing is charged and nothing may leave: counts of private records are private. The result is sealed in ``SiteOnly``,
which no message, log or file format of this package takes; only the site's own screen and folder open it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from patevolve.shared.data.layout import Layout
from patevolve.shared.data.load import columns_of, encode_piece, npz_images, read_items, read_npz
from patevolve.shared.data.manifest import find
from patevolve.shared.data.names import is_there, shown
from patevolve.shared.data.parquet import Cells, pieces
from patevolve.shared.data.records import Records
from patevolve.shared.data.survey import SiteCount, Survey, Surveyor
from patevolve.shared.data.target import doubts, target_of
from patevolve.shared.errors import DataError
from patevolve.shared.plan import Plan
from patevolve.shared.plan_sections import Data
from patevolve.shared.privacy import advice, odds
from patevolve.shared.privacy.planner import Part, label_noise, pooled, spend
from patevolve.shared.privacy.site_only import SiteOnly

MOST_LISTED = 200  # refused or ignored files and rows that are listed by name
LOUD = 0.4  # from this probability on, a flip is no better than a coin and is said loudly
FEW_PER_TEACHER = 10  # units of a class for each teacher below which teachers learn little

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSize:
    """One class at one site.

    empty_teachers:  expected number of the plan's teachers here that get no unit of this class
    verdict:         "enough", "few", "too small" (the plan's teachers cannot be filled), "absent"
    """

    site: str
    name: str
    records: int
    units: int
    empty_teachers: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Probability that the noise overturns something that this site's own votes say."""

    question: str
    what: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Inspection:
    """The whole report. ``problems`` keep the site from taking part; ``warnings`` do not."""

    name: str
    plan: str
    kind: str
    survey: Survey
    classes: tuple[ClassSize, ...]
    flips: tuple[Flip, ...]
    refused: tuple[Pair, ...]
    refused_count: int
    ignored: tuple[Pair, ...]
    ignored_count: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Show nothing of the content: representations end up in logs."""
        return "Inspection(<withheld>)"

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: an inspection stays at the site."""
        raise TypeError("an inspection of private data cannot be serialised")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for the site's own folder."""
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        body["survey"] = dataclasses.asdict(self.survey)
        body["classes"] = [dataclasses.asdict(size) for size in self.classes]
        body["flips"] = [dataclasses.asdict(flip) for flip in self.flips]
        return {"site_only": "not releasable: counts of private records", **body}


@dataclass(slots=True, kw_only=True)
class _Lists:
    """Refused and ignored things met so far: all are counted, the first ones are kept."""

    refused: list[Pair]
    ignored: list[Pair]
    refused_count: int = 0
    ignored_count: int = 0

    def refuse(self, name: str, reason: str) -> None:
        self.refused_count += 1
        if len(self.refused) < MOST_LISTED:
            self.refused.append((name, reason))

    def ignore(self, name: str, reason: str) -> None:
        self.ignored_count += 1
        if len(self.ignored) < MOST_LISTED:
            self.ignored.append((name, reason))


def inspect_data(path: Path, plan: Plan, *, tick: Callable[[], None] = lambda: None) -> SiteOnly[Inspection]:
    """Return what the data at ``path`` holds, read once and record by record; faulty records are listed, not fatal.

    tick: called after each file, or each piece of a table

    Raises DataError only if nothing at all can be read: no such file, no table, a missing column.
    """
    if not is_there(path):
        raise DataError(f"{shown(path)} does not exist or cannot be reached; expected the site's data. Check the path.")
    data, lists = plan.data, _Lists(refused=[], ignored=[])
    layout = Layout(classes=data.classes, label=data.label, unit=data.unit, site=data.site)
    surveyor = Surveyor(len(data.classes), units=bool(data.unit))
    if data.kind != "image":
        _read_table(path, data, layout, surveyor=surveyor, lists=lists, tick=tick)
    elif path.suffix.lower() == ".npz" and path.is_file():
        _read_npz(path, data, layout, surveyor, tick)
    else:
        _read_files(path, data, layout, surveyor=surveyor, lists=lists, tick=tick)
    survey = surveyor.survey(per_unit=plan.privacy.records_per_unit, prints=data.kind != "table")
    return SiteOnly(_judged(path, plan, survey, lists))


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_table(
    path: Path, data: Data, layout: Layout, *, surveyor: Surveyor, lists: _Lists, tick: Callable[[], None]
) -> None:
    before = 0
    for cells in pieces(path, columns_of(data.fields, layout)):
        count = len(cells[layout.label])
        records = _encoded(cells, data, layout, before)
        if records is None:  # row by row, to name each one at fault
            good, faults = _good_rows(cells, data, layout, before)
            for row, reason in faults:
                lists.refuse(f"data row {row + 1}", reason)
            cells = {name: [column[row] for row in good] for name, column in cells.items()}  # noqa: PLW2901 - the good ones
            records = _encoded(cells, data, layout, before) if good else None
        if records is not None:
            sites = [name.strip() for name in cells[layout.site]] if layout.site else []
            add = surveyor.add_rows if data.kind == "table" else surveyor.add_texts
            add(records.values, records.classes, records.units.tolist(), sites)
        before += count
        tick()


def _encoded(cells: Cells, data: Data, layout: Layout, before: int) -> Records | None:
    """Return the records of some rows, or None if any of them is at fault."""
    if layout.site and not all(name.strip() for name in cells[layout.site]):
        return None
    try:
        return encode_piece(cells, data.fields, layout, before)
    except DataError:
        return None


def _good_rows(cells: Cells, data: Data, layout: Layout, before: int) -> tuple[list[int], list[tuple[int, str]]]:
    """Return which rows of a piece can be encoded, and the others with the reason, numbered within the file."""
    good, faults = [], []
    for row in range(len(cells[layout.label])):
        one = {name: [column[row]] for name, column in cells.items()}
        try:
            encode_piece(one, data.fields, layout, before + row)
        except DataError as reason:
            faults.append((before + row, str(reason)))
            continue
        if layout.site and not one[layout.site][0].strip():
            faults.append((before + row, "a record without a site's name"))
        else:
            good.append(row)
    return good, faults


def _read_npz(path: Path, data: Data, layout: Layout, surveyor: Surveyor, tick: Callable[[], None]) -> None:
    arrays, target = read_npz(path, layout), target_of(data)
    images = npz_images(path, arrays["images"], target)
    names = [name for name in (layout.label, layout.unit, layout.site) if name]
    if any(arrays[name].shape != (len(images),) for name in names):
        raise DataError(f"{shown(path.name)}: label arrays of other length than the {len(images)} images found.")
    cells = {name: [str(value).strip() for value in arrays[name].tolist()] for name in names}
    known = {name: number for number, name in enumerate(data.classes)}
    for row, image in enumerate(images):
        label = cells[layout.label][row]
        if label not in known:
            raise DataError(
                f"{shown(path.name)}, image {row + 1}: class {label!r} found; expected one of {data.classes}."
            )
        unit = cells[layout.unit][row] if layout.unit else ""
        site = cells[layout.site][row] if layout.site else ""
        surveyor.note(doubts(image, image))
        surveyor.add_images([image], label=known[label], unit=unit, site=site)
    tick()


def _read_files(
    path: Path, data: Data, layout: Layout, *, surveyor: Surveyor, lists: _Lists, tick: Callable[[], None]
) -> None:
    found = find(path, layout)
    for name, reason in found.refused:
        lists.refuse(name, reason)
    for name, reason in found.ignored:
        lists.ignore(name, reason)
    for item, reading in read_items(found.items, target_of(data), layout):
        if isinstance(reading, DataError):
            lists.refuse(shown(item.path.name), str(reading))
        else:
            surveyor.note(reading.steps)
            surveyor.add_images(
                reading.images,
                label=data.classes.index(item.label),
                unit=item.unit or reading.unit,
                site=item.site,
                split=item.split,
            )
        tick()


# ---- judging ---------------------------------------------------------------------------------------------------------


def _judged(path: Path, plan: Plan, survey: Survey, lists: _Lists) -> Inspection:
    sizes = tuple(size for site, count in survey.sites.items() for size in _sizes(plan, site, count))
    flips = tuple(flip for site, count in survey.sites.items() for flip in _flips(plan, site, count))
    return Inspection(
        name=shown(path.name),
        plan=plan.name,
        kind=plan.data.kind,
        survey=survey,
        classes=sizes,
        flips=flips,
        refused=tuple(lists.refused),
        refused_count=lists.refused_count,
        ignored=tuple(lists.ignored),
        ignored_count=lists.ignored_count,
        problems=tuple(_problems(plan, survey, sizes, lists)),
        warnings=tuple(_warnings(plan, survey, sizes, flips)),
    )


def _teachers(plan: Plan) -> int:
    return plan.questions.labels.teachers if plan.questions.labels.share else 0


def _sizes(plan: Plan, site: str, count: SiteCount) -> list[ClassSize]:
    teachers, sizes = _teachers(plan), []
    for name, (records, units) in zip(plan.data.classes, count.by_class, strict=True):
        voting = units * (1.0 - plan.data.hold_out)
        empty = teachers * (1.0 - 1.0 / teachers) ** voting if teachers else 0.0
        verdict = "enough"
        if units == 0:
            verdict = "absent"
        elif voting < teachers:
            verdict = "too small"
        elif voting < FEW_PER_TEACHER * teachers:
            verdict = "few"
        sizes.append(
            ClassSize(site=site, name=name, records=records, units=units, empty_teachers=empty, verdict=verdict)
        )
    return sizes


def _flips(plan: Plan, site: str, count: SiteCount) -> list[Flip]:
    """Return how often the plan's noise overturns what this site alone votes, part by part."""
    voting = [units * (1.0 - plan.data.hold_out) for _, units in count.by_class]
    prefix = f"{site}: " if site else ""
    flips = []
    for part in spend(plan):
        for what, probability in _part_flips(plan, part, voting):
            flips.append(Flip(question=part.kind, what=prefix + what, probability=probability))
    return flips


def _part_flips(plan: Plan, part: Part, voting: list[float]) -> list[tuple[str, float]]:
    classes, std = len(plan.data.classes), part.noise_multiplier * pooled(plan)
    if part.kind == "labels":
        votes, noise = float(_teachers(plan)), label_noise(plan, part)
        return [
            ("a label on which all teachers of this site agree", 1.0 - odds.unanimous(votes, noise, classes)),
            ("a label on which they are 60 to 40", 1.0 - odds.sixty_forty(votes, noise, classes)),
        ]
    if part.kind == "counts":
        first, second = sorted(voting, reverse=True)[:2]
        return [
            ("which of this site's two largest classes is larger", odds.upper_tail((first - second) / (std * 2**0.5)))
        ]
    if part.kind == "neighbours":
        present = [units for units in voting if units > 0]
        if present:
            pool = dataclasses.replace(advice.pool_of(plan), units=min(present))
            return [("a good candidate of its smallest class against another", 1.0 - pool.beats(std))]
    return []


def _problems(plan: Plan, survey: Survey, sizes: tuple[ClassSize, ...], lists: _Lists) -> list[str]:
    problems = []
    if lists.refused_count:
        problems.append(
            f"{lists.refused_count} file(s) or row(s) are refused; the run refuses the data as long as they stay."
        )
    if not any(count.records for count in survey.sites.values()):
        problems.append("no record can be read.")
    problems += [
        f"{_named(size)} has {size.units} unit(s) for the {_teachers(plan)} teachers asked; ask for fewer."
        for size in sizes
        if size.verdict == "too small"
    ]
    for site, count in survey.sites.items():
        if count.units and not plan.privacy.delta < 1.0 / count.units:
            problems.append(
                f"{site or 'the site'} has {count.units} units; δ = {plan.privacy.delta} must be below 1/units."
            )
    return problems


def _named(size: ClassSize) -> str:
    return f"class {size.name!r}" + (f" at {size.site}" if size.site else "")


def _warnings(plan: Plan, survey: Survey, sizes: tuple[ClassSize, ...], flips: tuple[Flip, ...]) -> list[str]:
    repeats, warnings = survey.repeats, []
    warnings += [
        f"MOST OF THIS IS NOISE: P(flip) = {flip.probability:.0%} for {flip.what} ({flip.question})."
        for flip in flips
        if flip.probability >= LOUD
    ]
    warnings += [
        f"{_named(size)} is absent; its teachers vote without it." for size in sizes if size.verdict == "absent"
    ]
    warnings += [
        f"{_named(size)} has {size.units} unit(s): {size.empty_teachers:.1f} of {_teachers(plan)} teachers get none."
        for size in sizes
        if size.verdict in {"few", "too small"}
    ]
    patients, rich = bool(plan.data.unit), plan.data.kind != "table"  # codes of a coarse schema repeat by nature
    told = [
        (rich, "record(s) repeat another's content", repeats.equal),
        (rich and patients, "record(s) have the content of another patient's; is the id right?", repeats.across),
        (rich, "record(s) have the content of one with another class", repeats.contradicts),
        (rich and patients, "record(s) look like one of another patient", repeats.near_across or 0),
        (True, "patient(s) stand at several sites: their guarantee is the sum over those", survey.units_in_sites),
        (
            True,
            "patient(s) stand in several splits; these are not used: hold-out is by patient",
            survey.units_in_splits,
        ),
        (patients, "patient(s) have records of several classes", survey.units_in_classes),
        (patients, "patient id(s) differ from another in case, spaces, hyphens or leading zeros", survey.units_alike),
        (
            True,
            "record(s) beyond records_per_unit are left out, chosen by the site's key",
            sum(count.records_left_out for count in survey.sites.values()),
        ),
    ]
    warnings += [f"{count} {what}." for fits, what, count in told if fits and count]
    return warnings + [
        f"{count} file(s): {step[7:]}." for step, count in survey.steps.items() if step.startswith("doubt: ")
    ]
