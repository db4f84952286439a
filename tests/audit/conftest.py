"""A small heart run whose noise can be broken on purpose, in one site or in all."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from patevolve.client import study
from patevolve.client.audit import Subject, raw_of
from patevolve.client.demo import FOLDER, plan_of
from patevolve.client.guard import NoiseFor
from patevolve.client.simulate import load_records, simulate, system_noise
from patevolve.shared.data.records import Records
from patevolve.shared.noise.discrete_gaussian import GaussianSampler
from patevolve.shared.plan import Agreed
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.runfolder import open_run

FAST = Path("/dev/shm")  # noqa: S108 - memory: a run flushes some sixty files
PRIVATE = 0.25  # of each hospital's patients take part; the others tell the attacks what chance is


class Scaled(SystemNoise):
    """A planted fault: the noise is drawn and multiplied by ``factor`` before it is added."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


@pytest.fixture
def breakable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every sampler obey ``Scaled`` sources."""
    honest = GaussianSampler.draw

    def draw(self: GaussianSampler, size: int, source: Any) -> Any:
        drawn = honest(self, size, source)
        return (drawn * source.factor).astype(drawn.dtype) if isinstance(source, Scaled) else drawn

    monkeypatch.setattr(GaussianSampler, "draw", draw)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the tests of planted faults need."""

    place: Path
    scaled: type[Scaled] = Scaled

    def split(self, seed: int = 1, members: float = PRIVATE) -> study.Split:
        """Return few members and many others of the four hospitals."""
        with resources.as_file(FOLDER / "heart.csv") as path:
            return study.split(load_records(path, self.agreed(seed).plan), seed, 1 - members)

    def agreed(self, seed: int = 1, changes: Mapping[str, Any] | None = None) -> Agreed:
        """Return the heart plan with a short evolution."""
        short = {"evolution.population": 600, "evolution.generations": 20, "release.samples": 600}
        return vary(plan_of("heart", 1.0, seed), {**short, **(changes or {})})

    def whole(self, seed: int, epsilon: float) -> Agreed:
        """Return the heart plan as it is."""
        return plan_of("heart", epsilon, seed)

    def run(
        self, agreed: Agreed, members: Mapping[str, Records], others: Records | None, noise: NoiseFor = system_noise
    ) -> Subject:
        """Run the plan and return what is audited."""
        path = Path(tempfile.mkdtemp(dir=self.place)) / "run"
        open_run(path, agreed)
        sites = study.found_sites(path / "sites", members, agreed)
        simulate(agreed, sites, path, noise=noise)
        with resources.as_file(FOLDER / "heart.csv") as file:
            raw = raw_of(file, agreed.plan, members)
        homes = {name: site.home for name, site in sites.items()}
        return Subject(path=path, agreed=agreed, homes=homes, members=members, others=others, raw=raw)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    place = Path(tempfile.mkdtemp(prefix="patevolve-audit-", dir=FAST)) if FAST.is_dir() else tmp_path
    yield Bench(place=place)
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def only() -> Callable[[str, Any], NoiseFor]:
    """Return a noise that is ``source`` at one site and honest elsewhere."""

    def at(site: str, source: Any) -> NoiseFor:
        return lambda name, _: source if name == site else SystemNoise()

    return at
