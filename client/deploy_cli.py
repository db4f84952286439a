"""The commands of a site that takes part over a network or by file: join, start, status, doctor, answer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from patevolve.client import policy as policies
from patevolve.client.device import chosen, keep_device
from patevolve.client.device_cli import device_options, examine_device
from patevolve.client.joined import read_joined
from patevolve.shared.cli import EPILOG, FORMAT, say
from patevolve.shared.errors import PatevolveError, PolicyError
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.processes import Children, Stopped, ending_on_signals

SETTINGS = {"help_option_names": ["-h", "--help"]}
PATH = click.Path(path_type=Path)
HOME = click.option("--home", type=PATH, default=Path("site"), show_default=True, help="The site's folder.")
UNSAFE = click.option(
    "--unsafe-without-tls",
    "unsafe",
    is_flag=True,
    help="No TLS and no node key: whoever is between reads along. For tests alone.",
)


def commands() -> list[click.Command]:
    """Return the commands to be added to ``patevolve client``."""
    return [join, key, peers, start, status, doctor, answer, forget]


@click.command(
    context_settings=SETTINGS, epilog=f"Example: patevolve client join handed-over/ --data patients.csv\n\n{EPILOG}"
)
@click.argument("folder", type=PATH)
@HOME
@click.option("--data", type=PATH, required=True, help="The site's own file of records; it stays where it is.")
@FORMAT
def join(folder: Path, home: Path, data: Path, form: str) -> None:
    """Take a coordinator's hand-over folder into the site's folder. Nothing is answered until a plan is approved."""
    from patevolve.client.joining import take_over  # noqa: PLC0415 - this command alone

    joined, agreed = take_over(folder, home, data)
    steps = [f"patevolve plan {home / 'plan.toml'}"]
    steps += [f"patevolve client approve {home / 'plan.toml'} --home {home} --site {json.dumps(joined.site)}"]
    steps += [f"patevolve client doctor --home {home}", f"patevolve client start --home {home}"]
    said = {"site": joined.site, "home": str(home), "plan": joined.plan, "address": joined.address, "next": steps}
    words = [f"Joined as {joined.site!r}: plan {agreed.plan.name!r}, SHA-256 {joined.plan}.", "Next:"]
    say(form, said, "\n".join([*words, *(f"  {step}" for step in steps)]))


@click.command(context_settings=SETTINGS, epilog=f"Example: patevolve client key --home site/\n\n{EPILOG}")
@HOME
@FORMAT
def key(home: Path, form: str) -> None:
    """Show the site's public key, to be told to the coordinator by another way; the first time, the key is made."""
    from patevolve.client.home import open_home  # noqa: PLC0415 - this command alone

    opened = open_home(home)
    say(form, {"site": opened.policy.site, "public_key": opened.identity.public_key}, opened.identity.public_key)


@click.command(
    context_settings=SETTINGS, epilog=f"Example: patevolve client peers roster.json --home site/\n\n{EPILOG}"
)
@click.argument("roster", type=PATH)
@HOME
@click.option("--yes", is_flag=True, help="Keep the roster without asking.")
@FORMAT
def peers(roster: Path, home: Path, form: str, *, yes: bool) -> None:
    """Show the other sites' public keys and keep them: in a secure sum, the site sums with these peers alone."""
    from patevolve.client import joining  # noqa: PLC0415 - this command alone
    from patevolve.client.approved import approved_plans  # noqa: PLC0415 - the same
    from patevolve.client.home import open_home  # noqa: PLC0415 - the same
    from patevolve.client.masking import ROSTER  # noqa: PLC0415 - the same

    opened = open_home(home)
    sites = joining.read_peers(roster, opened, approved_plans(opened))
    if form == "text":
        click.echo("\n".join(f"{site}: {public}" for site, public in sites.items()))
    if not yes and not click.confirm("Have you compared these keys with the sites by another way?", err=form == "json"):
        raise PolicyError("the roster was not taken; nothing was written.")
    joining.take_peers(home, sites)
    say(form, {"sites": sites}, f"{len(sites)} sites kept in {home / ROSTER}.")


