"""``patevolve client doctor --profile``: how fast this machine describes images, and the profile that suits it."""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patevolve.client.approved import PLANS
from patevolve.client.joined import FILE as JOINED
from patevolve.client.joined import read_joined
from patevolve.shared import assets
from patevolve.shared.encoder.device import DeviceProfile
from patevolve.shared.encoder.image import Describe, histograms
from patevolve.shared.encoder.onnx import open_network
from patevolve.shared.errors import InputError
from patevolve.shared.plan import read_plan

SECONDS = 1.0  # for each number of threads
ENOUGH = 0.9  # of the best speed; fewer threads that reach it are proposed
BUILT_IN = "orientation histograms"
NUMPY = "numpy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One machine under one profile.

    network:     the file's name, or BUILT_IN
    provider:    what it really ran on
    open_s:      seconds to open the network, with the probe in another process
    per_second:  images described per second, by number of threads
    peak_mib:    peak resident memory of this process
    proposed:    the profile with the fewest threads that come near the best speed
    warnings:    what does not hold of the profile on this machine
    """

    network: str
    provider: str
    open_s: float
    per_second: dict[int, float]
    peak_mib: float
    proposed: DeviceProfile
    warnings: tuple[str, ...]


def network_of(home: Path) -> Path | None:
    """Return the network of images of the plan that the site joined; None if it joined none, or the plan names none."""
    if not (home / JOINED).exists():
        return None
    plan = read_plan(home / PLANS / f"{read_joined(home).plan}.toml").plan
    return assets.find(plan.encoder.asset) if (plan.data.kind, plan.encoder.kind) == ("image", "onnx") else None


def measure(profile: DeviceProfile, network: Path | None, *, seconds: float = SECONDS) -> Measured:
    """Return what this machine does under a profile, on synthetic images. Raises InputError or PlanError."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    images = np.random.default_rng(0).integers(0, 256, (64, 28, 28)).astype(np.uint8)
    if network is None:
        if profile.require_gpu:
            raise InputError("require_gpu is for a network; the built-in histograms run on the CPU. Give --network.")
        rates, provider, open_s = {1: _rate(histograms, images, seconds)}, NUMPY, 0.0
    else:
        start = time.perf_counter()
        opened = open_network(network, profile)
        open_s, provider, rates = time.perf_counter() - start, opened.provider, {}
        for threads in _counts(cores):
            device = replace(profile, threads=threads)
            rates[threads] = _rate(replace(opened, device=device).describe, images, seconds)
    peak = _peak_mib()
    best = min(threads for threads, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
    return Measured(
        network=BUILT_IN if network is None else network.name,
        provider=provider,
        open_s=open_s,
        per_second=rates,
        peak_mib=peak,
        proposed=_proposed(profile, provider, best, peak),
        warnings=tuple(_warnings(profile, provider, cores, peak)),
    )


def _counts(cores: int) -> list[int]:
    """Return 1, 2, 4 ... and the number of cores."""
    return sorted({*(1 << power for power in range(cores.bit_length())), cores} - {0})


def _rate(describe: Describe, images: NDArray[np.uint8], seconds: float) -> float:
    describe(images[:8])  # the first images pay for what is set up once
    done, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds or not done:
        describe(images)
        done += len(images)
    return done / took


def _proposed(profile: DeviceProfile, provider: str, threads: int, peak: float) -> DeviceProfile:
    wanted = profile.wanted()
    ran = wanted.index(provider) if provider in wanted else len(wanted) - 1
    providers = profile.providers[ran:] or ("cpu",)
    on_gpu = providers[0] != "cpu"
    memory = profile.memory_mib if on_gpu else 1 << math.ceil(math.log2(1.5 * peak))
    return replace(profile, providers=providers, threads=threads, memory_mib=memory, require_gpu=on_gpu)


def _warnings(profile: DeviceProfile, provider: str, cores: int, peak: float) -> list[str]:
    found = []
    if provider == NUMPY:
        found.append("without a network the profile has nothing to set; name one with --network.")
    elif provider != profile.wanted()[0]:
        found.append(f"{profile.providers[0]} is not to be had; this ran on {provider}.")
    if profile.threads > cores:
        found.append(f"threads = {profile.threads}, but this process may use {cores} core(s).")
    if profile.memory_mib and profile.providers[0] == "cpu" and peak > profile.memory_mib:
        found.append(f"the peak of {peak:.0f} MiB is above memory_mib = {profile.memory_mib}.")
    return found


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
