"""``patevolve client train``: the site's private head, trained once, charged step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from patevolve.client.policy import check_plan
from patevolve.shared.cli import EPILOG, FORMAT, say
from patevolve.shared.errors import DataError, InputError
from patevolve.shared.plan import Agreed, read_plan

PATH = click.Path(path_type=Path)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Example: patevolve client train plan.toml --data ours.csv --home site/\n\n{EPILOG}",
)
@click.argument("plan", type=PATH)
@click.option("--data", type=PATH, required=True, help="The site's own file of records; it stays where it is.")
@click.option("--home", type=PATH, default=Path("site"), show_default=True, help="The site's folder.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to train; auto takes a GPU that PyTorch finds.",
)
@click.option("--onnx", type=PATH, default=None, help="Write the head here as well, with a card; it stays private.")
@FORMAT
def train(plan: Path, data: Path, home: Path, device: str, onnx: Path | None, form: str) -> None:  # noqa: PLR0917 - click passes by name
    """Train the private head that a plan asks for; each step is charged to the site's ledger before its noise.

    A call that was killed is resumed by the same call. Needs the extra: pip install 'patevolve[train]'. Voting with the
    trained head needs neither PyTorch nor Opacus.
    """
    agreed = read_plan(plan)
    head = agreed.plan.encoder.head
    if not head.share:
        raise InputError(f"plan {agreed.plan.name!r} asks for no head: [encoder.head] has no share. Nothing to train.")
    found = trained(agreed, data, home, device, quiet=True if form == "json" else None)
    if onnx is not None:
        found |= {"onnx": str(onnx), "onnx_sha256": _exported(agreed, home, onnx)}
    say(form, found, "\n".join(_lines(found)))


def _exported(agreed: Agreed, home: Path, path: Path) -> str:
    from patevolve.client.home import open_home  # noqa: PLC0415 - this option alone
    from patevolve.client.private_head import export_head, head_of  # noqa: PLC0415 - the same
    from patevolve.shared.tools import tools_of  # noqa: PLC0415 - the same

    head = head_of(open_home(home), agreed)
    if head is None:
        raise InputError("the plan asks for no head; there is nothing to export.")
    return export_head(path, head, agreed, tools_of(agreed.plan))


def trained(agreed: Agreed, data: Path, home: Path, device: str, *, quiet: bool | None) -> dict[str, Any]:
    """Train, or read what was trained, and return what the site may know of it."""
    from patevolve.client.home import open_home  # noqa: PLC0415 - this command alone
    from patevolve.client.private_head import HEADS, train_head  # noqa: PLC0415 - the same
    from patevolve.client.simulate import load_records, system_noise  # noqa: PLC0415 - the same
    from patevolve.shared.encoder.train import device_of  # noqa: PLC0415 - the same
    from patevolve.shared.tools import tools_of  # noqa: PLC0415 - the same

    opened = open_home(home)
    check_plan(opened.policy, agreed)
    records = load_records(data, agreed.plan)
    if len(records) != 1:
        raise DataError(f"{len(records)} sites found in {data.name}; expected the records of this site alone.")
    ((named, own),) = records.items()
    if named not in {"", opened.policy.site}:
        raise DataError(f"{data.name} holds records of {named!r}; this is {opened.policy.site!r}. Name another file.")
    where = device_of(device)
    with (
        opened.open_ledger() as ledger,
        tqdm(total=agreed.plan.encoder.head.steps, desc="train", unit="step", disable=quiet) as bar,
    ):
        made = train_head(
            opened,
            ledger,
            own,
            agreed,
            tools_of(agreed.plan),
            noise=system_noise,
            device=where,
            tick=lambda _: bar.update(),
        )
        spent = ledger.spent_by("part", agreed.plan.privacy.delta)["head"].epsilon
    return {
        **made.about,
        "path": str(home / HEADS / f"{agreed.sha256}.npz"),
        "device": where,
        "epsilon_of_heads": spent,
        "delta": agreed.plan.privacy.delta,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    before, after = found["public_spread"]
    return [
        f"{found['site']}: {found['steps']} steps on {found['device']}, noise {found['noise_multiplier']:.3g} × clip.",
        f"All heads in this ledger cost ε = {found['epsilon_of_heads']:.3g} at δ = {found['delta']:g}.",
        f"Spread of public embeddings {before:.2f} before, {after:.2f} after (0 is a collapse).",
        f"The head stays at the site: {found['path']}",
        *([f"ONNX, as private as the head: {found['onnx']}"] if "onnx" in found else []),
    ]
