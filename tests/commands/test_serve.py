"""The command that serves; `test_main.py` serves a run, and `test_http_service.py` tests the answers."""

import socket
from argparse import Namespace
from types import SimpleNamespace

import pytest

from dml_jax.commands import serve
from tests.commands.conftest import Fails


def test_an_address_in_use(fails: Fails) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"={port}: cannot listen there (Address already"
        assert message in fails(serve, "--model=none", f"--port={port}")


def test_it_listens_once_the_model_is_loaded(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load balancer could otherwise send requests that wait for minutes."""
    bound: list[socket.socket] = []
    bind = serve.bind
    monkeypatch.setattr(serve, "bind", lambda *where: bound.append(bind(*where)) or bound[0])

    def load(options: Namespace) -> SimpleNamespace:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(bound[0].getsockname()[:2])
        return SimpleNamespace(lacks_graph=False, shape=("int32", 24))

    monkeypatch.setattr(serve.jax_setup, "load", load)
    problem = "--model: takes int32 [24]; only models of images are served"
    assert problem in fails(serve, "--model=x", "--port=0")
