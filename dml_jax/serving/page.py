"""What the server shows in a browser: the answer to a photograph or to an enrolled image."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from dml_jax.analysis import html
from dml_jax.data import decode
from dml_jax.errors import DataError, counted, printable
from dml_jax.inference.index import Index
from dml_jax.serving.enrolled_classes import Answer, EnrolledClasses

NEAREST, LISTED = 24, 120  # enrolled images: the nearest ones, and those to choose from
# Another index may be served at the same address later; other sites must not show its images.
HEADERS = {"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin"}
FORM = """<h1>{verb} a photograph</h1><p class="lead">model {title}</p><div class="side">
<form method="post" enctype="multipart/form-data" action="."><label>Photograph
<input type="file" name="file" accept="image/*" required></label> <button>{verb}</button></form>
{classes}</div>"""
CLASSES = """<form action="."><label>Enrolled class <select name="class" style="max-width: 14rem">
<option value="">all</option>{options}</select></label> <button>Show</button></form>"""


class Page:
    """The page at `/` of a model; clients name enrolled images by number only."""

    def __init__(self, title: str, enrolled: EnrolledClasses | None):
        self._title, self._enrolled = title, enrolled

    def routes(self) -> list[Route]:
        """The routes, whose handlers Starlette calls in threads."""
        page = Route("/", self._get)
        if not self._enrolled:
            return [page]
        statistics = Route("/statistics", self._enrolled.statistics)
        return [page, Route("/images/{number}", self._image), statistics]

    def _get(self, request: Request) -> Response:
        if not self._enrolled:
            return self._document("<p>Without an index (--index), answers are embeddings.</p>")
        index, query = self._enrolled.index, request.query_params
        if "image" in query:
            i = _number(query["image"], index)
            row = index.embeddings[i]
            (answer,) = self._enrolled(row[None], counted=False)
            return self.answer(None, row, answer, i)
        positions = np.unique(index.labels, return_index=True)[1]  # an image of each class
        if query.get("class"):
            names = np.array(list(map(printable, index.classes)))
            positions = np.flatnonzero((names == query["class"])[index.labels])
        listed = positions[:LISTED].tolist()
        tiles = "".join(_tile(index, i) for i in listed) or "none of this class"
        size = f"{counted(len(index.labels), 'image')} of {counted(len(index.classes), 'class')}"
        strip = f'<h2>Enrolled: {size}</h2><div class="strip">{tiles}</div>'
        return self._document(strip)

    def answer(self, file: bytes | None, row: np.ndarray, answer: Answer, i: int = -1) -> Response:
        """The answer to a file, or to enrolled image `i`, of embedding [D] `row`."""
        source = f"images/{i}"
        if file is not None:
            source = html.embedded(_thumbnail(file))
        query = f'<img src="{source}" alt="query">'
        if not self._enrolled:
            numbers = ", ".join(f"{number:.4f}" for number in row)
            return self._document(f"<h2>Embedding</h2>{query}<p>[{numbers}]</p>")
        index = self._enrolled.index
        pairs = [(each["class"], each["probability"]) for each in answer["classes"]]
        table = html.listing(("class", "probability"), pairs, "of probabilities")
        if file is None:
            table += "<p>The classifier was fitted on this image: the probability is too high.</p>"
        cosines = index.embeddings @ row
        nearest = [k for k in np.argsort(-cosines, kind="stable").tolist() if k != i][:NEAREST]
        tiles = "".join(_tile(index, k, f"{cosines[k]:.3f}") for k in nearest)
        return self._document(
            f"<h2>Answer: {html.text(answer['class'])}</h2>"
            f'<div class="side"><div>{query}</div><div>{table}</div></div>'
            f'<h2>Nearest enrolled images, by cosine</h2><div class="strip">{tiles}</div>'
        )

    def problem(self, text: str, status: int, headers: Mapping[str, str] | None) -> Response:
        """The page with what was wrong with the photograph, and nothing of an earlier one."""
        body = f'<h2 role="alert">No answer</h2><p>{html.text(text)}</p>'
        return self._document(body, status, headers)

    def _document(
        self, body: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        names = self._enrolled.index.classes if self._enrolled else []
        options = "".join(f"<option>{html.text(name)}</option>" for name in names)
        classes = CLASSES.format(options=options) if names else ""
        verb = "Classify" if names else "Embed"
        form = FORM.format(title=html.text(self._title), verb=verb, classes=classes)
        page = html.document(self._title, form + body, "data: 'self'")
        return HTMLResponse(page, status, {**HEADERS, **(headers or {})})

    def _image(self, request: Request) -> Response:
        assert self._enrolled
        index = self._enrolled.index
        file = Path(index.images[_number(request.path_params["number"], index)])
        try:
            return Response(_thumbnail(file.read_bytes()), media_type="image/jpeg", headers=HEADERS)
        except (OSError, DataError):
            raise HTTPException(404, "the enrolled image is missing or damaged") from None


def _number(text: str, index: Index) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= len(index.images):
        raise HTTPException(404, f"there is no such image; give 0 to {len(index.images) - 1}")
    return int(text)


def _tile(index: Index, i: int, note: str = "") -> str:
    name, label = Path(index.images[i]).name, index.classes[index.labels[i]]
    return html.tile(f"images/{i}", name, [note, html.text(label)], link=f"?image={i}")


def _thumbnail(file: bytes) -> bytes:
    return html.jpeg(decode.rgb(file), 320, quality=85)
