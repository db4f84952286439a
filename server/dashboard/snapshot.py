"""A run at one moment, out of the files that the coordinator itself wrote while it ran.

Only the files named here are opened: the plan, the coordinator's ledger, the sums that came (for who answered, not for
their values), the checkpoints, and the notes beside them. All of them hold noised or public values; a site's folder,
which an in-process run keeps below its run folder, and the report are never opened. Whatever is missing or damaged
becomes a line under "alerts".
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from patevolve.server.cohort import load_cohort
from patevolve.server.run import STATUS
from patevolve.shared.contacts import FILE as CONTACTS
from patevolve.shared.contacts import Contacts, load_contacts
from patevolve.shared.described import pictures
from patevolve.shared.errors import InputError, PatevolveError
from patevolve.shared.finish import RELEASE
from patevolve.shared.participation import answered_by, participation
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.privacy.global_view import GlobalView, view_global
from patevolve.shared.privacy.head_part import head_events
from patevolve.shared.report.diversity import collapse
from patevolve.shared.runfolder import LEDGER, PLAN, PROGRESS, RunFolder, finite, known_run
from patevolve.shared.schedule import Ask, schedule
from patevolve.shared.tools import Tools, tools_of

QUIET = dt.timedelta(minutes=10)  # of a running run, after which a site that said nothing is pointed out
UNREADABLE = (PatevolveError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, ImportError)
T = TypeVar("T")
Rows = list[dict[str, Any]]


@dataclass(kw_only=True, eq=False)
class _Reading:
    """One look at a folder; what could not be read is noted and left out."""

    path: Path
    alerts: list[str] = field(default_factory=list)

    def part(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns, or None and an alert."""
        try:
            return read()
        except UNREADABLE as reason:
            self.alerts.append(f"{what} cannot be read: {reason}")
            return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """What a readable run folder holds."""

    agreed: Agreed
    asks: tuple[Ask, ...]
    tools: Tools | None
    view: GlobalView | None
    contacts: Contacts
    status: Mapping[str, Any]
    cohort: tuple[str, ...]


def snapshot(path: Path, now: dt.datetime) -> dict[str, Any]:
    """Return the state of the run in this folder as a JSON object; it raises nothing for what it finds there."""
    reading = _Reading(path=path)
    if not (path / PLAN).exists():
        return _bare(path, "empty", f"No run yet in {path.name}: it holds no {PLAN}.", [])
    agreed = reading.part("the plan", lambda: read_plan(path / PLAN))
    if agreed is None:
        words = "The plan of this folder cannot be read, so nothing of its run can be shown."
        return _bare(path, "broken", words, reading.alerts)
    value: dict[str, Any] = finite(_described(reading, _opened(reading, agreed), now))
    return value


def _bare(path: Path, state: str, words: str, alerts: list[str]) -> dict[str, Any]:
    return {"state": state, "words": words, "name": path.name, "plan_sha256": None, "alerts": alerts}


def _opened(reading: _Reading, agreed: Agreed) -> _Run:
    path = reading.path
    tools = reading.part("the plan's generator", lambda: tools_of(agreed.plan))
    asks = () if tools is None else schedule(agreed.plan, tools.encoder.embedding_size)
    view: GlobalView | None = GlobalView(questions=(), heads={})
    if (path / LEDGER).exists():
        view = reading.part("the coordinator's ledger", lambda: _view(path / LEDGER, _stamp(path / LEDGER)))
    contacts = load_contacts(path / CONTACTS)
    status = reading.part("the run's status", lambda: _status(path)) or {}
    known = reading.part("the list of sites", lambda: load_cohort(path)) or {}
    asked = {site for row in _posed(view) for site in row["sites"]}
    return _Run(
        agreed=agreed,
        asks=asks,
        tools=tools,
        view=view,
        contacts=contacts,
        status=status,
        cohort=tuple(sorted({*known, *asked, *contacts.codes})),
    )


def _posed(view: GlobalView | None) -> tuple[Mapping[str, Any], ...]:
    return () if view is None else view.questions


def _spent(run: _Run, site: str | None = None) -> float | None:
    """Return ε of what was asked, of one site or in all, and of the head that a site trains before it answers.

    None if the ledger cannot be read.
    """
    if run.view is None:
        return None
    asked = any(site in {None, *row["sites"]} for row in run.view.questions)
    head = head_events(run.agreed.plan) if asked else ()
    return run.view.epsilon(run.agreed.plan.privacy.delta, site, head).epsilon


