"""The command line: what needs no private data stands here, the rest comes from the client's and server's folders.

Every command has ``--help`` with an example and ``--format json`` for machines. Exit codes: errors.py.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from patevolve.shared.errors import PatevolveError

FORMAT = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", help="For people or machines."
)
EPILOG = (
    "Exit codes: 0 done · 2 input · 3 veto by policy · 4 data · 5 budget · 6 ledger · 7 message · 8 quorum · 9 release."
)


class Application(click.Group):
    """The ``patevolve`` command: deliberate errors become one line and an exit code, faults keep their traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print a deliberate error as text, or as JSON if the command line asks for JSON."""
        try:
            return super().invoke(ctx)
        except PatevolveError as reason:
            if _wants_json(sys.argv):
                click.echo(json.dumps({"error": reason.code, "message": str(reason)}, ensure_ascii=False))
            else:
                click.echo(f"error: {reason}", err=True)
            ctx.exit(reason.exit_code)


def _wants_json(arguments: Sequence[str]) -> bool:
    return "--format=json" in arguments or any(
        flag == "--format" and value == "json" for flag, value in itertools.pairwise(arguments)
    )


@click.group(cls=Application, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("patevolve"), prog_name="patevolve")
def application() -> None:
    """Federated, differentially private data synthesis for institutions that may not share records."""


def say(form: str, value: Any, text: str) -> None:
    """Print ``value`` as JSON or ``text`` as it is."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False) if form == "json" else text)


def main() -> None:
    """Run the command line with the commands of every installed folder."""
    for entry in sorted(importlib.metadata.entry_points(group="patevolve.commands"), key=lambda entry: entry.name):
        for command in entry.load()():
            application.add_command(command)
    application(prog_name="patevolve")
