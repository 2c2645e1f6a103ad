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
