"""Options of `dml-jax evaluate` beyond one class per row: the results of `metrics.retrieval`, and error messages."""

import json
from pathlib import Path

import numpy as np
import pytest

from dml_jax.commands import cli, evaluate
from dml_jax.evaluation import metrics


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Files of 60 rows and 20 queries in the current directory, and their arrays."""
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(60, 8)).astype(np.float32), "y": np.arange(60) % 6, "cameras": np.arange(60) // 6 % 3,
        "xq": rng.normal(size=(20, 8)).astype(np.float32), "yq": np.arange(20) % 7, "query_cameras": np.arange(20) % 3,
    }  # fmt: skip
    arrays["hot"] = rng.random((60, 5)) < 0.3
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.chdir(tmp_path)
    return arrays


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    code = cli.exit_code(lambda: evaluate.execute(list(arguments)))
    return code, *capsys.readouterr()


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict, str]:
    """The written results and the printed tables."""
    code, out, err = run(capsys, *arguments, "--ks=1,5", "--no_clustering", "--quiet", "--output=results.json")
    assert (code, err) == (0, "")
    return json.loads(Path("results.json").read_text()), out


def test_groups(capsys, data):
    sides = "--embeddings=x.npy", "--labels=y.npy", "--query_embeddings=xq.npy", "--query_labels=yq.npy"
    cameras = "--groups=cameras.npy", "--query_groups=query_cameras.npy"
    found, _ = results(capsys, *sides, *cameras)
    expected = metrics.retrieval(
        data["xq"], data["yq"], ks=(1, 5), gallery=data["x"], gallery_labels=data["y"], groups=data["query_cameras"],
        gallery_groups=data["cameras"],
    )  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert "relevant rows of the query's group excluded" in found["protocol"]
    assert (found["groups"], found["query_groups"]) == ("cameras.npy", "query_cameras.npy")
    own, _ = results(capsys, *sides[:2], cameras[0])
    expected = metrics.retrieval(data["x"], data["y"], ks=(1, 5), groups=data["cameras"])
    assert {key: own[key] for key in expected} == expected


def test_several_classes(capsys, data):
    expected = metrics.retrieval(data["x"], data["hot"], ks=(1, 5))
    lines = ["\t".join(f"class {c}" for c in np.flatnonzero(row)) for row in data["hot"]]
    Path("classes.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for labels in ("hot.npy", "classes.tsv"):
        found, out = results(capsys, "--embeddings=x.npy", f"--labels={labels}")
        assert {key: found[key] for key in expected} == expected
        assert "60 rows, 5 classes" in out


PAIR = ("--embeddings=x.npy", "--labels=y.npy")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PAIR, "--query_groups=cameras.npy"), "--query_groups: needs --query_embeddings"),
        (
            (*PAIR, "--query_embeddings=xq.npy", "--query_labels=yq.npy", "--groups=cameras.npy"),
            "--groups: with queries, give --query_groups too",
        ),
        ((*PAIR, "--groups=cameras.npy", "--rerank"), "--groups: not with --rerank or --protocol=paper"),
        ((*PAIR, "--groups=query_cameras.npy"), "groups: holds int64 of shape [20] for 60 rows of queries"),
        (("--embeddings=x.npy", "--labels=hot.npy", "--rerank"), "--labels: have several classes per row"),
    ],
)
def test_invalid_options(capsys, data, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code != 0
    assert message in err
    assert len(err.strip().splitlines()) == 1
