"""The page of `dml-jax serve` with an index: a photograph, its class, and the nearest enrolled images."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from dml_jax.analysis import html


def routes() -> list[Route]:
    """The route of the page."""
    return [Route("/", _page)]


async def _page(request: Request) -> Response:
    sources = "blob:; connect-src 'self'"
    body = html.resource("classify.html")
    scripts = ("photograph.js", "classify.js")
    return HTMLResponse(html.document("Classify", body, styles=("explore.css",), scripts=scripts, sources=sources))
