"""Serves a model over HTTP:

    dml-jax serve --model=runs/birds [--index=birds] [--host=0.0.0.0] [--port=8000]
    curl -F file=@photo.jpg http://localhost:8000/  # or: curl --data-binary @photo.jpg ...

The server prints its address once it listens; open it in a browser to classify photographs. `POST
/` answers {"embedding": [...]}; with an index of `dml-jax enroll`, it answers "class", the
"probability" that this class is right, "classes" (the --top most probable), and "margin" instead.
With --reject or --min_probability, "class" may be "unknown". `POST /?embedding=1` adds the
embedding. A changed index is read again. `GET /health` answers {"status": "ok"}; `GET /statistics`
counts the answers by class, with the rate of "unknown" and the expected rate. Errors have a status
of 400 or more. The extra "serve" has the packages that the server needs:

    pip install starlette uvicorn httptools python-multipart
"""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress

from dml_jax.commands import cli, jax_setup
from dml_jax.errors import ConfigError
from dml_jax.files import expand_path


def execute(arguments: list[str]) -> None:
    """Reads the command line; serves until SIGTERM or Ctrl-C."""
    flags = cli.Parser(__doc__)
    cli.add_model(flags, versions=True, runtime=True)
    flags.add_argument("--index", help="directory of enrolled classes")
    cli.add_decision(flags)
    text = "default 127.0.0.1; 0.0.0.0 to be reachable from elsewhere"
    flags.add_argument("--host", default="127.0.0.1", help=text)
    text = "another name or address by which clients or a proxy reach this server; repeatable"
    flags.add_argument("--host_name", metavar="NAME", action="append", default=[], help=text)
    flags.add_argument("--port", type=int, default=8000, help="default 8000; 0 for any free one")
    text = (
        "size of the largest photographs (default: %(default)s; above 89, see "
        "DML_JAX_MEGAPIXELS in the documentation); decoding one takes 3 to "
        "12 MB of memory for each megapixel, and several at a time share 512 MiB"
    )
    flags.add_argument("--megapixels", type=float, default=60, metavar="N", help=text)
    options = flags.read_plain(arguments)
    cli.require(options.megapixels > 0, f"--megapixels={options.megapixels:g}: must be above 0")
    limit = cli.decision(options)
    index = expand_path("--index", options.index) if options.index else None
    problem = f"--index={options.index}: there is no such directory; create it with dml-jax enroll"
    cli.require(index is None or index.is_dir(), problem)
    problem = "--reject and --min_probability: need --index; without it, no class is named"
    cli.require(index or not any(value is not None for value in limit.values()), problem)
    cli.check_installed("serve", "httptools", cli.SERVER_PACKAGES)
    from dml_jax.data import arrays
    from dml_jax.inference import graphs
    from dml_jax.serving.enrolled_classes import EnrolledClasses
    from dml_jax.serving.http_service import Server, Service

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with bind(options.host, options.port) as listener:
        model = jax_setup.load(options)
        if model.lacks_graph:
            graphs.make(model)
            model = jax_setup.load(options)
        shape = arrays.describe(model.shape)
        problem = f"--model: takes {shape}; only models of images are served"
        cli.require(arrays.is_image(model.shape), problem)
        enrolled = EnrolledClasses(model, index, limit, options.top) if index else None
        service = Service(model, enrolled, options.model, options.megapixels)
        service.compile()
        server = Server(service, sorted(names_of(options.host) | {*options.host_name}))
        listener.listen(server.config.backlog)
        host, port = listener.getsockname()[:2]
        print(f"http://{_in_url(host)}:{port}/", flush=True)
        server.run([listener])


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, not listening; ConfigError if the address is not available."""
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            return bound.dup()
    except (OSError, UnicodeError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        where = f"--host={host} --port={port}"
        raise ConfigError(f"{where}: cannot listen there ({why}); give another address") from None


def names_of(host: str) -> set[str]:
    """The names and addresses of this machine by which clients may call a server at `host`."""
    machine = socket.gethostname()
    names = {"localhost", "127.0.0.1", "[::1]", _in_url(host), machine}
    with suppress(OSError):
        names |= {_in_url(str(entry[4][0])) for entry in socket.getaddrinfo(machine, None)}
    return names


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
