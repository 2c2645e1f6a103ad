"""The explorer's routes: lists of a run's images, and the nearest neighbours of each.

Clients refer to images by index only, never by path.
"""

import io
from collections.abc import Sequence
from string import Template
from typing import NamedTuple

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dml_jax.analysis import html
from dml_jax.data.split import Split, with_gallery
from dml_jax.errors import DataError, counted, printable
from dml_jax.evaluation import neighbors
from dml_jax.inference.model import Model
from dml_jax.serving.http_service import Answer, Answers

SHOWN = 24  # neighbours
PAGE = 60  # images per page of a list
# Another run may be served at the same address later, and other sites must not show these images.
IMAGE_HEADERS = {"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin"}
SIDES = {"small": 128, "large": 512}  # pixels of the longer side


class Part(NamedTuple):
    """A set of images: the queries or the gallery."""

    split: Split
    embeddings: np.ndarray  # float32 [N, D], rows of unit length


def explorer_of(
    model: Model,
    splits: dict[str, Split],
    name: str,
    title: str,
    classify: Answers | None = None,
) -> "Explorer":
    """An explorer of a split, embedded by a model, with its gallery if there is one; `classify`
    adds the answers of enrolled classes."""
    parts = []
    for split in with_gallery(splits, name).values():
        print(f"embedding {counted(len(split.labels), 'image')}", flush=True)
        parts.append(Part(split, model.embed_split(split)))
    return Explorer(title, *parts, classify=classify)


class Explorer:
    """Nearest neighbours, of a split and of uploads, in a gallery or among the queries."""

    def __init__(
        self,
        title: str,
        queries: Part,
        gallery: Part | None = None,
        *,
        classify: Answers | None = None,
    ):
        self._title, self._classify = title, classify
        self._parts = {"query": queries, "gallery": gallery or queries}
        self._same_set = gallery is None
        searched, rows = self._parts["gallery"], queries.embeddings
        _, first = neighbors.search(rows, searched.embeddings, 1, exclude_self=self._same_set)
        self._wrong = searched.split.labels[np.asarray(first)[:, 0]] != queries.split.labels

    def routes(self) -> list[Route]:
        """The routes, whose handlers Starlette calls in threads."""
        return [
            Route("/", self._page),
            Route("/list", self._list),
            Route("/neighbors/{index:int}", self._neighbors),
            Route("/images/{part}/{size}/{index:int}", self._image),
        ]

    def answers(self, rows: np.ndarray) -> list[Answer | DataError]:
        """The neighbours of uploaded photographs, from their embeddings float32 [B, D], and the
        answers of enrolled classes, if there are any."""
        return [
            answer
            if isinstance(answer, DataError)
            else {**answer, "neighbors": self._nearest(row, None)}
            for row, answer in zip(rows, self._classes_of(rows), strict=True)
        ]

    def _classes_of(self, rows: np.ndarray) -> Sequence[Answer | DataError]:
        return self._classify(rows) if self._classify else [{}] * len(rows)

    def _page(self, request: Request) -> Response:
        queries = self._parts["query"].split
        options = "".join(
            f'<option value="{label}">{html.text(queries.classes[label])} ({count:,})</option>'
            for label, count in zip(*np.unique(queries.labels, return_counts=True), strict=True)
        )
        template = Template(html.resource("explore.html"))
        page = html.document(
            f"{self._title}: neighbours",
            template.substitute(title=html.text(self._title), options=options),
            styles=("explore.css",),
            scripts=("explore.js",),
            sources="'self' blob:; connect-src 'self'",
        )
        return HTMLResponse(page)

    def _list(self, request: Request) -> Response:
        """PAGE images from `start`; of one class, or with a wrong nearest image, if asked."""
        start, label = _integer(request, "start", 0), _integer(request, "class", -1)
        chosen = np.full(len(self._wrong), label < 0) | (self._parts["query"].split.labels == label)
        if request.query_params.get("wrong") == "1":
            chosen &= self._wrong
        rows = np.flatnonzero(chosen)
        images = [self._entry("query", int(i)) for i in rows[max(start, 0) :][:PAGE]]
        return JSONResponse({"total": len(rows), "images": images})

    def _neighbors(self, request: Request) -> Response:
        index = self._parse_index("query", request)
        row = self._parts["query"].embeddings[index]
        (answer,) = self._classes_of(row[None])
        if isinstance(answer, DataError):
            raise answer
        found = {"query": self._entry("query", index), "neighbors": self._nearest(row, index)}
        return JSONResponse({**answer, **found})

    def _nearest(self, row: np.ndarray, query: int | None) -> list[Answer]:
        """The images nearest to an embedding [D]; for the image of index `query`, without itself
        and with a comparison of the classes."""
        searched = self._parts["gallery"]
        cosines = np.clip(searched.embeddings @ row, -1, 1)
        exclude = query is not None and self._same_set
        if exclude:
            cosines[query] = -np.inf
        count = min(SHOWN, len(cosines) - exclude)
        found = []
        for index in np.argsort(-cosines, kind="stable")[:count].tolist():
            similarity = {"cosine": float(cosines[index]), "link": self._same_set}
            entry = self._entry("gallery", index) | similarity
            if query is not None:
                label = self._parts["query"].split.labels[query]
                entry["same"] = bool(searched.split.labels[index] == label)
            found.append(entry)
        return found

    def _entry(self, part: str, index: int) -> Answer:
        split = self._parts[part].split
        name, label = printable(split.ids[index]), printable(split.classes[split.labels[index]])
        return {"part": part, "index": index, "name": name, "class": label}

    def _parse_index(self, part: str, request: Request) -> int:
        index, count = request.path_params["index"], len(self._parts[part].split.labels)
        if index >= count:
            raise HTTPException(404, f"there is no such image; give a number from 0 to {count - 1}")
        return int(index)

    def _image(self, request: Request) -> Response:
        part, side = request.path_params["part"], SIDES.get(request.path_params["size"])
        if part not in self._parts or side is None:
            raise HTTPException(404, "there are no such images")
        index = self._parse_index(part, request)
        picture = Image.fromarray(self._parts[part].split.read(index, None))
        picture.thumbnail((side, side))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=85)
        return Response(file.getvalue(), media_type="image/jpeg", headers=IMAGE_HEADERS)


def _integer(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise HTTPException(400, f"{name} must be a whole number")
    return int(text)
