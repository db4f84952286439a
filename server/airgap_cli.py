"""The coordinator's commands for sites without a connection, and for pinning the sites' keys."""

from __future__ import annotations

from pathlib import Path

import click

from patevolve.server.handover import KEY, MAIL, ROSTER, RUN, pin_key, pinned_keys, read_deployment
from patevolve.shared.cli import EPILOG, FORMAT, say

SETTINGS = {"help_option_names": ["-h", "--help"]}
PATH = click.Path(path_type=Path)
CODES = EPILOG.removesuffix(".") + " · 13 waiting for answers to be carried."


def commands() -> list[click.Command]:
    """Return the commands to be added to ``patevolve server``."""
    return [ask, collect, pin]


@click.command(context_settings=SETTINGS, epilog=f"Example: patevolve server ask coordinator/\n\n{CODES}")
@click.argument("folder", type=PATH)
@FORMAT
def ask(folder: Path, form: str) -> None:
    """Go on with a run by file as far as the collected answers allow, writing the question files that are next.

    For a cohort without connections; needs a plan with trust = "each-site". Ends with 13 and names the files to carry
    until the last answer has come, then with 0 and the release.
    """
    from patevolve.server import airgap  # noqa: PLC0415 - loads the whole loop

    deployment, agreed = read_deployment(folder)
    airgap.ask(agreed, folder / MAIL, folder / RUN, deployment.sites, folder / KEY)
    release = folder / RUN / "release"
    say(form, {"state": "finished", "exit_code": 0, "release": str(release)}, f"Release: {release}")


@click.command(
    context_settings=SETTINGS, epilog=f"Example: patevolve server collect coordinator/ ANSWER.pv\n\n{EPILOG}"
)
@click.argument("folder", type=PATH)
@click.argument("answers", type=PATH, nargs=-1, required=True)
@FORMAT
def collect(folder: Path, answers: tuple[Path, ...], form: str) -> None:
    """Take in answer files: each must be signed by its site and answer a question of this run."""
    from patevolve.server import airgap  # noqa: PLC0415 - loads the whole loop

    deployment, _ = read_deployment(folder)
    sites = [airgap.collect(folder / MAIL, deployment.sites, answer, pinned_keys(folder)) for answer in answers]
    say(form, {"collected": sites}, f"Collected {len(sites)}: {', '.join(sites)}. Next: patevolve server ask {folder}")


@click.command(
    context_settings=SETTINGS, epilog=f"Example: patevolve server pin coordinator/ --site A --key 3f…\n\n{EPILOG}"
)
@click.argument("folder", type=PATH)
@click.option("--site", required=True, help="The site's name.")
@click.option("--key", required=True, help="Its Ed25519 public key, as `patevolve client status` shows it at the site.")
@FORMAT
def pin(folder: Path, site: str, key: str, form: str) -> None:
    """Pin a site's public key, told by another way; once all are pinned, a run takes no other key for a site."""
    deployment, _ = read_deployment(folder)
    pinned = pin_key(folder, deployment, site, key)
    left = [name for name in deployment.sites if name not in pinned]
    words = f"Still to pin: {', '.join(left)}." if left else f"All keys are pinned in {folder / ROSTER}."
    say(form, {"pinned": sorted(pinned), "missing": left}, words)
