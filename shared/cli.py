"""The command line: what needs no private data stands here, the rest comes from the client's and server's folders.

Every command has ``--help`` with an example and ``--format json`` for machines. Exit codes: errors.py.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from patevolve.shared import tomlfile
from patevolve.shared.assets_cli import assets_group
from patevolve.shared.encoder_cli import encoder
from patevolve.shared.errors import InputError, PatevolveError
from patevolve.shared.files import write_atomic
from patevolve.shared.finish import RELEASE
from patevolve.shared.pate_curve import accuracy_curve
from patevolve.shared.plan import read_plan
from patevolve.shared.plan_edit import setting, vary
from patevolve.shared.privacy import ledger_view, pate_view, planner_view
from patevolve.shared.privacy.budget import Cap
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.ledger import Head, Ledger, verify
from patevolve.shared.release.export import FORMATS, export
from patevolve.shared.report.write import rendered
from patevolve.shared.screen import EPILOG, FORMAT, PATH, SETTINGS, say

__all__ = ["EPILOG", "FORMAT", "Application", "application", "main", "say"]


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


application.add_command(assets_group)
application.add_command(encoder)


@application.command(
    "plan", context_settings=SETTINGS, epilog="Example: patevolve plan plan.toml --set privacy.epsilon=2"
)
@click.argument("path", metavar="PLAN", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Re-plan with a key changed (repeatable).")
@click.option("--save", type=PATH, default=None, help="Write the changed plan here.")
@FORMAT
def plan_command(path: Path, changes: tuple[str, ...], save: Path | None, form: str) -> None:
    """Show what a plan asks, the noise of each question, and in words where noise dominates."""
    agreed = read_plan(path)
    if changes:
        agreed = vary(agreed, dict(setting(change) for change in changes))
    if save is not None:
        write_atomic(save, agreed.text.encode())
    say(form, planner_view.describe(agreed), planner_view.describe_text(agreed))


@application.command(
    context_settings=SETTINGS, epilog="Example: patevolve pate --teachers 250 --sigma 40 --queries 1000"
)
@click.option("--teachers", type=int, default=250, show_default=True, help="Teachers K; each gives one vote per query.")
@click.option("--classes", type=int, default=10, show_default=True, help="Number of classes.")
@click.option("--sigma", type=float, default=None, help="GNMax noise in votes (40 if no noise is given).")
@click.option("--gamma", type=float, default=None, help="LNMax noise as Lap(2/γ): a LARGER γ is LESS private.")
@click.option("--queries", type=int, default=1000, show_default=True, help="Answered queries q.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of the guarantee.")
@click.option("--budget", type=float, default=8.0, show_default=True, help="ε for which the largest q is computed.")
@click.option("--votes", default=None, help="Counts such as 150,60,40: their data-dependent cost; not releasable.")
@click.option("--curve", type=click.Choice(["digits", "article"]), default=None, help="Measure accuracy against ε too.")
@FORMAT
def pate(votes: str | None, curve: str | None, form: str, **numbers: Any) -> None:
    """Answer on one screen what PATE costs: ε by each analysis, margins, the largest q, accuracy against ε."""
    if numbers["sigma"] is None and numbers["gamma"] is None:
        numbers["sigma"] = pate_view.DEFAULT_SIGMA
    question = pate_view.Question(**numbers)
    record = pate_view.answer(question)
    if curve is not None:
        record["curve"] = accuracy_curve(curve)
    private = None if votes is None else pate_view.private_part(question, _counts(votes))
    say(form, record, pate_view.screen(record, private))


def _counts(text: str) -> list[int]:
    try:
        return [int(count) for count in text.split(",")]
    except ValueError as reason:
        raise InputError(
            f"--votes {text!r} found; expected whole numbers with commas between, as 150,60,40."
        ) from reason


@application.command("explain", context_settings=SETTINGS, epilog="Example: patevolve explain --out pate.html")
@click.option(
    "--out", type=PATH, default=Path("pate.html"), show_default=True, help="The page: one file that needs no network."
)
@FORMAT
def explain_command(out: Path, form: str) -> None:
    """Write the interactive page about PATE: votes, noise, what answers cost and what a student learns."""
    from patevolve.shared.explain import explained  # noqa: PLC0415 - draws votes and trains students: this command alone

    write_atomic(out, explained().encode())
    say(form, {"page": str(out)}, f"Wrote {out}: open it in a browser.")


@application.group(context_settings=SETTINGS)
def ledger() -> None:
    """Read a site's or the coordinator's ledger."""


@ledger.command(context_settings=SETTINGS, epilog="Example: patevolve ledger show site/ledger.sqlite")
@click.argument("path", type=PATH)
@click.option(
    "--epsilon", type=float, default=None, help="The policy's cap (default: of policy.toml beside the ledger)."
)
@click.option("--delta", type=float, default=None, help="The cap's δ.")
@FORMAT
def show(path: Path, epsilon: float | None, delta: float | None, form: str) -> None:
    """Show who asked what and when, under which plan, what it cost and what is left."""
    cap = _cap(path, epsilon, delta)
    with Ledger.open(path) as opened:
        say(form, ledger_view.describe(opened, cap), ledger_view.describe_text(opened, cap))


def _cap(path: Path, epsilon: float | None, delta: float | None) -> Cap:
    beside = path.parent / "policy.toml"
    if epsilon is None and delta is None and beside.exists():
        found = tomllib.loads(tomlfile.read_text(beside, InputError)).get("budget", {})
        epsilon, delta = found.get("epsilon"), found.get("delta")
    if epsilon is None or delta is None:
        raise InputError(
            f"no cap known for {path}; give --epsilon and --delta, or keep the ledger beside its policy.toml."
        )
    return Cap(epsilon=epsilon, delta=delta)


@ledger.command(
    "verify",
    context_settings=SETTINGS,
    epilog="Example: patevolve ledger verify site/ledger.sqlite --against run/global.sqlite",
)
@click.argument("path", type=PATH)
@click.option("--against", type=PATH, default=None, help="The coordinator's ledger, whose signed heads must be found.")
@FORMAT
def verify_command(path: Path, against: Path | None, form: str) -> None:
    """Check every row's hash, the totals, and that no signed head is missing: edits, cuts, forks, roll-backs."""
    heads: list[Head] = []
    if against is not None:
        with Ledger.open(path) as opened, GlobalLedger.open(against) as joined:
            heads = joined.trusted_heads(opened.site)
    found = verify(path, trusted_heads=heads)
    say(form, ledger_view.verification(found), ledger_view.verification_text(found))


