"""What every command of the command line shares: how it prints, and the words at the end of its help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

SETTINGS = {"help_option_names": ["-h", "--help"]}
PATH = click.Path(path_type=Path)
FORMAT = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", help="For people or machines."
)
EPILOG = (
    "Exit codes: 0 done · 2 input · 3 veto by policy · 4 data · 5 budget · 6 ledger · 7 message · 8 quorum · 9 release."
)


def say(form: str, value: Any, text: str) -> None:
    """Print ``value`` as JSON or ``text`` as it is."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False) if form == "json" else text)
