"""The main command: exit codes, one-line errors, and complete runs, in real processes where it matters."""

import json
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeAlias

import jax
import numpy as np
import pytest

import dml_jax
from dml_jax import main
from dml_jax.data import decode
from tests.data import pictures
from tests.processes import CONFIG, ROOT, TINY, command, start
from tests.serving.servers import ask

CACHE_OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")  # set by the command


Run: TypeAlias = Callable[..., CompletedProcess[str]]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the command in the process of the tests, which saves the seconds that a new process takes to start."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    kept = {key: jax.config.values[key] for key in CACHE_OPTIONS}

    def run(*arguments: str) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["dml_jax.main", *arguments])
        capsys.readouterr()
        return CompletedProcess(arguments, main.main(), *capsys.readouterr())

    yield run
    for key, value in kept.items():
        jax.config.update(key, value)


def test_invalid_option_in_a_process(tmp_path: Path) -> None:
    """Standard error holds the one-line message only, whatever is imported; the process exits with code 2."""
    done = command(CONFIG, "--config.method.pooilng=max", f"--workdir={tmp_path / 'run'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: method.pooilng: unknown key; did you mean pooling?\n"


FAULTS = """
import ctypes
import resource
import jax
import jax.numpy as jnp
from dml_jax.commands import jax_setup

jax_setup.keep_freed_memory()
program = jax.jit(lambda x: (x @ x.T) @ x)
x = jnp.ones((5000, 4))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
for calls in (10, 10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        program(x).block_until_ready()
        large = libc.malloc(5 << 29)  # more than 2 GiB, of which only the first part is used
        ctypes.memset(large, 0, 1 << 26)
        libc.free(large)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls * resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets options of glibc")
def test_programs_get_the_memory_of_those_before() -> None:
    fetched = command(program=("-c", FAULTS))
    assert float(fetched.stdout) < 5000**2 * 4 / 2, fetched.stderr  # bytes of pages, by a product of 100 MB


def recall(rows: np.ndarray, labels: np.ndarray) -> float:
    """Recall@1 by cosine, in float64."""
    rows = rows / np.linalg.norm(rows.astype(float), axis=1, keepdims=True)
    cosines = rows @ rows.T - 3 * np.eye(len(rows))
    return float(np.mean(labels[cosines.argmax(axis=1)] == labels))


STOPPED = """
import os, signal, sys
import dml_jax
from dml_jax import main
from dml_jax.data import decode
from dml_jax.train.records import logs

def write(lines, line, write=logs.JsonLines.write):
    write(lines, line)
    if lines.path.name == "metrics.jsonl":
        os.kill(os.getpid(), signal.SIGTERM)

logs.JsonLines.write = write
sys.exit(main.main())
"""


def check_server(run: Path) -> None:
    """Serves a run and an index: the library's answers for images of either kind; SIGTERM ends the process."""
    model = dml_jax.load(run)
    images = np.random.default_rng(0).integers(0, 256, (2, *model.shape, 3), dtype=np.uint8)
    index = model.enroll({"one": [images[0]], "other": [images[1] // 2]})
    index.save(run / "index")
    shares = [answer.probability for answer in index.classify(list(images))]
    least = float(np.mean(shares))  # between the probabilities of both images
    options = (f"--model={run}", f"--index={run / 'index'}", f"--min_probability={least}", "--port=0")
    with start("serve", *options, program=("-m", "dml_jax")) as process:
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


def test_run_from_start_to_finish(in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, a real SIGTERM, resuming, finishing, refusal of another configuration, evaluation, export, serving."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos, run = tmp_path / "photos", tmp_path / "run"
    for i in range(96):
        pictures.write(photos / f"class {i // 8}" / f"{i}.jpg", i, 24, 24)
    data = "--config.data.name=folder", f"--config.data.path={photos}"
    steps = "--config.train.steps=60", "--config.train.evaluate_every=30"
    arguments = [CONFIG, f"--workdir={run}", *TINY, *data, *steps]
    stopped = command(*arguments, "--profile=3:5", program=("-c", STOPPED))
    assert (stopped.returncode, "stopped by SIGTERM" in stopped.stdout) == (143, True), stopped
    assert list((run / "profile" / "host-0").rglob("*.xplane.pb"))
    assert f"xprof --logdir={run / 'profile' / 'host-0'}" in stopped.stdout
    log = (run / "logs" / "host-0.log").read_text()
    assert "process 0 of 1 on " in log
    assert "training 20/60  loss " in log
    assert log.endswith("Interrupted: SIGTERM\n")
    saved = [int(path.name) for path in (run / "checkpoints" / "latest").iterdir()]
    assert 0 < max(saved) < 60

    done = in_process(*arguments)
    assert done.returncode == 0, done.stderr
    assert f"resuming from step {max(saved)}" in done.stdout
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [20, 30, 40, 60]
    evaluated = [line["step"] for line in lines if "test/recall@1" in line]
    assert evaluated == [line["step"] for line in lines if "train/recall@1" in line] == [30, 60]

    results, test = json.loads((run / "results.json").read_text()), run / "embeddings" / "test"
    embeddings, labels = np.load(test / "embeddings.npy"), np.load(test / "labels.npy")
    assert (embeddings.dtype, embeddings.shape, labels.dtype) == (np.float32, (48, 8), np.int64)
    assert results["recall@1"] == pytest.approx(recall(embeddings, labels))
    ids, classes = (json.loads((test / f"{name}.json").read_text()) for name in ("ids", "metadata"))
    assert classes["class_name"] == [Path(name).parent.name for name in ids]
    assert len({*zip(labels.tolist(), classes["class_name"], strict=True)}) == 6
    report = (run / "report.html").read_text()
    for name in ("loss", "recall", "retrieval", "classes", "components"):
        assert f'id="{name}"' in report
        assert (run / "figures" / f"{name}.png").stat().st_size > 1000
    assert "raw pixels" in report
    assert "48 of 6 classes" in report

    again = in_process(*arguments)
    assert (again.returncode, "already finished" in again.stdout) == (0, True), again.stderr
    other = in_process(*arguments, "--config.method.proxy_anchor.alpha=9")
    assert "method.proxy_anchor.alpha (32.0 there, 9.0 here)" in other.stderr
    assert other.returncode == 2

    output = tmp_path / "results.json"
    evaluated = in_process(*arguments, "--config.evaluation.controls=false", "--mode=evaluate", f"--output={output}")
    assert (evaluated.returncode, "R@1" in evaluated.stdout) == (0, True), evaluated.stderr
    assert json.loads(output.read_text())["recall@1"] == results["recall@1"]
    exported = in_process(*arguments, "--mode=export", "--checkpoint=60")
    assert exported.returncode == 0, exported.stderr
    assert len(np.load(run / "embeddings" / "train" / "labels.npy")) == 48
    check_server(run)


@pytest.mark.slow
def test_starting_from_another_run(in_process: Run, tmp_path: Path) -> None:
    """The new run starts with the results of the old one; if the backbone does not fit, nothing is written."""
    first, second = tmp_path / "first", tmp_path / "second"
    small = [CONFIG, *TINY, "--config.evaluation.controls=false"]
    assert command(*small, "--config.train.steps=60", f"--workdir={first}").returncode == 0
    source = f"--config.init_from={first}"
    output = tmp_path / "results.json"
    evaluated = command(*small, source, "--mode=evaluate", f"--workdir={second}", f"--output={output}")
    assert (evaluated.returncode, second.exists()) == (0, False), evaluated.stderr
    trained = json.loads((first / "results.json").read_text())
    assert json.loads(output.read_text())["map@r"] == pytest.approx(trained["map@r"], abs=1e-6)
    assert f"{100 * trained['recall@1']:.1f}" in evaluated.stdout
    misfit = in_process(*small, source, "--config.backbone.widths=(8,)", f"--workdir={tmp_path / 'third'}")
    assert (misfit.returncode, "the backbones differ" in misfit.stderr) == (2, True), misfit.stderr
    assert not (tmp_path / "third").exists()


def test_check_writes_nothing(in_process: Run, tmp_path: Path) -> None:
    done = in_process(CONFIG, *TINY, "--mode=check", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "the configuration is valid" in done.stdout
    assert not (tmp_path / "run").exists()