@application.command("report", context_settings=SETTINGS, epilog="Example: patevolve report runs/heart")
@click.argument("run", type=PATH)
@click.option("--tensorboard", type=PATH, default=None, help="Also write the generations there for TensorBoard.")
@FORMAT
def report_command(run: Path, form: str, tensorboard: Path | None) -> None:
    """Render a run's report.html anew from its report.json and say where it lies."""
    from patevolve.shared.explain import beside  # noqa: PLC0415 - draws votes: not for every command
    from patevolve.shared.report.page import EXPLAIN  # noqa: PLC0415 - the same

    path = run / "report.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise InputError(f"{path} cannot be read as a report ({reason}); expected a finished run folder.") from reason
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no object; expected the report of a finished run.")
    if tensorboard is not None:
        from patevolve.shared.report.tensorboard import write  # noqa: PLC0415 - this option alone

        write(value, run, tensorboard)
    write_atomic(run / "report.html", rendered(value | {"explain": EXPLAIN}).encode())
    beside(run)
    say(form, value, f"Report: {run / 'report.html'}")


@application.command(
    "verify",
    context_settings=SETTINGS,
    epilog=f"Example: patevolve verify runs/heart/release --keys roster.json\n\n{EPILOG}",
)
@click.argument("release", metavar="RELEASE", type=PATH)
@click.option("--keys", type=PATH, default=None, help="Public keys got by another way, as a roster.json has them.")
@FORMAT
def verify_release_command(release: Path, keys: Path | None, form: str) -> None:
    """Check that a release, or an export of one, is whole and signed, and that its ε follows from its ledger.

    Needs the folder and the public keys alone. Without --keys it says so: whoever made the folder may have made the
    keys in it.
    """
    from patevolve.shared.release.proof import read_keys  # noqa: PLC0415 - this command alone
    from patevolve.shared.verify import describe, describe_text, verify_release  # noqa: PLC0415 - the same

    found = verify_release(release, None if keys is None else read_keys(keys))
    say(form, describe(found), describe_text(found))


