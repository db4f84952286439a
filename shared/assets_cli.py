"""``patevolve assets``: making and keeping the public files that candidates are drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from patevolve.shared import assets
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import FEWEST_TOKENS
from patevolve.shared.plan_sections import LONGEST, MOST_TOKENS, SHORTEST
from patevolve.shared.screen import FORMAT, PATH, SETTINGS, say


@click.group("assets", context_settings=SETTINGS)
def assets_group() -> None:
    """Keep the public files that plans name by their SHA-256: models and pools of images or texts."""


@assets_group.command(context_settings=SETTINGS, epilog="Example: patevolve assets add backbone.onnx")
@click.argument("path", type=PATH)
@FORMAT
def add(path: Path, form: str) -> None:
    """Copy a public file to where plans find it, and print the SHA-256 that names it."""
    kept = assets.add(path)
    say(form, {"sha256": kept.stem, "path": str(kept)}, kept.stem)


@assets_group.command("list", context_settings=SETTINGS, epilog="Example: patevolve assets list --format json")
@FORMAT
def list_command(form: str) -> None:
    """Show the public files that plans can name on this machine."""
    found = assets.listed()
    value = [{"sha256": path.stem, "path": str(path), "bytes": path.stat().st_size} for path in found]
    say(form, value, "\n".join(f"{path.stem}  {path.stat().st_size:>12,}  {path}" for path in found) or "None.")


@assets_group.command("pool", context_settings=SETTINGS, epilog="Example: patevolve assets pool scans/ --out pool.npz")
@click.argument("images", type=PATH)
@click.option("--out", type=PATH, default=Path("pool.npz"), show_default=True, help="The pool's file, to hand on.")
@click.option("--height", type=click.IntRange(8, 1024), default=None, help="Pixels; an NPZ file keeps its own size.")
@click.option("--width", type=click.IntRange(8, 1024), default=None, help="Pixels, as the height.")
@click.option("--fit", type=click.Choice(["exact", "pad", "crop", "stretch"]), default="exact", show_default=True,
    help="How images of another size become that size.")  # fmt: skip
@click.option("--channels", type=click.Choice(["1", "3"]), default="1", show_default=True, help="1: grey; 3: RGB.")
@FORMAT
def pool_command(images: Path, out: Path, form: str, channels: str, **size: Any) -> None:
    """Make a pool of public unlabelled IMAGES (a folder or an NPZ file) and keep it under the SHA-256 that names it."""
    from tqdm import tqdm  # noqa: PLC0415 - for long work alone

    from patevolve.shared import pools  # noqa: PLC0415 - reads images and compares them all: this command alone

    target = pools.target(**size, channels=int(channels))
    with tqdm(desc="pool", unit="image", disable=True if form == "json" else None) as bar:
        public = pools.read_public(images, target, bar.update, channels=int(channels))
        write_atomic(out, pools.build(public, bar.update))
    kept = assets.add(out)
    say(form, {"sha256": kept.stem, "path": str(kept), "out": str(out)}, kept.stem)


@assets_group.command(
    "texts", context_settings=SETTINGS, epilog="Example: patevolve assets texts notes.jsonl --length 512"
)
@click.argument("texts", type=PATH)
@click.option("--out", type=PATH, default=Path("texts.npz"), show_default=True, help="The pool's file, to hand on.")
@click.option("--length", type=click.IntRange(SHORTEST, LONGEST), default=512, show_default=True, help="Bytes of each.")
@click.option("--column", default="text", show_default=True, help="Column of a table, or key of JSON lines.")
@click.option("--network", type=PATH, default=None, help="ONNX file that says which texts are near; else their words.")
@click.option("--tokenizer", type=PATH, default=None, help="The network's tokenizer.")
@click.option(
    "--tokens",
    type=click.IntRange(FEWEST_TOKENS, MOST_TOKENS),
    default=128,
    show_default=True,
    help="It reads of each.",
)
@FORMAT
def texts_command(texts: Path, out: Path, form: str, length: int, column: str, **named: Any) -> None:
    """Make a pool of public unlabelled TEXTS (JSON lines, CSV, TSV or Parquet) and keep it under its SHA-256.

    Texts are kept once, on one line, in normal form and cut to --length bytes of UTF-8; empty ones are left out.
    """
    from tqdm import tqdm  # noqa: PLC0415 - for long work alone

    from patevolve.shared import pools  # noqa: PLC0415 - this command alone

    public, found = pools.read_public_texts(texts, length, column)
    with tqdm(total=len(public), desc="texts", unit="text", disable=True if form == "json" else None) as bar:
        write_atomic(out, pools.build_texts(public, length, pools.description(**named), bar.update))
    kept = assets.add(out)
    value = {"sha256": kept.stem, "path": str(kept), "out": str(out), "texts": len(public), **found}
    words = f"{len(public)} texts; {found['cut']} cut, {found['again']} met again, {found['empty']} empty."
    say(form, value, f"{kept.stem}\n{words}")


@assets_group.command(
    "glyphs", context_settings=SETTINGS, epilog="Example: patevolve assets glyphs /usr/share/fonts --most 150"
)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--glyphs", "text", default="0123456789", show_default=True, help="The characters, one class each.")
@click.option("--most", type=click.IntRange(1, 1000), default=150, show_default=True, help="Faces, the most different.")
@click.option("--out", type=PATH, default=Path("glyphs.npz"), show_default=True, help="The file, to hand on.")
@FORMAT
def glyphs_command(folders: tuple[Path, ...], out: Path, form: str, **options: Any) -> None:
    """Make a file of glyphs from the fonts below FOLDERS, for the simulator; kept under the SHA-256 that names it."""
    from tqdm import tqdm  # noqa: PLC0415 - for long work alone

    from patevolve.shared.generators import faces  # noqa: PLC0415 - draws fonts: this command alone

    with tqdm(desc="glyphs", unit="font", disable=True if form == "json" else None) as bar:
        data, fonts = faces.build(folders, options["text"], options["most"], bar.update)
    write_atomic(out, data)
    kept = assets.add(out)
    value = {"sha256": kept.stem, "path": str(kept), "out": str(out), "fonts": [str(font) for font in fonts]}
    say(form, value, f"{kept.stem}\n{len(fonts)} faces.")


@assets_group.command(
    "train-vqvae", context_settings=SETTINGS, epilog="Example: patevolve assets train-vqvae scans.npz --epochs 30"
)
@click.argument("images", type=PATH, required=False)
@click.option("--out", type=PATH, default=Path("vqvae.safetensors"), show_default=True, help="The file, to hand on.")
@click.option("--onnx", type=PATH, default=None, help="Write the decoder as ONNX too, from codes to images.")
@click.option("--height", type=click.IntRange(8, 1024), default=None, help="Pixels; an NPZ file keeps its own size.")
@click.option("--width", type=click.IntRange(8, 1024), default=None, help="Pixels, as the height.")
@click.option("--epochs", type=int, default=20, show_default=True, help="Passes over the images.")
@click.option("--codes", type=int, default=128, show_default=True, help="Entries of the codebook.")
@click.option("--adversarial", type=float, default=0.0, show_default=True, help="Weight of a discriminator; 0 = none.")
@click.option("--seed", type=int, default=1, show_default=True, help="Names all randomness.")
@FORMAT
def train_vqvae(images: Path | None, out: Path, onnx: Path | None, form: str, **options: Any) -> None:
    """Train a small VQ-VAE on public IMAGES (a folder or an NPZ file; without: simulated digits) and keep it for plans.

    Needs PyTorch (patevolve[train]); what plans draw from the file needs numpy alone.
    """
    from tqdm import tqdm  # noqa: PLC0415 - for long work alone

    from patevolve.shared import pools  # noqa: PLC0415 - this command alone
    from patevolve.shared.generators.vqvae_train import Settings, train  # noqa: PLC0415 - the same

    target = pools.target(options.pop("height"), options.pop("width"), "stretch")
    settings = Settings(**options)
    public, labels = pools.simulated("0123456789") if images is None else pools.unnamed(images, target)
    with tqdm(total=settings.epochs, desc="train", unit="epoch", disable=True if form == "json" else None) as bar:
        made = train(public, labels, settings, lambda _: bar.update() and None, onnx=onnx is not None)
    write_atomic(out, made.file)
    if onnx is not None and made.onnx is not None:
        write_atomic(onnx, made.onnx)
    kept = assets.add(out)
    value = {"sha256": kept.stem, "path": str(kept), "out": str(out), "error": made.error, "codes": made.used}
    text = f"{kept.stem}\n{made.error:.1f} grey levels of error (root mean square), {made.used} codes used."
    say(form, value, text)


@assets_group.command(
    "pipeline", context_settings=SETTINGS, epilog="Example: patevolve assets pipeline saved/ --out pipeline.tar"
)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=PATH, default=Path("pipeline.tar"), show_default=True, help="The archive, to hand on.")
@FORMAT
def pipeline_command(folder: Path, out: Path, form: str) -> None:
    """Make one file of a text-to-image pipeline's FOLDER (safetensors, JSON, texts) and keep it for plans."""
    from patevolve.shared.generators import diffusion  # noqa: PLC0415 - this command alone

    diffusion.archive(folder, out)
    kept = assets.add(out)
    say(form, {"sha256": kept.stem, "path": str(kept), "out": str(out)}, kept.stem)
