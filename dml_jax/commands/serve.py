"""Serves a model over HTTP (`pip install starlette uvicorn python-multipart`):

    dml-jax serve --model=runs/birds [--index=birds.npz] [--host=0.0.0.0] [--port=8000]
    curl -F file=@photo.jpg http://localhost:8000/                  # or: curl --data-binary @photo.jpg ...

The address is printed once the programs are compiled. `POST /` answers {"embedding": [...]}; with an index of
`dml-jax enroll` instead "class", which may be "unknown", the "score" that decides it, "cosine" to the nearest enrolled
image, and "classes", the five best with cosines. `POST /?embedding=1` adds the embedding, `POST /?pictures=1` the
nearest image of each class, if the index was made with --thumbnails. In a browser, the address shows a page that
classifies photographs. An index that was replaced is read again. `GET /health` answers {"status": "ok"}. Errors are
answered with {"error": ...} and a status of 400 or more.
"""

import re
import signal
import socket
import sys

import dml_jax
from dml_jax.commands import cli, decision_options, model_options, runtime
from dml_jax.errors import ConfigError
from dml_jax.files import expand_path
from dml_jax.serving.enrolled_classes import EnrolledClasses

BATCH = 16  # images per call of the network
WAITING = 256  # images; more are refused
BACKLOG = 2048  # connections that wait to be accepted


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; ConfigError if the port is not available, or the host not of this machine."""
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"--port={port}: must be in 0..65535; 0 is any free port")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--host={host} --port={port}: cannot listen there ({reason}); give others") from None


def execute(arguments: list[str]) -> None:
    """Reads the command line; serves until SIGTERM or Ctrl-C."""
    flags = cli.Parser(__doc__)
    model_options.add(flags)
    model_options.add_versions(flags)
    flags.add_argument("--index", help=".npz file with enrolled classes")
    decision_options.add(flags)
    flags.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1; 0.0.0.0 to be reachable from elsewhere")
    flags.add_argument(
        "--host_name", metavar="NAME", action="append", default=[],
        help="further name by which clients or a proxy call this server; repeatable (its addresses need none)",
    )  # fmt: skip
    flags.add_argument("--port", type=int, default=8000, help="default 8000; 0 for any free one")
    options = flags.parse_args(arguments)
    model_options.check(options)
    for name in options.host_name:
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(f"--host_name={name}: is not a name; give it as in an address, e.g. birds.example.org")
    versions = model_options.versions(options)
    decision = decision_options.given(options)
    for name in decision:
        if not options.index and any(argument.partition("=")[0] == f"--{name}" for argument in arguments):
            raise ConfigError(f"--{name}: needs --index; give that too")
    try:
        from dml_jax.serving import classify_page, http_service
        from dml_jax.serving.batched_answers import Answers
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install starlette uvicorn python-multipart") from None
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with listen(options.host, options.port) as listener:
        runtime.enable_compilation_cache()
        model = dml_jax.load(options.model, options.checkpoint, trust_code=options.trust_code, **versions)
        classify = None
        if options.index:
            classify = EnrolledClasses(model, expand_path("--index", options.index), decision)
        answers = Answers(model, classify, batch=BATCH, waiting=WAITING)
        answers.compile()
        host, port = listener.getsockname()[:2]
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)
        names = (options.host, socket.gethostname(), *options.host_name)
        routes = classify_page.routes() if classify else []
        http_service.server(answers, model.read, http_service.Limits(), routes=routes, hosts=names).run([listener])
