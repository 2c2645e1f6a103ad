"""A URL where a command needs a path, or another kind of URL, is one error, and never a folder
called `gs:`."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.config import Data
from dml_jax.data import prepared_data
from dml_jax.errors import DataError
from tests.processes import CONFIG, ROOT

URL = "gs://bucket/run"


NO_URL = f"{URL}: is a URL; give a path, e.g. one where the bucket is mounted (gcsfuse, mount-s3)"
ONLY_GS = "s3://bucket/run: give gs://bucket/directory"


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("main", [CONFIG, "--mode=evaluate", f"--output={URL}"], NO_URL),
        ("main", [CONFIG, f"--config.init_from={URL}"], NO_URL),
        ("prepare", ["--name=cars", "--source=.", f"--output={URL}"], NO_URL),
        ("evaluate", ["--embeddings=x.npy", "--labels=x.npy", f"--output={URL}"], NO_URL),
        ("enroll", ["--model=.", "--index=new.npz", URL], NO_URL),
        ("export", ["--model=.", "--to=parquet", f"--output={URL}"], NO_URL),
        (
            "study",
            [f"--study={ROOT}/tests/plugins/comparison.py", f"--root={URL}", "--list"],
            NO_URL,
        ),
        ("main", [CONFIG, "--workdir=s3://bucket/run"], f"--workdir={ONLY_GS}"),
        ("embed", ["--model=s3://bucket/run", "photos"], f"--model={ONLY_GS}"),
        (
            "main",
            [CONFIG, "--workdir=gs://bucket"],
            "--workdir=gs://bucket: give gs://bucket/directory",
        ),
        (
            "analyse",
            [f"--model={URL}"],
            f"--model={URL}: analyses are written into the run; copy it to a directory",
        ),
    ],
)
def test_a_url_is_refused(
    command: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,  # noqa: E501
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    np.save("x.npy", np.eye(4))
    Path("photos/a").mkdir(parents=True)
    for name in ("x.jpg", "photos/a/x.jpg"):
        Path(name).touch()
    before = sorted(tmp_path.iterdir())
    module = import_module("dml_jax.main" if command == "main" else f"dml_jax.commands.{command}")
    assert cli.exit_code(lambda: module.execute(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(tmp_path.iterdir()) == before


def test_readers_refuse_urls() -> None:
    with pytest.raises(DataError, match=r"x.npy: is a URL; give a path"):
        files.read_json(Path("s3://bucket/x.npy"), dict)
    with pytest.raises(DataError, match="is a URL; give a path"):
        prepared_data.record_reader(Path("s3://bucket/records"), "train", Data())(0, None)
    with pytest.raises(DataError, match=r"gs://bucket/x\.jpg: missing"):
        prepared_data.file_reader(["gs://bucket/x.jpg"], Data())(0, None)