@click.command(context_settings=SETTINGS, epilog=f"Example: patevolve client start --home site/\n\n{EPILOG}")
@HOME
@click.option("--port", type=click.IntRange(1, 65535), default=None, help="Loopback port between the two processes.")
@device_options
@UNSAFE
@click.option("--unsafe-recorded-noise", "recorded", is_flag=True, hidden=True, help="For tests that compare bytes.")
@FORMAT
def start(
    home: Path, port: int | None, profile: str | None, form: str, *, require_gpu: bool, unsafe: bool, recorded: bool
) -> None:
    """Connect to the coordinator and answer what plan and policy permit, until stopped.

    Runs two processes: Flower's SuperNode, which alone connects, outbound; and the site's executor, which answers with
    the installed patevolve and never runs what the coordinator sends. Both are started again when they end. A profile
    that is named here is kept in the site's folder.
    """
    from patevolve.client import joining  # noqa: PLC0415 - this command alone

    home = home.absolute()
    joined = read_joined(home)
    policies.read_policy(home / policies.FILE)  # refuse at once: without a policy nothing would be answered
    _keep_profile(home, profile, require_gpu=require_gpu)
    port = port or joining.free_port()
    with joining.alone(home), ending_on_signals(), Children() as children:
        if unsafe:
            click.echo("UNSAFE: no TLS, no node key. Whoever is between reads along.", err=True)
        said = {"ready": True, "site": joined.site, "address": joined.address, "tls": not unsafe, "pid": os.getpid()}
        say(form, said, f"{joined.site} connects to {joined.address}; logs in {home / joining.LOGS}. Stop with Ctrl-C.")
        try:
            joining.serve(home, joined, children, port=port, tls=not unsafe, recorded=recorded)
        except (KeyboardInterrupt, Stopped):
            click.echo("Stopping.", err=True)


def _keep_profile(home: Path, named: str | None, *, require_gpu: bool) -> None:
    device = chosen(home, named, require_gpu=require_gpu)
    if named is not None or require_gpu:
        keep_device(home, device)


@click.command(context_settings=SETTINGS, epilog=f"Example: patevolve client status --home site/\n\n{EPILOG}")
@HOME
@FORMAT
def status(home: Path, form: str) -> None:
    """Say whether the site is being served, what it permits, and what its ledger has spent."""
    from patevolve.client.home import IDENTITY  # noqa: PLC0415 - this command alone
    from patevolve.client.joining import is_served  # noqa: PLC0415 - the same
    from patevolve.client.masking import open_runs  # noqa: PLC0415 - the same
    from patevolve.shared.privacy.signing import load_identity  # noqa: PLC0415 - the same

    joined = read_joined(home)
    said: dict[str, Any] = {"site": joined.site, "address": joined.address, "served": is_served(home)}
    said["open_runs"] = sorted(set(open_runs(home).values()))
    if (home / IDENTITY).exists():
        said["public_key"] = load_identity(home / IDENTITY).public_key
    try:
        policy = policies.read_policy(home / policies.FILE)
        said |= {"plan_permitted": joined.plan in policy.plans, "cap": policy.budget.epsilon, **_spent(home, policy)}
    except PatevolveError as reason:
        said |= {"plan_permitted": False, "reason": str(reason)}
    lines = [f"{joined.site}: {'served' if said['served'] else 'not served; patevolve client start'}"]
    lines += [f"Coordinator: {joined.address}", f"Plan {joined.plan[:12]}… permitted: {said['plan_permitted']}"]
    lines += [f"Public key: {said['public_key']}"] if "public_key" in said else []
    lines += [str(said["reason"])] if "reason" in said else []
    lines += [f"ε spent: {said['spent']:.3g} of {said['cap']:g}; {said['charges']} charges"] if "spent" in said else []
    lines += [f"Open runs under masks: {', '.join(said['open_runs'])}"] if said["open_runs"] else []
    say(form, said, "\n".join(lines))


