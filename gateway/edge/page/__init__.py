"""The page at the admin root: its files, and what browsers are told and refused on that plane.

The page is static; all it shows it fetches from ``/overview`` and ``/incidents``, so that a
supervisor serves the same page over the numbers of all its workers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from importlib import resources
from types import MappingProxyType
from urllib.parse import urlsplit

from aiohttp import web

FILES = MappingProxyType(
    {
        "/": ("index.html", "text/html"),
        "/icon.svg": ("icon.svg", "image/svg+xml"),
        "/page.css": ("page.css", "text/css"),
        **{
            f"/{name}.js": (f"{name}.js", "text/javascript")
            for name in ("page", "backends", "chart", "dom", "incidents")
        },
    }
)
# Engines name models and versions, and the page shows them: nothing they say may run or be fetched.
HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application() -> web.Application:
    """An admin plane with the page and its guards; other routes are to be added."""
    app = web.Application(middlewares=[_from_this_site])
    app.on_response_prepare.append(_with_headers)
    app.add_routes(_routes())
    return app


def _routes() -> Iterator[web.RouteDef]:
    folder = resources.files(__package__)
    for path, (name, kind) in FILES.items():
        yield web.get(path, _file(folder.joinpath(name).read_bytes(), kind))


def _file(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return serve


async def _with_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


@web.middleware
async def _from_this_site(request: web.Request, handler: Answer) -> web.StreamResponse:
    """Another site's page must not make its reader's browser change anything here."""
    if request.method not in ("GET", "HEAD") and _from_elsewhere(request):
        return web.json_response({"error": "not from a page of another site"}, status=403)
    return await handler(request)


def _from_elsewhere(request: web.Request) -> bool:
    """Whether a browser says that another site's page asks; what is no browser says nothing.

    Browsers send ``Sec-Fetch-Site`` to HTTPS and localhost only, ``Origin`` with every POST.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc != request.host
