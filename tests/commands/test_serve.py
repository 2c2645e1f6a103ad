"""The command that serves a run, which `test_main.py` trains; `test_http_service.py` tests the
answers."""

import os
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dml_jax
from dml_jax.commands import serve
from dml_jax.data import decode
from tests.commands.conftest import Fails
from tests.serving.test_http_service import ask


def check_command(run: Path) -> None:
    """Serves a run and an index: the library's answers for images of either kind; SIGTERM ends the
    process."""
    model = dml_jax.load(run)
    images = np.random.default_rng(0).integers(0, 256, (2, *model.shape, 3), dtype=np.uint8)
    index = model.enroll({"one": [images[0]], "other": [images[1] // 2]})
    index.save(run / "index")
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    shares = [answer.probability for answer in index.classify(list(images))]
    least = float(np.mean(shares))  # between the probabilities of both images
    options = (f"--model={run}", f"--index={run / 'index'}", f"--min_probability={least}", "--port=0")
    with subprocess.Popen(
        [sys.executable, "-m", "dml_jax", "serve", *options],
        cwd=Path(__file__).parents[2], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        answers = [ask(port, decode.encode_png(image), path="?embedding=1") for image in images]
        assert ask(port, None, path="health") == (200, {"status": "ok"})
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == 143
    found = index.classify(list(images), min_probability=least)
    assert [each.name for each in found].count("unknown") == 1  # the less probable one
    for (status, answer), row, each in zip(answers, model.embed(list(images)), found, strict=True):
        assert (status, answer["class"]) == (200, each.name)
        np.testing.assert_allclose(answer["embedding"], row, atol=1e-5)
        assert answer["probability"] == pytest.approx(each.probability, abs=1e-4)


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