def _spent(home: Path, policy: policies.SitePolicy) -> dict[str, Any]:
    from patevolve.client.home import LEDGER  # noqa: PLC0415 - this command alone

    if not (home / LEDGER).exists():
        return {"spent": 0.0, "charges": 0}
    with Ledger.open(home / LEDGER) as ledger:
        return {
            "spent": ledger.spent(policy.budget.delta).epsilon,
            "charges": sum(1 for _ in ledger.charges()),
        }


@click.command(context_settings=SETTINGS, epilog="Example: patevolve client doctor --home site/ --format json")
@HOME
@device_options
@click.option("--network", type=PATH, default=None, help="With --profile: an ONNX file instead of the joined plan's.")
@UNSAFE
@FORMAT
def doctor(
    home: Path, profile: str | None, network: Path | None, form: str, *, require_gpu: bool, unsafe: bool
) -> None:
    """Look for what stands between this site and its coordinator, and say how to mend it.

    With --profile, --network or --require-gpu it measures this machine instead: images per second, memory and the
    provider that really runs, and proposes a profile.

    Exit codes: 0 all is well; 20 to 38 name the first cause found (docs/deploy.md has the table).
    """
    from patevolve.client.doctor import examine_home  # noqa: PLC0415 - this command alone

    if profile is not None or network is not None or require_gpu:
        examine_device(home.absolute(), profile, network, form, require_gpu=require_gpu)
        return

    findings = examine_home(home.absolute(), tls=not unsafe)
    said = [
        {
            "check": f.check,
            "ok": not f.cause,
            "cause": f.cause,
            "detail": f.detail,
            "fix": f.fix,
            "exit_code": f.exit_code,
        }
        for f in findings
    ]
    lines = []
    for finding in findings:
        lines.append(f"{'ok  ' if not finding.cause else 'FAIL'} {finding.check}: {finding.detail}")
        lines += [f"     fix: {finding.fix} (exit code {finding.exit_code})"] if finding.cause else []
    code = next((finding.exit_code for finding in findings if finding.cause), 0)
    say(form, {"exit_code": code, "checks": said}, "\n".join(lines))
    click.get_current_context().exit(code)


@click.command(
    context_settings=SETTINGS, epilog=f"Example: patevolve client answer QUESTION.pv --out ANSWER.pv\n\n{EPILOG}"
)
@click.argument("question", type=PATH)
@click.option("--out", type=PATH, required=True, help="The answer file, to be carried back.")
@HOME
@device_options
@FORMAT
def answer(question: Path, out: Path, home: Path, profile: str | None, form: str, *, require_gpu: bool) -> None:
    """Answer a question that came as a file: the same policy, guard and ledger as over the network, no connection."""
    from patevolve.client.airgap import answer_file, codes_of  # noqa: PLC0415 - loads what answers a question

    home = home.absolute()
    joined = read_joined(home)
    _keep_profile(home, profile, require_gpu=require_gpu)
    found = answer_file(home, joined, question, out)
    codes = codes_of(found)
    refused = [code for code in codes if code]
    said = {"site": found.site, "action": found.action, "out": str(out), "refused": refused}
    words = f"Wrote {out}: {found.action} of {found.site}."
    if refused:
        words += f" Refused ({', '.join(refused)}); the reason stands in the log above. Carry it back all the same."
    say(form, said, words)


@click.command(
    context_settings=SETTINGS, epilog=f"Example: patevolve client forget 9f2c61d0a1b2c3d4 --home site/\n\n{EPILOG}"
)
@click.argument("run")
@HOME
@FORMAT
def forget(run: str, home: Path, form: str) -> None:
    """Delete the keys and replies of a run's secure sums once the run is over. The ledger keeps every charge.

    `patevolve client status` lists the open runs. A run that goes on after this is set up, drawn and charged anew.
    """
    from patevolve.client import masking  # noqa: PLC0415 - this command alone
    from patevolve.client.home import open_home  # noqa: PLC0415 - the same

    masking.forget(open_home(home), run)
    say(form, {"forgotten": run}, f"The state of run {run} is gone.")
