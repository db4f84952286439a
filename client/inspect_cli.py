"""The command ``patevolve client inspect``."""

from __future__ import annotations

import json
from pathlib import Path

import click
from tqdm import tqdm

from patevolve.shared.cli import EPILOG, FORMAT, say
from patevolve.shared.errors import DataError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import read_plan

PATH = click.Path(path_type=Path)
FILES = ("inspection.txt", "inspection.html", "inspection.json")


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Example: patevolve client inspect images/ --plan plan.toml --out site/inspection\n\n{EPILOG}",
)
@click.argument("data", type=PATH)
@click.option("--plan", type=PATH, required=True, help="The plan under which the data would take part.")
@click.option("--out", type=PATH, default=None, help="Also write the report here, as text, HTML and JSON.")
@FORMAT
def inspect(data: Path, plan: Path, out: Path | None, form: str) -> None:
    """Show what the data holds and what is wrong with it, before anything is spent.

    Counts per class and patient, what is converted, refused, ignored or repeated, which classes are too small for the
    plan's teachers, and how often the noise overturns this site's votes. For this site alone: nothing of it is sent.
    Ends with code 4 if the data cannot take part as it is.
    """
    from patevolve.client.inspect import inspect_data  # noqa: PLC0415 - this command alone
    from patevolve.client.inspect_view import as_html, as_text  # noqa: PLC0415 - as above

    agreed = read_plan(plan)
    with tqdm(desc="inspect", unit="file", disable=True if form == "json" else None) as bar:
        report = inspect_data(data, agreed.plan, tick=bar.update).open_at_site()
    body = json.dumps(report.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    text = as_text(report)
    if out is not None:
        try:
            for name, content in zip(FILES, (text + "\n", as_html(report), body), strict=True):
                write_atomic(out / name, content.encode("utf-8", "backslashreplace"), mode=0o600)
        except OSError as reason:
            raise DataError(
                f"the report cannot be written to {out} ({reason.strerror}). Free space or name a folder."
            ) from reason
    say(form, report.as_dict(), text)
    if report.problems:
        click.get_current_context().exit(DataError.exit_code)
