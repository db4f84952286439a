"""A run on the coordinator's disk: its plan, what was answered, and every generation, each file whole or absent.

A killed run resumes from here: a tally that was received is read, never asked again, and a generation that was
checkpointed is loaded, never evolved again.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import wire
from patevolve.shared.errors import InputError, MessageError, PlanError
from patevolve.shared.evolution.population import Population
from patevolve.shared.files import drafts, write_atomic, write_new
from patevolve.shared.institutions import Migration, Reply
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.signing import head_from_json, head_to_json
from patevolve.shared.tally import NoisyTally

PLAN = "plan.toml"
LEDGER = "global.sqlite"
RUN_ID = "run.id"
PROGRESS = "progress.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """An opened run folder."""

    path: Path

    def open_ledger(self) -> GlobalLedger:
        """Return the coordinator's ledger, made on first use. Raises LedgerError."""
        path = self.path / LEDGER
        if not path.exists():
            GlobalLedger.create(path, coordinator="coordinator").close()
        return GlobalLedger.open(path)

    def sweep(self) -> None:
        """Remove what a killed process left half-written. Call it only while holding the sites' ledgers."""
        # Not below: a demonstration's repeats lie in this folder too, and may be written at this moment.
        for folder in (self.path, *(self.path / name for name in ("tallies", "migrants", "generations", "student"))):
            for draft in drafts(folder):
                draft.unlink(missing_ok=True)

    def save_reply(self, name: str, question_sha256: str, reply: Reply) -> None:
        """Keep the noisy sum of one question."""
        fields = {
            "question": question_sha256,
            "std": reply.tally.std,
            "sites": list(reply.sites),
            "refusals": dict(reply.refusals),
        }
        # Beside the header, not in it: it holds one MiB, and the heads of some 3,000 sites fill that.
        heads = np.frombuffer("\n".join(head_to_json(head) for head in reply.heads).encode(), np.uint8)
        packet = wire.Packet(kind="tally", fields=fields, arrays={"values": reply.tally.values, "heads": heads})
        write_atomic(self._file("tallies", name), wire.encode(packet))

    def load_reply(self, name: str, question_sha256: str) -> Reply | None:
        """Return the kept sum of this question, or None. Raises MessageError if another question has its name."""
        packet = self._load("tallies", name, kind="tally")
        if packet is None:
            return None
        if packet.fields["question"] != question_sha256 or "heads" not in packet.arrays:
            raise MessageError(
                f"{name}: a tally of another question or version is stored here; expected the same run. Start a new "
                f"folder."
            )
        tally = NoisyTally(values=packet.arrays["values"], std=packet.fields["std"])
        heads = tuple(head_from_json(text) for text in packet.arrays["heads"].tobytes().decode().splitlines())
        return Reply(tally=tally, sites=tuple(packet.fields["sites"]), heads=heads, refusals=packet.fields["refusals"])

    def save_migrants(self, name: str, question_sha256: str, found: Migration) -> None:
        """Keep what the sites' islands sent home."""
        fields = {"question": question_sha256, "sites": list(found.genomes), "refusals": dict(found.refusals)}
        arrays = {f"{place:06d}": wire.compact(genomes) for place, genomes in enumerate(found.genomes.values())}
        write_atomic(
            self._file("migrants", name), wire.encode(wire.Packet(kind="migration", fields=fields, arrays=arrays))
        )

    def who_answered(self, name: str) -> tuple[tuple[str, ...], Mapping[str, str]] | None:
        """Return the sites in the kept sum or migrants of this name, and the codes of those that refused."""
        packet = self._load("tallies", name, kind="tally") or self._load("migrants", name, kind="migration")
        return None if packet is None else (tuple(packet.fields["sites"]), packet.fields["refusals"])

    def load_migrants(self, name: str, question_sha256: str) -> Mapping[str, NDArray[np.float64]] | None:
        """Return the kept migrants by site, or None. Raises MessageError if others than asked for have this name."""
        packet = self._load("migrants", name, kind="migration")
        if packet is None:
            return None
        if packet.fields["question"] != question_sha256:
            raise MessageError(
                f"{name}: migrants of another population are stored here; expected the same run. Start a new folder."
            )
        genomes = [packet.arrays[place].astype(np.float64) for place in sorted(packet.arrays)]
        return dict(zip(packet.fields["sites"], genomes, strict=True))

    def save_generation(
        self, number: int, genomes: NDArray[np.float64], classes: NDArray[np.int64], asked: tuple[str, ...]
    ) -> None:
        """Checkpoint one generation."""
        arrays = {"genomes": wire.compact(genomes), "classes": wire.compact(classes)}
        data = wire.encode(wire.Packet(kind="generation", fields={"asked": list(asked)}, arrays=arrays))
        write_atomic(self._file("generations", f"{number:03d}"), data)

    def load_generation(self, number: int) -> tuple[Population, tuple[str, ...]] | None:
        """Return a checkpointed generation and the questions asked for it, or None."""
        packet = self._load("generations", f"{number:03d}", kind="generation")
        if packet is None:
            return None
        population = Population(
            genomes=packet.arrays["genomes"].astype(np.float64), classes=packet.arrays["classes"].astype(np.int64)
        )
        return population, tuple(packet.fields["asked"])

    def note_progress(self, row: Mapping[str, Any]) -> None:
        """Add a line about a generation for whoever watches; it is not flushed, for no run ever reads it."""
        with (self.path / PROGRESS).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(finite(dict(row)), ensure_ascii=False, allow_nan=False) + "\n")

    def write_json(self, name: str, value: object) -> None:
        """Write a JSON file; NaN and infinity become null."""
        text = json.dumps(finite(value), indent=1, sort_keys=False, ensure_ascii=False, allow_nan=False)
        write_atomic(self.path / name, (text + "\n").encode())

    def _file(self, kind: str, name: str) -> Path:
        return self.path / kind / f"{name.replace('/', '-')}.pv"

    def _load(self, folder: str, name: str, *, kind: str) -> wire.Packet | None:
        path = self._file(folder, name)
        return wire.decode(path.read_bytes(), kind=kind) if path.exists() else None


