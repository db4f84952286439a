"""The command ``patevolve audit``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click
from tqdm import tqdm

from patevolve.client import policy as policies
from patevolve.client.home import open_home
from patevolve.shared.cli import EPILOG, FORMAT, say
from patevolve.shared.errors import DataError, InputError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.privacy.site_only import BADGE
from patevolve.shared.runfolder import PLAN, finite

if TYPE_CHECKING:
    from patevolve.client.audit import Subject
    from patevolve.shared.data.records import Records

PATH = click.Path(path_type=Path)


@click.command(
    "audit",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Example: patevolve audit runs/heart --demo heart\n\n{EPILOG}",
)
@click.argument("run", type=PATH)
@click.option("--data", type=PATH, default=None, help="The records that took part: the file that the run was given.")
@click.option("--held-out", type=PATH, default=None, help="Records of the same kind that took no part.")
@click.option("--demo", type=click.Choice(["heart", "digits"]), default=None, help="Use a demonstration's records.")
@click.option("--homes", type=PATH, default=None, help="The folder of site folders (default: RUN/sites).")
@click.option(
    "--trials", type=click.IntRange(0, 100_000), default=200, show_default=True, help="Runs in each canary world."
)
@click.option(
    "--shadows", type=click.IntRange(0, 10_000), default=8, show_default=True, help="Shadow students; more find more."
)
@click.option(
    "--canaries", type=click.IntRange(0, 10_000), default=100, show_default=True, help="Canaries of the one-run audit."
)
@click.option("--page", type=PATH, default=None, help="Keep what was found as a page, for this site alone.")
@FORMAT
def audit_command(  # noqa: PLR0917 - click passes by name
    run: Path,
    data: Path | None,
    held_out: Path | None,
    demo: str | None,
    homes: Path | None,
    trials: int,
    shadows: int,
    canaries: int,
    page: Path | None,
    form: str,
) -> None:
    """Attack a finished run where its records are, and say what was found and what could have been found.

    Noise in every stored answer, planted records, membership, attribute inference, inversion, copies. Reads private
    records and charges nothing, so all of it is for this site alone: nothing is sent, and nothing is written but the
    --page that you ask for. Ends with code 4 on alarm.
    """
    from patevolve.client.audit import audit  # noqa: PLC0415 - heavy: only this command needs it
    from patevolve.client.audit_view import text  # noqa: PLC0415 - as above

    subject = _subject(run, read_plan(run / PLAN), data, held_out, demo, homes or run / "sites")
    found = audit(subject, trials=trials, shadows=shadows, canaries=canaries).open_at_site()
    if page is not None:
        from patevolve.client.audit_page import rendered  # noqa: PLC0415 - as above

        write_atomic(page, rendered(subject.agreed.plan.name, found).encode(), mode=0o600)
    say(form, {"badge": BADGE, **finite(found)}, text(found))
    if found["alarms"]:
        raise DataError(f"{len(found['alarms'])} alarm(s), listed above; the guarantee of this run is in doubt.")


@click.command(
    "sweep",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Example: patevolve sweep heart --epsilons 1,2,4,8 --seeds 3\n\n{EPILOG}",
)
@click.argument("name", type=click.Choice(["heart", "digits"]), default="heart")
@click.option("--epsilons", default="1,2,4,8", show_default=True, help="The budgets, with commas between.")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="How many seeds at each.")
@FORMAT
def sweep_command(name: str, epsilons: str, seeds: int, form: str) -> None:
    """Show what more ε buys and what it gives away: usefulness beside inversion and membership, over seeds.

    On a demonstration's public data: every point is a whole run, and on private data their ε would add up.
    """
    from patevolve.client.sweep import sweep, text  # noqa: PLC0415 - heavy: only this command needs it

    try:
        budgets = [float(word) for word in epsilons.split(",")]
    except ValueError as reason:
        raise InputError(f"--epsilons {epsilons!r} found; expected numbers with commas between: 1,2,4,8.") from reason
    total = seeds * (1 + len(budgets))
    with tqdm(total=total, desc=f"sweep {name}", unit="run", disable=form == "json" or None) as bar:

        def tick(piece: str) -> None:
            bar.set_postfix_str(piece)
            bar.update()

        found = sweep(name, epsilons=budgets, seeds=list(range(1, seeds + 1)), tick=tick)
    say(form, finite(found), text(found))


def _subject(  # noqa: PLR0917 - private, called once
    run: Path, agreed: Agreed, data: Path | None, held_out: Path | None, demo: str | None, homes: Path
) -> Subject:
    from patevolve.client import audit, study  # noqa: PLC0415 - heavy: only this command needs them
    from patevolve.client.simulate import load_records  # noqa: PLC0415 - as above

    if (data is None) == (demo is None):
        raise DataError("no records named, or two sets; expected --data FILE or --demo NAME.")
    found = [open_home(path.parent) for path in sorted(homes.glob(f"*/{policies.FILE}"))]
    if (homes / policies.FILE).exists():
        found.append(open_home(homes))
    others: Records | None
    if demo is not None:
        from patevolve.client.demo import FOLDER, data_of  # noqa: PLC0415 - an extra

        parts = data_of(demo, agreed.plan, agreed.plan.seed)
        members, others = dict(parts.train), parts.test
        with resources.as_file(FOLDER / "heart.csv") as path:
            raw = audit.raw_of(path, agreed.plan, members) if demo == "heart" else ()
    else:
        members = load_records(data, agreed.plan) if data is not None else {}
        if len(found) == 1 and set(members) == {""}:
            members = {found[0].policy.site: members[""]}
        others = study.join(list(load_records(held_out, agreed.plan).values())) if held_out is not None else None
        raw = audit.raw_of(data, agreed.plan, None) if data is not None and agreed.plan.data.kind == "table" else ()
    by_site = {home.policy.site: home for home in found if home.policy.site in members}
    audit.check_sites(members, by_site)
    if others is None:
        others = audit.others_of(members, by_site, agreed.plan)
    return audit.Subject(path=run, agreed=agreed, homes=by_site, members=members, others=others, raw=raw)
