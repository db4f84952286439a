"""The command ``patevolve server dashboard``."""

from __future__ import annotations

from pathlib import Path

import click

from patevolve.server.handover import FILE, RUN
from patevolve.shared.cli import EPILOG, FORMAT, say
from patevolve.shared.errors import InputError

PATH = click.Path(path_type=Path)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Example: patevolve server dashboard coordinator/\n\n{EPILOG}",
)
@click.argument("run", type=PATH)
@click.option("--bind", default="127.0.0.1:8780", show_default=True, help="Where to listen; port 0 takes a free one.")
@click.option("--token-file", type=PATH, default=None, help="Ask for the token in this file; made if it is not there.")
@FORMAT
def dashboard(run: Path, bind: str, token_file: Path | None, form: str) -> None:
    """Serve a live, read-only page over a run folder or a coordinator's folder until stopped.

    Sites, questions, cost and generations as the coordinator sees them: noised or masked values alone. An address
    other than loopback needs a token, which travels in clear: put a reverse proxy with TLS before it.
    """
    from patevolve.server.dashboard import access, app  # noqa: PLC0415 - an extra: this command alone

    host, colon, number = bind.rpartition(":")
    host = host.strip("[]")
    if not (colon and host and number.isdigit() and int(number) < 65536):
        raise InputError(f"--bind {bind!r} found; expected host:port, such as 127.0.0.1:8780.")
    folder = run / RUN if (run / FILE).exists() else run
    if not folder.is_dir() and folder == run:
        raise InputError(f"{run} is no folder; expected a run's folder or a coordinator's.")
    token = access.token_of(token_file, host)
    page = app.application(folder, token)
    with app.listening(host, int(number)) as bound:
        url = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}/"
        told = "" if token is None else f" Any name, and the token in {token_file} as password."
        say(form, {"url": url, "token": token is not None}, f"Dashboard: {url}{told} Stop with Ctrl-C.")
        app.serve(page, bound)
