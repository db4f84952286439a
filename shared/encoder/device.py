"""A device profile: how this machine computes features, and never which features or at what privacy.

It is no part of a plan. Whatever it says, each record is described by itself on one thread (encoder/SENSITIVITY.md),
so that threads and batch change how fast the answer comes and nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from patevolve.shared import checks, tomlfile
from patevolve.shared.errors import InputError

PROFILES = Path(__file__).parents[2] / "edge_configs"  # beside the packages, in a clone and when installed
Processor = Literal["tensorrt", "cuda", "cpu"]
PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One device; edge_configs/README.md explains every key.

    providers:    where networks run, best first; the CPU is tried last even if it is not named
    threads:      records described at the same time, each on one thread of its own
    batch:        records that are made ready at a time, which bounds the memory; halved when it does not suffice
    memory_mib:   memory that the encoder may take on a GPU, and above which the doctor warns; 0 = no limit
    require_gpu:  refuse to fall back to the CPU
    """

    name: str = "default"
    providers: tuple[Processor, ...] = ("cpu",)
    threads: int = 1
    batch: int = 64
    memory_mib: int = 0
    require_gpu: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(threads=self.threads, at_least=1, at_most=1024)
        checks.integer(batch=self.batch, at_least=1, at_most=65_536)
        checks.integer(memory_mib=self.memory_mib, at_least=0)
        if not self.providers or len(set(self.providers)) != len(self.providers):
            raise InputError(f"providers = {list(self.providers)} found; expected one or more, none twice.")

    def wanted(self) -> list[str]:
        """Return onnxruntime's names of the providers, best first, the CPU last."""
        return list(dict.fromkeys(PROVIDERS[each] for each in (*self.providers, "cpu")))


DEFAULT = DeviceProfile()


def read_profile(named: str | Path) -> DeviceProfile:
    """Return a profile from a file, or one of edge_configs by its name. Raises InputError."""
    path = Path(named)
    shipped = {each.stem: each for each in sorted(PROFILES.glob("*.toml"))}
    if path.suffix != ".toml" and str(named) in shipped:
        path = shipped[str(named)]
    elif not path.exists():
        raise InputError(f"no device profile {str(named)!r} found; expected a TOML file or {', '.join(shipped)}.")
    return tomlfile.parse(tomlfile.read_text(path, InputError), DeviceProfile, path.name, InputError)


def profile_text(profile: DeviceProfile) -> str:
    """Return the TOML text of a profile."""
    given = {each.name: getattr(profile, each.name) for each in fields(profile)}
    # JSON's strings, numbers, truths and lists of strings are TOML's as well
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in given.items())
