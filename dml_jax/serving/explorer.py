"""The explorer's routes: lists of a run's images, and the nearest neighbours of each.

Clients refer to images by index only, never by path.
"""

import io
from collections.abc import Callable
from string import Template
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dml_jax.analysis import html
from dml_jax.data.split import Split
from dml_jax.errors import DataError, printable
from dml_jax.evaluation import neighbors
from dml_jax.serving.batched_answers import Answer

SHOWN = 24  # neighbours
PAGE = 60  # images per page of a list
# Another run may be served at the same address later, and other sites must not show these images.
IMAGE_HEADERS = {"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin"}
SIDES = {"small": 128, "large": 512}  # pixels of the longer side


class Part(NamedTuple):
    """A set of images: the queries or the gallery."""

    split: Split
    embeddings: np.ndarray  # float32 [N, D], rows of unit length


class Explorer:
    """Nearest neighbours of a split, and of uploaded photographs, in a gallery or else among the queries themselves."""

    def __init__(self, title: str, queries: Part, gallery: Part | None = None):
        self._title = title
        self._parts = {"query": queries, "gallery": gallery or queries}
        self._same_set = gallery is None
        searched = self._parts["gallery"]
        _, first = neighbors.search(queries.embeddings, searched.embeddings, 1, exclude_self=self._same_set)
        self._wrong = searched.split.labels[np.asarray(first)[:, 0]] != queries.split.labels

    def routes(self) -> list[Route]:
        """Routes of the page, lists of images, neighbours, and images."""
        return [
            Route("/", self._page),
            Route("/list", self._json_handler(self._list)),
            Route("/neighbors/{index}", self._json_handler(self._neighbors)),
            Route("/images/{part}/{size}/{index}", self._image),
        ]

    def complete(self, answer: Answer) -> Answer:
        """The neighbours of an uploaded photograph, from its embedding."""
        row = np.asarray(answer["embedding"], np.float32)
        return {"query": None, "neighbors": self._nearest(row, None)}

    def _json_handler(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def handler(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(answer, request))

        return handler

    async def _page(self, request: Request) -> Response:
        queries = self._parts["query"].split
        counts = np.bincount(queries.labels, minlength=len(queries.classes))
        options = "".join(
            f'<option value="{i}">{html.text(name)} ({count:,})</option>'
            for i, (name, count) in enumerate(zip(queries.classes, counts.tolist(), strict=True))
            if count
        )
        body = Template(html.resource("explore.html")).substitute(title=html.text(self._title), options=options)
        sources = "'self' blob:; connect-src 'self'"
        title, scripts = f"{self._title}: neighbours", ("photograph.js", "explore.js")
        return HTMLResponse(html.document(title, body, styles=("explore.css",), scripts=scripts, sources=sources))

    def _list(self, request: Request) -> Answer:
        """PAGE images from `start`, of one class or all, or only those whose nearest image is of another class."""
        start, label = (_integer(request, name, default) for name, default in (("start", 0), ("class", -1)))
        chosen = np.ones(len(self._wrong), bool) if label < 0 else self._parts["query"].split.labels == label
        if request.query_params.get("wrong") == "1":
            chosen = chosen & self._wrong
        rows = np.flatnonzero(chosen)
        images = [self._entry("query", int(i)) for i in rows[max(start, 0) :][:PAGE]]
        return {"total": len(rows), "page": PAGE, "images": images}

    def _neighbors(self, request: Request) -> Answer:
        index = self._parse_index("query", request)
        return {
            "query": self._entry("query", index),
            "neighbors": self._nearest(self._parts["query"].embeddings[index], index),
        }

    def _nearest(self, row: np.ndarray, query: int | None) -> list[Answer]:
        """The images nearest to an embedding [D]; a listed image is excluded, and compared with their classes."""
        searched = self._parts["gallery"]
        cosines = searched.embeddings @ row
        if query is not None and self._same_set:
            cosines[query] = -np.inf
        count = min(SHOWN, len(cosines) - (query is not None and self._same_set))
        found = []
        for index in np.argsort(-cosines, kind="stable")[:count].tolist():
            entry = self._entry("gallery", index) | {"cosine": float(cosines[index]), "link": self._same_set}
            if query is not None:
                entry["same"] = bool(searched.split.labels[index] == self._parts["query"].split.labels[query])
            found.append(entry)
        return found

    def _entry(self, part: str, index: int) -> Answer:
        split = self._parts[part].split
        name, label = printable(split.ids[index]), printable(split.classes[split.labels[index]])
        return {"part": part, "index": index, "name": name, "class": label}

    def _parse_index(self, part: str, request: Request) -> int:
        text, count = request.path_params["index"], len(self._parts[part].split.labels)
        if not text.isdecimal() or len(text) > 9 or int(text) >= count:
            raise HTTPException(404, f"image {text[:20]} does not exist; give a number from 0 to {count - 1}")
        return int(text)

    async def _image(self, request: Request) -> Response:
        part, size = request.path_params["part"], request.path_params["size"]
        if part not in self._parts or size not in SIDES:
            raise HTTPException(404, "unknown kind of image; use query or gallery, and small or large")
        index = self._parse_index(part, request)
        try:
            content = await run_in_threadpool(self._jpeg, part, index, SIDES[size])
        except DataError as error:  # the data may have moved since
            raise HTTPException(404, printable(str(error))) from None
        return Response(content, media_type="image/jpeg", headers=IMAGE_HEADERS)

    def _jpeg(self, part: str, index: int, side: int) -> bytes:
        picture = Image.fromarray(self._parts[part].split.read(index, None))
        picture.thumbnail((side, side))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=85)
        return file.getvalue()


def _integer(request: Request, name: str, default: int) -> int:
    """An integer from the query string."""
    text = request.query_params.get(name, str(default))
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise HTTPException(400, f"{name} must be a whole number")
    return int(text)
