"""What every export reads of a release: its papers, its rows, its pictures with their classes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patevolve.shared.errors import ReleaseError
from patevolve.shared.plan import Plan
from patevolve.shared.release.folder import MANIFEST, PROOF, SOURCE

CARD, LABELS, ROWS = "README.md", "labels.csv", "data.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One released image. ``name``: its path in the release; ``number``: its class's place in the plan."""

    name: str
    label: str
    number: int
    png: bytes

    @property
    def key(self) -> str:
        """The file's name without its ending: six digits or more."""
        return Path(self.name).stem


def papers(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what every export takes over as it is: the guarantee, the plan, and the manifest that the proof signs."""
    yield from copies(folder, ("guarantee.json", "plan.toml"))
    yield SOURCE, (folder / MANIFEST).read_bytes()


def copies(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield files of the release as they are."""
    yield from ((name, (folder / name).read_bytes()) for name in names)


def kept_proof(folder: Path) -> Callable[[str], bytes] | None:
    """Return what puts the release's own proof into an export; None for a release without one."""
    path = folder / PROOF
    return (lambda _: path.read_bytes()) if path.exists() else None


def card(folder: Path) -> str:
    """Return the release's card."""
    return (folder / CARD).read_bytes().decode()


def read_csv(path: Path) -> list[list[str]]:
    """Return the rows of a table of the release, without its header."""
    return list(csv.reader(io.StringIO(path.read_bytes().decode(), newline=""), strict=True))[1:]


def pictures(folder: Path, plan: Plan) -> Iterator[Picture]:
    """Yield the images in the order of the release, one in memory at a time. Raises ReleaseError for another class."""
    numbers = {label: number for number, label in enumerate(plan.data.classes)}
    for name, label in read_csv(folder / LABELS):
        if label not in numbers:
            raise ReleaseError(f"{LABELS} holds class {label!r}; expected one of the plan's.")
        yield Picture(name=name, label=label, number=numbers[label], png=(folder / name).read_bytes())
