"""A Hugging Face hub on this machine, for its real client, which `conftest.py` has told its address.

It answers the requests of huggingface_hub 2.4 as https://huggingface.co does: files in git have
their git hash as ETag, large files are elsewhere, under their SHA-256, and a commit is a list of
JSON lines.
"""

import base64
import hashlib
import http.server
import json
import os
import re
import shutil
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

ENDPOINT = os.environ["HF_ENDPOINT"]
CACHE = Path(os.environ["HF_HOME"])
PORT = urlsplit(ENDPOINT).port or 0
STORE = f"http://localhost:{PORT}"  # another origin than the hub itself, as in reality
LARGE = (".safetensors", ".bin", ".pth", ".onnx", ".parquet")


class Fault(NamedTuple):
    """How the hub fails.

    Attributes:
      status: of the answer.
      cut: bytes of the content after which the connection is closed.
      page: a web page instead, as of a hotel or a proxy.
    """

    status: int = 200
    cut: int | None = None
    page: bool = False


class Hub:
    """The state of the hub.

    Attributes:
      repositories: name -> path -> content.
      gated, private: names of repositories that need a token, which nobody has.
      reader: whether the caller may only read, although he has a token.
      faults: patterns of "METHOD /path", and how these requests fail.
      asked: "METHOD /path" of each request.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.reader = False
        self.stored: dict[str, bytes] = {}
        self.faults: list[tuple[str, Fault]] = []
        self.asked: list[str] = []

    def fail(self, pattern: str, fault: Fault) -> None:
        self.faults.append((pattern, fault))

    def requests(self, pattern: str) -> list[str]:
        """The requests that match."""
        return [line for line in self.asked if re.search(pattern, line)]


def commit_of(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr([(name, sha256(files[name])) for name in sorted(files)]).encode()).hexdigest()


@lru_cache
def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@lru_cache
def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    allow_reuse_port = True
    daemon_threads = True


@contextmanager
def running() -> Iterator[Hub]:
    """A hub without repositories, until the context ends; the client's cache is empty then, and before."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    shutil.rmtree(CACHE, ignore_errors=True)
    with Server(("127.0.0.1", PORT), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
    shutil.rmtree(CACHE, ignore_errors=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    state: Hub

    def setup(self) -> None:
        super().setup()
        self.fault = Fault()

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, content: bytes = b"", status: int = 200, **headers: str) -> None:
        """An answer, as the fault wants it."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: self.fault.cut])

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.reply(json.dumps(value).encode(), status, Content_Type="application/json", **headers)

    def refuse(self, status: int, message: str, code: str = "", **headers: str) -> None:
        extra = {"X_Error_Code": code} if code else {}
        self.json({"error": message}, status, X_Error_Message=message, X_Request_Id="Root=1-2-3", **extra, **headers)

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        line = f"{self.command} {path}"
        self.state.asked.append(line)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.fault = next((fault for pattern, fault in self.state.faults if re.search(pattern, line)), Fault())
        if self.fault.page:
            self.reply(b"<html>Welcome to our hotel</html>", Content_Type="text/html")
        elif self.fault.status != 200:
            self.refuse(self.fault.status, HTTPStatus(self.fault.status).phrase)
        else:
            self.route(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def route(self, path: str, body: bytes) -> None:
        state = self.state
        if self.command in ("POST", "PUT") and not path.startswith("/store/") and not self.headers["Authorization"]:
            return self.refuse(401, "Invalid username or password.")
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            if state.reader:
                return self.refuse(403, f'You don\'t have the rights to create a model under the namespace "{name}"')
            if name in state.repositories:
                return self.json({"error": "You already created this model repo", "url": f"{ENDPOINT}/{name}"}, 409)
            state.repositories[name] = {".gitattributes": b"*.safetensors filter=lfs\n"}
            if wanted.get("visibility") == "private":
                state.private.add(name)
            return self.json({"url": f"{ENDPOINT}/{name}"})
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if match := re.fullmatch(r"/store/(\w{64})", path):
            return self.store(match[1], body)
        if match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            upload = {"upload": {"href": f"{STORE}/store/%s"}}
            for entry in objects:
                if entry["oid"] not in state.stored:
                    entry["actions"] = json.loads(json.dumps(upload) % entry["oid"])
            return self.json({"transfer": "basic", "objects": objects})
        of_repository = r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree|preupload|commit)/([^/]+))?"
        match = re.fullmatch(of_repository + r"|/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not match:
            return self.refuse(404, "Sorry, we can't find the page you are looking for.")
        name, revision = match[1] or match[4], match[3] or match[5] or "main"
        if name not in state.repositories or (name in state.private and not self.headers["Authorization"]):
            return self.refuse(401, "Invalid username or password.", "RepoNotFound")
        files = state.repositories[name]
        commit = commit_of(files)
        if revision not in ("main", "v1", commit):
            return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        if match[4]:
            return self.file(name, files, commit, match[6])
        if match[2] == "tree":
            return self.json([entry_of(path, content) for path, content in files.items()])
        if match[2] == "preupload":
            wanted = json.loads(body)["files"]
            return self.json({"files": [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(LARGE) else "regular",
                 "shouldIgnore": False} for f in wanted
            ]})  # fmt: skip
        if match[2] == "commit":
            return self.commit(name, files, body)
        return self.json({"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]})

    def file(self, name: str, files: dict[str, bytes], commit: str, path: str) -> None:
        if name in self.state.gated:
            return self.refuse(401, f"Access to model {name} is restricted. Please log in.", "GatedRepo")
        if path not in files:
            return self.refuse(404, "Entry not found", "EntryNotFound", X_Repo_Commit=commit)
        content = files[path]
        if not path.endswith(LARGE):
            return self.reply(content, ETag=f'"{git_hash(content)}"', X_Repo_Commit=commit)
        digest = sha256(content)
        self.state.stored[digest] = content
        return self.reply(
            status=302,
            Location=f"{STORE}/store/{digest}",
            X_Repo_Commit=commit,
            X_Linked_ETag=f'"{digest}"',
            X_Linked_Size=str(len(content)),
            X_Xet_Hash=digest[::-1],
            X_Xet_Refresh_Route=f"{ENDPOINT}/api/models/{name}/xet-read-token/{commit}",
        )

    def store(self, digest: str, body: bytes) -> None:
        """Sends or receives a large file."""
        if self.command == "PUT":
            if sha256(body) != digest:
                return self.refuse(400, "BadDigest")
            self.state.stored[digest] = body
            return self.reply()
        return self.reply(self.state.stored[digest])

    def commit(self, name: str, files: dict[str, bytes], body: bytes) -> None:
        if self.state.reader:
            return self.refuse(403, "You don't have the rights to write to this repository")
        for line in body.splitlines():
            key, value = json.loads(line).values()
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                if value["oid"] not in self.state.stored:
                    return self.refuse(400, "LFS pointer points to a file that does not exist")
                files[value["path"]] = self.state.stored[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        commit = commit_of(files)
        return self.json({"commitUrl": f"{ENDPOINT}/{name}/commit/{commit}", "commitOid": commit})


def entry_of(path: str, content: bytes) -> dict[str, Any]:
    """A file in the list of a repository."""
    entry = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
    if path.endswith(LARGE):
        entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
    return entry
