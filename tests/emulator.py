"""An emulator of Google Cloud Storage in a process of its own.

The right to write and the database format of orbax rely on generations: an object is only written
in place of the expected one, and reading one tells its generation. The emulator leaves both out, so
they are added here.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dml_jax import buckets

SERVER = """
import sys, time
from http import HTTPStatus
from http.server import HTTPServer
from gcp_storage_emulator.handlers import objects

insert, download = objects.insert, objects.download

def generation(storage, bucket, name):
    return storage.objects.get(bucket, {}).get(name, {"generation": "0"})["generation"]

def conditional_insert(request, response, storage, *rest, **named):
    content = request.data  # also of a request that is refused: the connection would be reset
    name = (request.query.get("name") or [content["meta"]["name"]])[0]
    there = generation(storage, request.params["bucket_name"], name)
    if request.query.get("ifGenerationMatch", [there]) != [there]:
        response.status = HTTPStatus.PRECONDITION_FAILED
    else:
        insert(request, response, storage, *rest, **named)

def conditional_download(request, response, storage, *rest, **named):
    there = generation(storage, request.params["bucket_name"], request.params["object_id"])
    if request.query.get("ifGenerationMatch", [there]) != [there]:
        response.status = HTTPStatus.PRECONDITION_FAILED
    elif request.query.get("ifGenerationNotMatch") == [there]:
        response.status = HTTPStatus.NOT_MODIFIED
    else:
        download(request, response, storage, *rest, **named)
        response["x-goog-generation"] = there

objects.insert, objects.download = conditional_insert, conditional_download
from gcp_storage_emulator import server  # whose routes hold these functions

HTTPServer.request_queue_size = 128  # 5 connections are fewer than clients open at once
running = server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="bucket")
running.start()
print("ready", flush=True)
time.sleep(3600)
"""


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """The environment variables with which clients find the emulator, and nothing else; it has the bucket "bucket"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        clients = ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
        nothing_else = {"NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "127.0.0.1:1"}
        yield dict.fromkeys(clients, address) | nothing_else | {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def client() -> Iterator[Any]:
    """The client that dml_jax uses for buckets; this process and those it starts are connected with an emulator."""
    with running() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield buckets._client()