def open_run(path: Path, agreed: Agreed) -> RunFolder:
    """Return the run's folder, new or to be resumed. Raises PlanError if it holds a run of another plan."""
    check_run(path, agreed)
    if not (path / PLAN).exists():
        write_atomic(path / PLAN, agreed.text.encode())
    return RunFolder(path=path)


def check_run(path: Path, agreed: Agreed) -> None:
    """Raise PlanError or InputError, writing nothing, unless the folder is new or holds a run of this plan."""
    if (path / PLAN).exists():
        found = read_plan(path / PLAN)
        if found.sha256 != agreed.sha256:
            raise PlanError(
                f"{path} holds a run of plan {found.sha256[:12]}…; this is {agreed.sha256[:12]}…. Choose another."
            )
    elif path.exists() and set(path.iterdir()) - set(drafts(path)):  # a run killed in its first file has a draft only
        raise InputError(
            f"{path} is not empty and holds no run; expected a new folder or one to resume. Choose another."
        )


def known_run(path: Path) -> str:
    """Return the name of the run in this folder, or "" if it has none yet."""
    return (path / RUN_ID).read_text() if (path / RUN_ID).exists() else ""


def run_id(path: Path, run: str | None = None) -> str:
    """Return the run's name, which is part of every question: the kept one, else ``run`` or a random one, kept now."""
    if not (path / RUN_ID).exists():
        write_new(path / RUN_ID, (run or secrets.token_hex(8)).encode())
    return known_run(path)


def finite(value: Any) -> Any:
    """Return a value with a JSON form: NaN and infinity become null, tuples lists, keys text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