def _status(path: Path) -> dict[str, Any]:
    found = json.loads((path / STATUS).read_text(encoding="utf-8")) if (path / STATUS).exists() else {}
    if not isinstance(found, dict):
        raise InputError(f"{STATUS} is no object")
    return found


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes whenever a ledger grows: verifying it takes a moment, looking at its size does not."""
    files = [path, path.with_name(f"{path.name}-wal")]
    return tuple(n for one in files if one.exists() for n in (one.stat().st_mtime_ns, one.stat().st_size))


@functools.lru_cache(maxsize=4)
def _view(path: Path, stamp: tuple[int, ...]) -> GlobalView:
    del stamp
    return view_global(path)


def _described(reading: _Reading, run: _Run, now: dt.datetime) -> dict[str, Any]:
    plan = run.agreed.plan
    names = [ask.name for ask in run.asks]
    folder = RunFolder(path=reading.path)
    took = reading.part("a sum", lambda: participation(folder, plan, names, run.cohort)) or []
    state, words = _state(reading.path, run)
    generations = reading.part("the progress", lambda: _progress(reading.path)) or []
    spent = reading.part("the cost", lambda: _spent(run))
    sites = reading.part("the sites", lambda: [_site(run, site, took) for site in run.cohort]) or []
    questions = _questions(run, took)
    reading.alerts += _alerts(run, state, sites, generations, now) + _losses(run, took, spent)
    return {
        "state": state,
        "words": words,
        "name": plan.name,
        "plan_sha256": run.agreed.sha256,
        "run": known_run(reading.path),
        "trust": plan.privacy.trust,
        "unit": plan.privacy.unit,
        "epsilon": spent,
        "epsilon_planned": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "questions": questions,
        "left": sum(row["state"] == "to come" for row in questions),
        "sites": sites,
        "generation": max((row["generation"] for row in generations), default=None),
        "generations_planned": plan.evolution.generations,
        "generations": generations,
        "galleries": reading.part("the gallery", lambda: _galleries(reading.path, run)) or [],
        "alerts": reading.alerts,
    }


def _state(path: Path, run: _Run) -> tuple[str, str]:
    found = str(run.status.get("state", ""))
    if found == "failed":
        return "failed", f"The run failed ({run.status.get('code') or 'no code'})."
    if found == "finished" or (not found and (path / RELEASE).is_dir()):
        return "finished", "The run is finished; its report and its release lie in the run folder."
    if found == "running":
        return "running", "The run goes on."
    if run.view is not None and not run.view.questions:
        return "waiting", "Nothing has been asked yet."
    return "open", "The run is under way or was interrupted; nobody noted which."


def _questions(run: _Run, took: Sequence[Mapping[str, Any]]) -> Rows:
    answered = {row["question"]: row for row in took}
    posed = {row["question"] for row in _posed(run.view)}
    blank: dict[str, Any] = {"when": "", "answered": None, "sites": None, "refused": {}, "silent": []}
    rows: Rows = []
    for ask in run.asks:
        row = answered.get(ask.name)
        state = "answered" if row else "asked" if ask.name in posed else "to come"
        rows.append({**blank, **(row or {}), "question": ask.name, "state": state})
    return rows


def _site(run: _Run, site: str, took: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    head = None if run.view is None else run.view.heads.get(site)
    sizes = [pair for (name, _, _), pair in run.contacts.sizes.items() if name == site]
    return {
        "site": site,
        "seen": run.contacts.seen.get(site),
        "answered": answered_by(took, site),
        "asked": len({row["question"] for row in _posed(run.view) if site in row["sites"]}),
        "vetoed": sorted({row["refused"][site] for row in took if site in row["refused"]} | _last_code(run, site)),
        "silent": sum(site in row["silent"] for row in took),
        "epsilon": _spent(run, site),
        "bytes_down": sum(down for down, _ in sizes),
        "bytes_up": sum(up for _, up in sizes),
        "head": None if head is None else head.digest,
    }


def _last_code(run: _Run, site: str) -> set[str]:
    code = run.contacts.codes.get(site, "")
    return {code} if code else set()


def _progress(path: Path) -> Rows:
    """Return the generations that were noted, each once; a last line that is half written is left for the next look."""
    if not (path / PROGRESS).exists():
        return []
    rows: dict[int, dict[str, Any]] = {}
    for line in (path / PROGRESS).read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        number, asked = int(row["generation"]), [str(name) for name in row["asked"]]
        rows[number] = {"generation": number, "asked": asked, "spread": row["spread"], "match": row["match"]}
    return [rows[number] for number in sorted(rows)]


def _galleries(path: Path, run: _Run) -> Rows:
    """Return the first and the last generation of an image plan in pictures."""
    if run.tools is None or run.agreed.plan.data.kind != "image":
        return []
    numbers = sorted(int(file.stem) for file in (path / "generations").glob("*.pv") if file.stem.isdigit())
    return [
        {"generation": number, "picture": _picture(path, number, run.agreed.sha256)}
        for number in dict.fromkeys([*numbers[:1], *numbers[-1:]])
    ]


@functools.lru_cache(maxsize=16)
def _picture(path: Path, number: int, plan_sha256: str) -> str:
    """Return one generation's pictures: a checkpoint never changes once it is written."""
    agreed = read_plan(path / PLAN)
    kept = RunFolder(path=path).load_generation(number)
    if kept is None or agreed.sha256 != plan_sha256:
        raise InputError(f"generation {number} is gone; expected the run that was shown before")
    return pictures(kept[0], agreed.plan, tools_of(agreed.plan))


def _alerts(
    run: _Run,
    state: str,
    sites: Sequence[Mapping[str, Any]],
    generations: Sequence[Mapping[str, Any]],
    now: dt.datetime,
) -> list[str]:
    found = []
    if state == "failed":
        found.append(str(run.status.get("message") or "the run failed without a message"))
    found += [f"{row['site']} refused: {', '.join(row['vetoed'])}" for row in sites if row["vetoed"]]
    for row in sites if state == "running" else ():
        quiet = None if row["seen"] is None else now - _time(row["seen"])
        if quiet is None or quiet > QUIET:
            heard = "yet" if quiet is None else f"for {int(quiet.total_seconds() // 60)} minutes"
            found.append(f"{row['site']} has not been heard {heard}")
    return [*found, *filter(None, [collapse(generations)])]


def _time(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return dt.datetime.fromtimestamp(0, dt.UTC)
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _losses(run: _Run, took: Sequence[Mapping[str, Any]], spent: float | None) -> list[str]:
    found, privacy = [], run.agreed.plan.privacy
    for row in took:
        lost = run.agreed.plan.sites.count - row["answered"]
        if lost > privacy.dropouts:
            found.append(f"{row['question']}: {lost} sites did not answer; the plan allows {privacy.dropouts}")
    if spent is not None and not spent <= privacy.epsilon * (1 + 1e-9):
        found.append(f"the questions on record cost ε = {spent:.4g}; the plan allows {privacy.epsilon:g}")
    return found
