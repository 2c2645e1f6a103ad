"""Two processes of two devices each agree with one device: metrics, checkpoints and embeddings."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.test_process_group import free_port
from tests.test_main import CONFIG, ROOT, TINY, command, environment


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    arguments = [
        CONFIG, *TINY, "--config.train.steps=30", "--config.train.evaluate_every=15",
        "--config.train.checkpoint_every=10", "--config.evaluation.cluster=true", "--config.evaluation.controls=false",
    ]  # fmt: skip
    single = command(*arguments, f"--workdir={tmp_path / 'one'}")
    assert single.returncode == 0, single.stderr
    group = [f"--workdir={tmp_path / 'two'}", f"--coordinator=localhost:{free_port()}", "--processes=2"]
    devices = {**environment(), "JAX_NUM_CPU_DEVICES": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "dml_jax.main", *arguments, *group, f"--process={number}"],
            cwd=ROOT, env=devices, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    printed = [process.communicate(timeout=900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert "R@1" in printed[0]
    assert "R@1" not in printed[1]

    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
    embeddings = [np.load(tmp_path / name / "embeddings" / "test" / "embeddings.npy") for name in ("one", "two")]
    np.testing.assert_allclose(*embeddings, atol=1e-4)
    assert sorted(p.name for p in (tmp_path / "two" / "checkpoints" / "latest").iterdir()) == ["10", "20", "30"]


RETRIEVAL = """
import json, resource, sys, time
import numpy as np
from dml_jax.evaluation import metrics
from dml_jax.train.distributed import process_group

process, processes, port, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if processes > 1:
    process_group.connect(f"localhost:{port}", processes, process)
rng = np.random.default_rng(0)
labels = rng.permutation(np.repeat(np.arange(2000), 50))
points = rng.normal(size=(2000, 128)).astype(np.float32)[labels]
points += 1.8 * rng.standard_normal(points.shape, dtype=np.float32)
start, tiles, announced = time.process_time(), [], []
found = metrics.retrieval(
    points, labels, shared=True, per_query=True, announce=announced.append, progress=lambda done, all: tiles.append(all)
)
seconds, memory = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
np.savez(file, tiles=tiles[-1], **found)
print(json.dumps({"tiles": tiles[-1], "CPU seconds": seconds, "peak KiB": memory, "plan": announced[0]}))
"""


@pytest.mark.slow
def test_two_processes_divide_the_retrieval_of_100_000_rows(tmp_path: Path) -> None:
    devices = {**environment(), "JAX_NUM_CPU_DEVICES": "4"}
    results = []
    for processes in (1, 2):
        port = str(free_port())
        group = [
            subprocess.Popen(
                [sys.executable, "-c", RETRIEVAL, str(i), str(processes), port, str(tmp_path / f"{processes}-{i}.npz")],
                cwd=ROOT, env=devices, stdout=subprocess.PIPE, text=True,
            )
            for i in range(processes)
        ]  # fmt: skip
        for i, process in enumerate(group):
            print(f"process {i} of {processes}:", process.communicate()[0])
            assert process.returncode == 0
            results.append(dict(np.load(tmp_path / f"{processes}-{i}.npz")))
    one, *two = results
    total = one.pop("tiles")
    shares = [found.pop("tiles") for found in two]
    assert sum(shares) == total
    assert max(shares) <= total / 2 + 2
    for found in two:
        assert found.keys() == one.keys()
        for name, values in one.items():
            differing = ~np.isclose(found[name], values, rtol=1e-12, equal_nan=True)
            assert np.mean(differing) < 1e-3, name  # ranks next to a tie up to rounding
