"""An emulator of Google Cloud Storage in a process of its own, which replaces an object only if it is the expected one.

Leases and orbax rely on this, which the emulator itself leaves out.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SERVER = """
import sys, threading, time
from http import HTTPStatus
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator import server

lock = threading.Lock()

def serial(handler):
    def handle(request, response, storage, *rest, **named):
        with lock:
            if handler is not objects.insert or "ifGenerationMatch" not in request.query:
                return handler(request, response, storage, *rest, **named)
            name = (request.query.get("name") or [request.data["meta"]["name"]])[0]
            there = storage.objects.get(request.params["bucket_name"], {}).get(name, {"generation": "0"})
            if request.query["ifGenerationMatch"] == [str(there["generation"])]:
                return handler(request, response, storage, *rest, **named)
            response.status = HTTPStatus.PRECONDITION_FAILED
    return handle

for _, handlers in server.HANDLERS:
    for verb, handler in handlers.items():
        handlers[verb] = serial(handler)

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
        yield {
            "STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address, "NO_GCE_CHECK": "true",
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": address, "GCE_METADATA_HOST": "127.0.0.1:1",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }  # fmt: skip
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
