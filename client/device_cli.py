"""Options about the machine that a command runs on, and what ``client doctor --profile`` prints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from patevolve.client.device import chosen
from patevolve.client.flamegraph import sampled
from patevolve.shared.cli import say
from patevolve.shared.encoder.device import profile_text

F = TypeVar("F", bound=Callable[..., Any])
PROFILE = click.option(
    "--profile", metavar="NAME|FILE", default=None, help="Device profile: a TOML file, or a name of edge_configs."
)
REQUIRE_GPU = click.option("--require-gpu", is_flag=True, help="Refuse to run the plan's network on the CPU.")

FLAMEGRAPH = click.option(
    "--flamegraph",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=None,
    help="Write where the time goes: JSON for speedscope.app or any viewer of its format. For the site alone.",
)


def device_options(command: F) -> F:
    """Add --profile and --require-gpu to a command."""
    return PROFILE(REQUIRE_GPU(command))


def flamegraph_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add --flamegraph to a command; the file is written also when the command ends with an error."""

    @functools.wraps(command)
    def watched(*positions: Any, flamegraph: Path | None, **names: Any) -> None:
        with contextlib.nullcontext() if flamegraph is None else sampled(flamegraph):
            command(*positions, **names)

    return FLAMEGRAPH(watched)


def examine_device(home: Path, named: str | None, network: Path | None, form: str, *, require_gpu: bool) -> None:
    """Measure this machine under a profile and print what it does and the profile that suits it."""
    from patevolve.client.doctor_device import measure, network_of  # noqa: PLC0415 - this option alone

    found = measure(chosen(home, named, require_gpu=require_gpu), network or network_of(home))
    said = dataclasses.asdict(found) | {"proposed_toml": profile_text(found.proposed)}
    lines = [f"{found.network} on {found.provider}; opened in {found.open_s:.2f} s; peak {found.peak_mib:.0f} MiB"]
    lines += [f"  {threads} thread(s): {rate:,.0f} images/s" for threads, rate in found.per_second.items()]
    lines += [f"warning: {words}" for words in found.warnings]
    say(form, said, "\n".join([*lines, "Proposed profile:", profile_text(found.proposed).rstrip()]))
