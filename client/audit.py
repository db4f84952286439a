"""``patevolve audit``: attacks on a finished run, at the site, by whoever holds its records.

Everything that reads private records is a ``SiteOnly``: it was not charged, so it may be looked at here and nowhere
else. What it can find, with which power and false-alarm rate: docs/audit.md.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.client import study
from patevolve.client.audit_deeper import inversions, one_run_audit, shadow_students
from patevolve.client.audit_pipeline import AnswerPath, Asked, answer_path, asked_of, two_world_runs
from patevolve.client.home import SiteHome
from patevolve.shared.audit import attributes, bounds, copying, membership
from patevolve.shared.audit.attributes import Guess
from patevolve.shared.audit.canaries import Finding, summary
from patevolve.shared.audit.membership import Attack, Group
from patevolve.shared.audit.one_run import OneRun
from patevolve.shared.data.layout import Layout
from patevolve.shared.data.load import load_table
from patevolve.shared.data.parquet import cells
from patevolve.shared.data.records import Records
from patevolve.shared.data.shard import held_out
from patevolve.shared.errors import DataError
from patevolve.shared.finish import RELEASE, STUDENT
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy.site_only import SiteOnly

ALARM = 1e-3  # false-alarm probability of an audit's tests of noise and copies together, and of each canary bound
CONFIDENCE = 0.95  # of the intervals that are shown
RICH = {"image": 8, "text": 16}  # different bytes in a record up to which another may equal it by chance

Row = tuple[str, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Subject:
    """What is audited: a run, the sites' folders and records, and records of the same sites that took no part.

    raw:  the private records cell by cell as in the data file, for tables; empty for others
    """

    path: Path
    agreed: Agreed
    homes: Mapping[str, SiteHome]
    members: Mapping[str, Records]
    others: Records | None
    raw: tuple[Row, ...] = ()


def audit(subject: Subject, *, trials: int, shadows: int = 0, canaries: int = 0) -> SiteOnly[dict[str, Any]]:
    """Run every attack. Raises DataError for a folder that holds no finished run of the plan.

    trials:    whole runs in each of the two worlds of the canary; 0 leaves them out
    shadows:   students of whole runs over held-out records that the student is held against; 0 leaves them out
    canaries:  of the one run that plants many; 0 leaves it out
    """
    asked = asked_of(subject.path, subject.agreed)
    canary = two_world_runs(subject.agreed, trials=trials, confidence=1 - ALARM) if trials else None
    many = one_run_audit(subject.agreed, confidence=1 - ALARM, canaries=canaries) if canaries else None
    release = _release(subject.path / RELEASE, subject.agreed.plan)
    paths = {site: answer_path(asked, home, subject.members[site]) for site, home in subject.homes.items()}
    inverted = inversions(asked, _voters(subject), subject.others, [path.noise for path in paths.values()])
    found: dict[str, Any] = {
        "answers": _answers(subject, paths),
        "canary": None if canary is None else summary(canary),
        "one_run": None if many is None else {**dataclasses.asdict(many), "alarm": many.alarm},
        "membership": [dataclasses.asdict(one) for one in _membership(subject, asked, release, shadows)],
        "attributes": [dataclasses.asdict(one) for one in _attributes(subject, asked, release)],
        "inversion": [dataclasses.asdict(one) for one in inverted],
        "copying": _copying(subject, asked, release),
        "repeats": _repeats(subject),
        "charged": False,
    }
    return SiteOnly({**found, "alarms": _alarms(found, canary, many)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Released:
    """The release as it lies in the run folder: encoded, and for tables cell by cell."""

    records: Records
    rows: tuple[Row, ...]


def _release(folder: Path, plan: Plan) -> _Released:
    if plan.data.kind != "image":
        layout = Layout(classes=plan.data.classes, label=plan.data.label, unit="", site="")
        (records,) = load_table(folder / "data.csv", plan.data.fields, layout).values()
        rows = raw_rows(folder / "data.csv", plan) if plan.data.kind == "table" else ()
        return _Released(records=records, rows=rows)
    labels = cells(folder / "labels.csv", ["file_name", "label"])
    from PIL import Image  # noqa: PLC0415 - an extra: only image plans need it

    images = [np.asarray(Image.open(folder / name), dtype=np.uint8) for name in labels["file_name"]]
    classes = np.array([plan.data.classes.index(label) for label in labels["label"]], np.int64)
    units = np.array([str(number) for number in range(len(classes))])
    return _Released(records=Records(values=np.stack(images), classes=classes, units=units), rows=())


def raw_rows(path: Path, plan: Plan) -> tuple[Row, ...]:
    """Return a table's rows in the plan's columns and class, each cell in one form: 57, 57.0 and " 57" are the same."""
    found = cells(path, [*(column.name for column in plan.data.columns), plan.data.label])
    columns = [[_plain(cell) for cell in found[column.name]] for column in plan.data.columns]
    return tuple(zip(*columns, [label.strip() for label in found[plan.data.label]], strict=True))


def _plain(cell: str) -> str:
    try:
        return repr(float(cell))
    except ValueError:
        text = cell.strip().casefold()
        return "" if text in {"", "?", "na", "nan", "none", "null"} else text


def _answers(subject: Subject, paths: Mapping[str, AnswerPath]) -> list[dict[str, Any]]:
    rows = []
    for site, path in paths.items():
        check = bounds.noise_check(path.residuals) if path.residuals.size else None
        rows.append(
            {
                "site": site,
                "values": 0 if check is None else check.values,
                "ratio": None if check is None else check.ratio,
                "p": None if check is None else check.p,
                "power_half": None if check is None else bounds.noise_power(check.values, 0.5, _level(subject)),
                "missing": list(path.missing),
                "uncharged": list(path.uncharged),
            }
        )
    return rows


def _level(subject: Subject) -> float:
    """Return the false-alarm probability of one test: one per site, and one of copies."""
    return ALARM / (len(subject.homes) + 1)


def _group(records: Records, asked: Asked) -> Group:
    return Group(features=asked.tools.encoder.encode(records.values), classes=records.classes)


def _voters(subject: Subject) -> Records:
    """Return the records that answered: all but the units that each site keeps apart for scores."""
    kept = []
    for site, records in subject.members.items():
        apart = held_out(subject.homes[site].secret, records.units, subject.agreed.plan.data.hold_out)
        kept.append(records.pick(~apart))
    return study.join(kept)


def others_of(members: Mapping[str, Records], homes: Mapping[str, SiteHome], plan: Plan) -> Records | None:
    """Return the records that each site kept apart under the plan; None if there are too few to compare with."""
    kept = [
        records.pick(held_out(homes[site].secret, records.units, plan.data.hold_out))
        for site, records in members.items()
    ]
    apart = study.join(kept)
    return apart if len(apart) >= 20 else None


def _membership(subject: Subject, asked: Asked, release: _Released, shadows: int) -> list[Attack]:
    if subject.others is None:
        return []
    members, released = _group(_voters(subject), asked), _group(release.records, asked)
    reference, others = _halves(_group(subject.others, asked))
    attacks = [
        membership.attack(
            "nearest released sample",
            -membership.nearest(members, released),
            -membership.nearest(others, released),
            CONFIDENCE,
        ),
        membership.attack(
            "density ratio",
            membership.density_ratio(members, released, reference),
            membership.density_ratio(others, released, reference),
            CONFIDENCE,
        ),
        membership.attack(
            "mean shift",
            membership.mean_shift(members, released, reference),
            membership.mean_shift(others, released, reference),
            CONFIDENCE,
        ),
    ]
    student = subject.path / STUDENT / "student.npz"
    if student.exists():
        with np.load(student, allow_pickle=False) as arrays:
            weights, bias = arrays["weights"], arrays["bias"]
        own, other = (membership.student_scores(group, weights, bias) for group in (members, others))
        attacks.append(membership.attack("student's confidence", own, other, CONFIDENCE))
        attacks += _shadowed(subject, (members, others), (own, other), shadows)
    return attacks


def _shadowed(subject: Subject, groups: tuple[Group, Group], scores: tuple[Floats, Floats], count: int) -> list[Attack]:
    """Return the attack that holds the student against shadow students of the records that the attacker may use."""
    if count < 2 or subject.others is None:
        return []
    order = np.argsort(subject.others.classes, kind="stable")[0::2]  # as ``_halves`` divides them
    sizes = {site: len(records) for site, records in subject.members.items()}
    students = shadow_students(subject.agreed, subject.others.pick(order), sizes, count)
    if len(students) < 2:
        return []
    own, other = (
        membership.against_shadows(
            score, np.stack([membership.student_scores(group, one["weights"], one["bias"]) for one in students])
        )
        for group, score in zip(groups, scores, strict=True)
    )
    return [membership.attack(f"against {len(students)} shadow students", own, other, CONFIDENCE)]


def _attributes(subject: Subject, asked: Asked, release: _Released) -> list[Guess]:
    """Return how well each column of a table is guessed from the others, for members and for others."""
    if subject.others is None or subject.agreed.plan.data.kind != "table":
        return []
    groups = (_group(records, asked) for records in (_voters(subject), subject.others, release.records))
    return attributes.guesses(subject.agreed.plan.data.columns, *groups)


def _halves(group: Group) -> tuple[Group, Group]:
    """Return every second record as the attacker's reference, and the others as non-members to be told apart."""
    order = np.argsort(group.classes, kind="stable")
    first, second = order[0::2], order[1::2]
    return (
        Group(features=group.features[first], classes=group.classes[first]),
        Group(features=group.features[second], classes=group.classes[second]),
    )


