"""The page of a catalogue over HTTP, whose buttons append to a file of changes."""

import threading
from collections.abc import Mapping
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dml_jax.analysis import catalogue_page, changes, html
from dml_jax.analysis.catalogue import TABS, Button, Catalogue
from dml_jax.errors import UserError, printable
from dml_jax.serving.http_service import refuse_other_sites
from dml_jax.serving.page import HEADERS

MEDIUM, LARGE = 256, 1000  # pixels of the longer side of an image in a list and of an enlarged one


class CatalogueService:
    """Shows a catalogue with the changes of a file, and appends a row there for each click."""

    def __init__(self, catalogue: Catalogue, title: str, file: Path):
        self._catalogue, self._title, self._file = catalogue, title, file
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        """The page, its buttons, and the images, by number only."""
        image = Route("/images/{number:int}", self._image)
        return [Route("/", self._get), Route("/", self._post, methods=["POST"]), image]

    def problem(self, text: str, status: int, headers: Mapping[str, str] | None) -> Response:
        """The page that says why a click did nothing."""
        body = f'<h1>{html.text(text)}</h1><p><a href="./">back</a></p>'
        return HTMLResponse(
            html.document(self._title, body), status, {**HEADERS, **(headers or {})}
        )

    def _get(self, request: Request) -> Response:
        query = request.query_params
        tab, page = _place(query)
        catalogue = self._catalogue
        if "image" in query:
            i = self._position(query["image"])
            text = catalogue_page.enlarged(catalogue, self._title, i, tab, page)
        else:
            text = catalogue_page.served(catalogue, self._title, tab, page)
        return HTMLResponse(text, headers=HEADERS)

    async def _post(self, request: Request) -> Response:
        refuse_other_sites(request)
        async with request.form(max_files=0, max_fields=8) as form:
            values = {name: value for name, value in form.items() if isinstance(value, str)}
        tab, page = _place(values)
        await run_in_threadpool(self._click, values)
        return RedirectResponse(f"./?tab={tab}&page={page}", 303, HEADERS)

    def _click(self, values: dict[str, str]) -> None:
        change, numbers, to = [*values.get("key", "").split(" ", 2), "", ""][:3]
        with self._lock:
            catalogue = self._catalogue
            if change == "undo":
                click = _number(numbers)
                if click not in {each.click for each in changes.standing(catalogue.log)}:
                    raise HTTPException(400, f"click {click} has been undone; reload the page")
                rows = catalogue.undone(click)
            else:
                to = to or values.get("to", "") if change in ("move", "merge") else to
                allowed = {"keep": {name: name for name in TABS}, "delete": {"": ""}}
                folders = catalogue.folders
                classes = {printable(name): name for name in catalogue.classes if folders}
                target = allowed.get(change, classes if change in ("move", "merge") else {})
                if to not in target:
                    raise HTTPException(400, f"{change} {to}: cannot be done; reload the page")
                images = [self._position(number) for number in numbers.split(",")]
                rows = catalogue.changed(Button("", change, images, target[to]))  # type: ignore[arg-type]
            changes.append(self._file, rows)
            self._catalogue = catalogue.after(rows)

    def _position(self, number: str) -> int:
        if (i := _number(number)) >= len(self._catalogue.labels):
            raise HTTPException(404, "there is no such image")
        return i

    def _image(self, request: Request) -> Response:
        i = self._position(str(request.path_params["number"]))
        try:
            pixels = self._catalogue.images.read(i)
        except (OSError, UserError):
            raise HTTPException(404, "the image is not there or damaged") from None
        side = LARGE if "large" in request.query_params else MEDIUM
        return Response(html.jpeg(pixels, side, 85), media_type="image/jpeg", headers=HEADERS)


def _place(values: Mapping[str, str]) -> tuple[str, int]:
    """The tab and its page in a request."""
    if (tab := values.get("tab", TABS[0])) not in (*TABS, "changes"):
        raise HTTPException(404, f"there is no such tab; give one of {', '.join(TABS)}")
    return tab, _number(values.get("page", "0"))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise HTTPException(400, f"{text[:20]!r}: must be a number")
    return int(text)
