"""The page as a web application: the whole page once, then only what changes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import hashlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patevolve.server.dashboard.access import Door
from patevolve.server.dashboard.snapshot import snapshot
from patevolve.shared.errors import InputError
from patevolve.shared.report import charts, words
from patevolve.shared.report.charts import NARROW, WIDE, Frame

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

FOLDER = resources.files(__package__)
TITLES = {"match": "Distance from the released prototypes", "spread": "Spread of the population"}


@dataclass(kw_only=True, eq=False)
class _Looker:
    """Looks at the folder at most once a second, however many browsers ask."""

    path: Path
    _last: dict[str, Any] | None = None
    _when: float = 0.0

    def look(self) -> dict[str, Any]:
        if self._last is None or time.monotonic() - self._when >= 1.0:
            self._last, self._when = snapshot(self.path, dt.datetime.now(dt.UTC)), time.monotonic()
        return self._last


def page_of(found: Mapping[str, Any], template: str) -> str:
    """Return ``page.html`` or ``part.html`` for a snapshot. Everything in it is shown as text."""
    shown = words.clean(found)
    return str(
        _templates().get_template(template).render(run=shown, chart=_chart(json.dumps(shown.get("generations"))))
    )


@functools.lru_cache(maxsize=1)
def _templates() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415 - an extra: this page alone

    def load(name: str) -> str:
        return FOLDER.joinpath(name).read_text(encoding="utf-8")

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, loader=FunctionLoader(load)
    )
    environment.filters |= {name: getattr(words, name) for name in ("epsilon", "power", "metric", "count", "moment")}
    return environment


@functools.lru_cache(maxsize=4)
def _chart(generations: str) -> dict[str, Any] | None:
    """Return the drawing of the generations, for a desk and for a phone; None before there are two."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    rows = json.loads(generations) or []
    series = {title: [words.number_of(row[key]) for row in rows] for key, title in TITLES.items()}
    series = {title: values for title, values in series.items() if any(v is not None for v in values)}
    if len(rows) < 2 or not series:
        return None
    asked = [place for place, row in enumerate(rows) if row["asked"]]
    spoken = "; ".join(f"{title}: from {words.metric(v[0])} to {words.metric(v[-1])}" for title, v in series.items())
    frames = {size: Frame(name=f"evolution-{size}", title="Generations", description=spoken, width=width)
              for size, width in (("wide", WIDE), ("narrow", NARROW))}  # fmt: skip
    # The SVG writer escaped every text.
    return {size: Markup(charts.generations(series, asked, frame)) for size, frame in frames.items()}  # noqa: S704


def application(path: Path, token: str | None) -> ASGIApp:
    """Return the application that shows the run in ``path``. Raises InputError without the extra ``dashboard``."""
    try:
        from starlette.applications import Starlette  # noqa: PLC0415 - an extra: this page alone
        from starlette.responses import Response  # noqa: PLC0415 - the same
        from starlette.routing import Route  # noqa: PLC0415 - the same
    except ImportError as reason:
        raise _lacking(reason) from reason
    looker, turn = _Looker(path=path), asyncio.Lock()

    async def look() -> dict[str, Any]:
        async with turn:
            return await asyncio.to_thread(looker.look)

    async def shown(request: Request, template: str) -> Response:
        text = await asyncio.to_thread(page_of, await look(), template)
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(text, media_type="text/html", headers={"etag": tag})

    async def page(request: Request) -> Response:
        return await shown(request, "page.html")

    async def part(request: Request) -> Response:
        return await shown(request, "part.html")

    async def machine(_: Request) -> Response:
        text = json.dumps(await look(), ensure_ascii=False, allow_nan=False)
        return Response(text, media_type="application/json")

    async def style(_: Request) -> Response:
        return Response(FOLDER.joinpath("page.css").read_bytes(), media_type="text/css")

    async def script(_: Request) -> Response:
        return Response(FOLDER.joinpath("page.js").read_bytes(), media_type="text/javascript")

    views = {"/": page, "/part": part, "/snapshot.json": machine, "/page.css": style, "/page.js": script}
    return Door(Starlette(routes=[Route(at, view) for at, view in views.items()]), token)


def _lacking(reason: ImportError) -> InputError:
    return InputError(f"the dashboard needs {reason.name}; install it: pip install 'patevolve[dashboard]'")


def listening(host: str, port: int) -> socket.socket:
    """Return a socket bound to ``host``; port 0 takes a free one. Raises InputError if it is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen()
    except OSError as reason:
        bound.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({reason.strerror or reason}); give another --bind."
        ) from reason
    return bound


def serve(app: ASGIApp, bound: socket.socket) -> None:
    """Serve until stopped by a signal. Raises InputError without the extra ``dashboard``."""
    try:
        import uvicorn  # noqa: PLC0415 - an extra: this page alone
    except ImportError as reason:
        raise _lacking(reason) from reason
    config = uvicorn.Config(app, access_log=False, log_level="warning", server_header=False, lifespan="off", ws="none")
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended well, and says so by the signal that ended it
        uvicorn.Server(config).run(sockets=[bound])
