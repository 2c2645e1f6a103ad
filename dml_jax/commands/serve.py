"""Serves a model over HTTP (`pip install starlette uvicorn python-multipart`):

    dml-jax serve --model=runs/birds [--index=birds.npz] [--host=0.0.0.0] [--port=8000]
    curl -F file=@photo.jpg http://localhost:8000/                  # or: curl --data-binary @photo.jpg ...

The address is printed once the programs are compiled. `POST /` answers {"embedding": [...]}; with
an index of `dml-jax enroll` instead "class", which may be "unknown", the "score" that decides it,
"cosine" to the nearest enrolled image, and "classes", the five best with cosines. `POST
/?embedding=1` adds the embedding. An index that was replaced is read again. `GET /health` answers
{"status": "ok"}, and `GET /statistics` the numbers of answers by class and the rate of "unknown"
beside the promised one. Errors have a status of 400 or more.
"""  # noqa: E501

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress

from dml_jax.commands import cli, enroll, jax_setup
from dml_jax.errors import ConfigError
from dml_jax.files import expand_path

PACKAGES = "starlette uvicorn python-multipart"
BACKLOG = 2048  # connections that wait to be accepted


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; ConfigError if the port or the host is not available."""
    cli.require(0 <= port < 1 << 16, f"--port={port}: must be in 0..65535; 0 is any free port")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--host={host} --port={port}: cannot listen there ({reason}); give others"
        ) from None


def execute(arguments: list[str]) -> None:
    """Reads the command line; serves until SIGTERM or Ctrl-C."""
    flags = cli.Parser(__doc__)
    cli.add_model(flags, versions=True, runtime=True)
    flags.add_argument("--index", help=".npz file with enrolled classes")
    enroll.add_decision(flags)
    flags.add_argument(
        "--host",
        default="127.0.0.1",
        help="default 127.0.0.1; 0.0.0.0 to be reachable from elsewhere",
    )
    text = "further name or address by which clients or a proxy call this server; repeatable"
    flags.add_argument("--host_name", metavar="NAME", action="append", default=[], help=text)
    flags.add_argument("--port", type=int, default=8000, help="default 8000; 0 for any free one")
    options = flags.read_plain(arguments)
    from dml_jax.evaluation import open_set

    open_set.check_rate(options.false_accept_rate)
    index = expand_path("--index", options.index) if options.index else None
    cli.check_installed("serve", "uvicorn", PACKAGES)
    from dml_jax.serving import http_service

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with listen(options.host, options.port) as listener:
        model = jax_setup.load(options)
        decision = {"threshold": options.threshold, "false_accept_rate": options.false_accept_rate}
        classes = http_service.EnrolledClasses(model, index, decision) if index else None
        service = http_service.Service(model, classes)
        service.compile()
        host, port = listener.getsockname()[:2]
        print(f"http://{_in_url(host)}:{port}/", flush=True)
        machine = socket.gethostname()
        names = {*http_service.LOCAL_NAMES, _in_url(options.host), machine, *options.host_name}
        with suppress(OSError):
            names |= {_in_url(str(entry[4][0])) for entry in socket.getaddrinfo(machine, None)}
        http_service.server(service, hosts=sorted(names)).run([listener])


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
