"""The Flower ClientApp of a site: hands each message's bytes to the station and sends its bytes back.

The SuperNode's own configuration, which the site writes, names the site's folder (``home``) and its file of records
(``data``). Nothing that the coordinator sends is used to find either. What is imported here runs only installed code.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from patevolve.shared.envelopes import Action, refusal

if TYPE_CHECKING:
    from patevolve.client.station import Station
    from patevolve.shared.randomness import NoiseSource

RECORD, FIELD = "patevolve", "data"
JOURNAL = "site.log"
OF_ALL = "data-of-all-sites"  # node configuration of a simulation: one file for every site
UNSAFE_NOISE = "unsafe-recorded-noise"  # node configuration, for tests that compare bytes; the environment must agree
log = logging.getLogger(__name__)

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say who the site is."""
    return _reply("hello", message, context)


@app.query("setup")
def setup(message: Message, context: Context) -> Message:
    """Exchange keys for the secure sum."""
    return _reply("setup", message, context)


@app.query("ask")
def ask(message: Message, context: Context) -> Message:
    """Answer a generation's questions."""
    return _reply("ask", message, context)


@app.query("unmask")
def unmask(message: Message, context: Context) -> Message:
    """Give the shares that take the masks off the sum."""
    return _reply("unmask", message, context)


@app.query("evolve")
def evolve(message: Message, context: Context) -> Message:
    """Evolve an island."""
    return _reply("evolve", message, context)


def _reply(action: Action, message: Message, context: Context) -> Message:
    try:
        data = _station(context).handle(action, _bytes(message))
    except Exception:
        log.exception("the site could not be opened")
        data = refusal(action, "", "error")
    return Message(RecordDict({RECORD: ConfigRecord({FIELD: data})}), reply_to=message)


def _bytes(message: Message) -> bytes:
    record = message.content.config_records.get(RECORD)
    data = None if record is None else record.get(FIELD)
    return data if isinstance(data, bytes) else b""


def _station(context: Context) -> Station:
    config = context.node_config
    return open_station(
        str(config["home"]), str(config["data"]), str(config.get(UNSAFE_NOISE, "")), str(config.get(OF_ALL, ""))
    )


@functools.lru_cache(maxsize=8)
def open_station(home: str, data: str, noise: str = "", of_all: str = "") -> Station:
    """Return the site of a folder and a data file; kept while the process lives, with its log in the site's folder."""
    from patevolve.client.simulate import system_noise  # noqa: PLC0415 - a message that is refused loads no NumPy
    from patevolve.client.station import Station  # noqa: PLC0415 - the same

    if noise:
        _recorded(home, "")  # refuses unless the environment agrees, before anything is charged
    handler = logging.FileHandler(Path(home) / JOURNAL, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    journal = logging.getLogger("patevolve")
    journal.addHandler(handler)
    journal.setLevel(min(journal.level or logging.INFO, logging.INFO))
    source = _recorded if noise else system_noise
    return Station(home=Path(home), data=Path(data), noise=source, unsafe=bool(noise), of_all=bool(of_all))


def _recorded(site: str, question_sha256: str) -> NoiseSource:
    from patevolve.shared.randomness import RecordedNoise  # noqa: PLC0415 - tests alone

    log.warning("UNSAFE: %s answers with recorded noise, which protects nobody (process %d)", site, os.getpid())
    return RecordedNoise(f"{site}\x1f{question_sha256}")
