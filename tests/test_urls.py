"""A URL where a command needs a path is one error, and never a folder called `gs:`."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from dml_jax.commands import cli
from tests.test_main import CONFIG, ROOT

URL = "gs://bucket/run"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("main", [CONFIG, "--mode=evaluate", f"--output={URL}"]),
        ("main", [f"--config={URL}/config.json"]),
        ("main", [CONFIG, f"--config.init_from={URL}"]),
        ("prepare", ["--name=cars", f"--source={URL}", "--output=new"]),
        ("prepare", ["--name=cars", "--source=.", f"--output={URL}"]),
        ("prepare", [f"--verify={URL}"]),
        ("convert", [f"--weights={URL}", "--output=new"]),
        ("convert", ["--weights=x.npy", f"--output={URL}"]),
        ("evaluate", [f"--embeddings={URL}", "--labels=x.npy"]),
        ("evaluate", ["--embeddings=x.npy", f"--labels={URL}"]),
        ("evaluate", ["--embeddings=x.npy", "--labels=x.npy", f"--output={URL}"]),
        ("enroll", ["--workdir=.", f"--index={URL}", "photos"]),
        ("enroll", ["--workdir=.", "--index=new.npz", URL]),
        ("ensemble", [URL, "other", "--output=new"]),
        ("ensemble", ["photos", "photos/a", f"--output={URL}"]),
        ("analyse", [f"--workdir={URL}"]),
        ("explore", [f"--workdir={URL}", "--port=0"]),
        ("export", [f"--workdir={URL}", "--to=parquet"]),
        ("export", ["--workdir=.", "--to=parquet", f"--output={URL}"]),
        ("report", [".", f"--output={URL}"]),
        ("study", ["--study=hist_alpha", f"--root={URL}", "--list"]),
    ],
)
def test_a_url_is_refused(
    command: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    np.save("x.npy", np.eye(4))
    Path("x.jpg").touch()
    Path("photos/a").mkdir(parents=True)
    Path("photos/a/x.jpg").touch()
    before = sorted(tmp_path.iterdir())
    module = import_module("dml_jax.main" if command == "main" else f"dml_jax.commands.{command}")
    assert cli.exit_code(lambda: module.execute(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert URL in line
    assert ": is a URL; give a path, e.g. one where the bucket is mounted (gcsfuse, mount-s3)" in line
    assert sorted(tmp_path.iterdir()) == before