@application.command(
    "schema",
    context_settings=SETTINGS,
    epilog="Example: patevolve schema dictionary.csv --label disease --unit patient --out data.toml",
)
@click.argument("dictionary", type=PATH)
@click.option("--label", default="", help="The class column (default: the entry with role = label).")
@click.option("--unit", default="", help="The column of patient ids, if there is one.")
@click.option("--site", default="", help="The column of sites, if there is one.")
@click.option(
    "--bins", type=click.IntRange(1, 100), default=8, show_default=True, help="Of a number without documented edges."
)
@click.option("--out", type=PATH, default=None, help="Write the TOML here (default: to the screen).")
@FORMAT
def schema_command(dictionary: Path, out: Path | None, form: str, **named: Any) -> None:
    """Draft the [data] section of a plan from a data DICTIONARY (CSV, TSV or JSON): documentation, never the data.

    An entry has name, type, min, max, categories, missing; if wanted edges, decimals, role, source. What comes from
    defaults is marked.
    """
    from patevolve.shared.data import dictionary as dictionaries  # noqa: PLC0415 - this command alone
    from patevolve.shared.data.schema_text import describe, toml_text  # noqa: PLC0415 - the same

    found = dictionaries.draft(dictionary, **named)
    text = toml_text(found)
    if out is not None:
        write_atomic(out, text.encode())
        text = f"Wrote {out}. Check every bound against its source, then put it into a plan."
    say(form, describe(found), text)


@application.command(
    "export", context_settings=SETTINGS, epilog="Example: patevolve export runs/heart --format parquet"
)
@click.argument("run", type=PATH)
@click.option(
    "--format", "kind", type=click.Choice([*FORMATS, "onnx", "safetensors"]), required=True, help="Of the files."
)
@click.option("--out", type=PATH, default=None, help="A new folder (default: RUN/export-FORMAT).")
@click.option("--json", "machine", is_flag=True, help="Say what was written as JSON.")
def export_command(run: Path, kind: str, out: Path | None, *, machine: bool) -> None:
    """Write a run's release, or its student (onnx, safetensors), for other people's tools.

    The release's manifest is checked first. patevolve verify checks what was written.
    """
    from patevolve.shared.student_export import FORMATS as STUDENTS  # noqa: PLC0415 - this command alone
    from patevolve.shared.student_export import export_student  # noqa: PLC0415 - the same

    folder = out or run / f"export-{kind}"
    if kind in STUDENTS:
        export_student(run, folder, kind)
    else:
        export(run / RELEASE, folder, kind)
    say("json" if machine else "text", {"out": str(folder), "format": kind}, f"Exported to {folder}.")


def main() -> None:
    """Run the command line with the commands of every installed folder."""
    for entry in sorted(importlib.metadata.entry_points(group="patevolve.commands"), key=lambda entry: entry.name):
        for command in entry.load()():
            application.add_command(command)
    try:
        code = application.main(prog_name="patevolve", standalone_mode=False) or 0  # a good end is None
    except click.ClickException as reason:
        if _wants_json(sys.argv):
            click.echo(json.dumps({"error": "usage", "message": reason.format_message()}, ensure_ascii=False))
        else:
            reason.show()
        code = reason.exit_code
    except click.Abort:
        click.echo("Aborted.", err=True)
        code = 1
    sys.exit(code)
