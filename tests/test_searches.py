"""The searches of reproductions, each with two tiny trials."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = {
    "data.name": "digits", "data.batch_size": 16, "data.images_per_class": 4,
    "data.image_size": 24, "train.steps": 2, "train.evaluate_every": 1,
    "evaluation.cluster": False,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["hist", "re_mpn"])
def test_two_trials(tmp_path: Path, paper: str) -> None:
    """They are compared on held-out classes; the same command adds only what is missing."""
    pytest.importorskip("optuna")
    command = [sys.executable, "-m", f"benchmarks.papers.search_{paper}", "omniglot"]
    command += [f"--root={tmp_path}", *(f"--config.{key}={value}" for key, value in TINY.items())]

    def search(trials: int) -> str:
        options = [*command, f"--trials={trials}"]
        env = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
        found = subprocess.run(options, cwd=ROOT, env=env, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return found.stdout

    search(1)
    assert "recall@1 0." in search(2)
    assert (tmp_path / "search.db").exists()
    directories = sorted(path.name for path in tmp_path.glob("trial-*"))
    assert directories == ["trial-0000", "trial-0001"]
    assert all('"validation/recall@1"' in (tmp_path / name / "metrics.jsonl").read_text() for name in directories)