def _copying(subject: Subject, asked: Asked, release: _Released) -> dict[str, Any]:
    members = study.join(list(subject.members.values()))
    found: dict[str, Any] = {"caveat": copying.CAVEAT, "nearness": None}
    released = _group(release.records, asked)
    if subject.others is not None:
        away = [membership.nearest(_group(part, asked), released) for part in (members, subject.others)]
        found["nearness"] = dataclasses.asdict(copying.nearness(*away))
    if subject.agreed.plan.data.kind == "table":
        schema = subject.agreed.plan.data.columns
        pairs = Counter(_keys(release.records))
        expected = copying.table_chance(schema, _with_class(members), pairs)
        judged = copying.copies(copying.matches(subject.raw, release.rows), expected)
    else:
        # Two independent images or texts do not agree in every byte; a blank image or a text of a few words may.
        least = RICH[subject.agreed.plan.data.kind]
        rich = [key for key, value in zip(_keys(members), members.values, strict=True) if np.unique(value).size > least]
        judged = copying.copies(copying.matches(rich, _keys(release.records)), 1e-6)
    return {**found, "copies": dataclasses.asdict(judged)}


def _with_class(records: Records) -> NDArray[np.int64]:
    codes = records.values.reshape(len(records), -1).astype(np.int64)
    return np.concatenate([codes, records.classes[:, None]], axis=1)


def _keys(records: Records) -> list[bytes]:
    return [np.ascontiguousarray(row).tobytes() for row in _with_class(records)]


def _repeats(subject: Subject) -> dict[str, Any]:
    members = study.join(list(subject.members.values()))
    found = copying.repeats(members.values, members.classes, members.units)
    return {**dataclasses.asdict(found), "alarm": found.alarm}


def _alarms(found: Mapping[str, Any], canary: Finding | None, many: OneRun | None) -> list[str]:
    """Return what must not be: each test of noise and copies gets an equal part of the false-alarm probability."""
    alarms, level = [], ALARM / (len(found["answers"]) + 1)
    for row in found["answers"]:
        if row["p"] is not None and not row["p"] >= level:
            kind = "no noise" if row["ratio"] < 1e-6 else f"{row['ratio']:.2f} of the promised variance"
            alarms.append(f"{row['site']}: its answers carry {kind}")
        if row["missing"]:
            alarms.append(f"{row['site']}: its ledger lacks the answers to {', '.join(row['missing'])}")
        if row["uncharged"]:
            alarms.append(f"{row['site']}: not charged as the plan says: {', '.join(row['uncharged'])}")
    if canary is not None and canary.alarm:
        low = max(canary.lower, canary.lower_gaussian)
        alarms.append(f"a planted record is found too often: ε is at least {low:.2f}, charged {canary.ledger:.2f}")
    if many is not None and many.alarm:
        alarms.append(f"{many.right} of {many.guesses} canaries guessed: ε is at least {many.lower:.2f}")
    copies = found["copying"]["copies"]
    if not copies["p"] >= level:
        alarms.append(f"the release repeats {copies['found']} private records; by chance {copies['expected']:.2g}")
    if found["repeats"]["alarm"]:
        alarms.append(f"one record is held by {found['repeats']['most']} units: its budget is that many times as large")
    return alarms


def check_sites(members: Mapping[str, Records], homes: Mapping[str, SiteHome]) -> None:
    """Raise DataError unless every site of the data has a folder."""
    lost = sorted(set(members) - set(homes))
    if lost:
        raise DataError(f"no folder of {', '.join(map(repr, lost))} found; expected one for every site of the data.")


def raw_of(path: Path, plan: Plan, members: Mapping[str, Records] | None) -> tuple[Row, ...]:
    """Return the rows of a data file cell by cell; with ``members``, those of their units alone."""
    rows = raw_rows(path, plan)
    if members is None or not plan.data.unit:
        return rows
    units = {str(unit) for records in members.values() for unit in records.units}
    names = cells(path, [plan.data.unit])[plan.data.unit]
    return tuple(row for row, name in zip(rows, names, strict=True) if name.strip() in units)
