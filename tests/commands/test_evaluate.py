"""The command `dml-jax evaluate`: output and error messages."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dml_jax.commands import evaluate
from dml_jax.evaluation import metrics, reranking
from tests.commands.conftest import Execute, Fails

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(execute: Execute) -> Execute:
    return partial(execute, evaluate)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Embeddings and labels of 60 rows in 6 classes, and of 20 queries."""
    rng = np.random.default_rng(0)
    means, labels = rng.normal(size=(6, 8)), np.arange(80) % 6
    points = (means[labels] + rng.normal(size=(80, 8))).astype(np.float32)
    arrays = {"x": points[:60], "y": labels[:60], "xq": points[60:], "yq": labels[60:]}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return {name: tmp_path / f"{name}.npy" for name in arrays}


def test_a_distance_of_ones_own(
    run: Execute, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its import path, also below re-ranking."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine.py").write_text(
        "import jax.numpy as jnp\ndef d(a, b):\n    return jnp.abs(a[:, None] - b[None]).sum(2)\n"
    )
    pair = f"--embeddings={files['x']}", f"--labels={files['y']}", "--no_clustering", "--output=out.json", "--ks=1"
    assert run(*pair, "--metric=mine.d", "--rerank")[0] == 0
    found, x, y = json.loads(Path("out.json").read_text()), np.load(files["x"]), np.load(files["y"])
    distances = np.abs(x[:, None] - x).sum(axis=2) + 1e9 * np.eye(60)
    assert found["recall@1"] == np.mean(y[distances.argmin(axis=1)] == y)
    assert "ranking by mine.d" in found["protocol"]
    assert 0 < found["reranked"]["recall@1"] < 1
    for name, message in (("manhattan", "must be cosine, euclidean or"), ("mine.e", "mine has no function e")):
        assert message in run(*pair, f"--metric={name}")[2]
    assert "cannot be imported" in run(*pair, "--metric=nowhere.d")[2]


def test_table_and_json(run: Execute, files: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    pair = f"--embeddings={files['x']}", f"--labels={files['y']}"
    code, out, err = run(*pair, f"--output={output}")
    assert (code, err) == (0, "")
    result = json.loads(output.read_text())
    x, y = np.load(files["x"]), np.load(files["y"])
    expected = metrics.retrieval(x, y, ks=(1, 2, 4, 8, 10))
    assert {key: result[key] for key in expected} == expected
    assert "recall@100" not in result
    assert (result["rows"], result["columns"], result["classes"]) == (60, 8, 6)
    for text in (
        f"{100 * expected['recall@1']:.2f}",
        "clean protocol",
        "NMI",
    ):
        assert text in out


def test_names_in_text_files_and_all_metrics(run: Execute, files: dict[str, Path], tmp_path: Path) -> None:
    """Class names, one per line or in an array, give the results of numbers."""
    names, output = tmp_path / "names.txt", tmp_path / "results.json"
    y = np.load(files["y"])
    names.write_text("".join(f"Früchte/{'abcdef'[label]}\n" for label in y), encoding="utf-8")
    np.save(tmp_path / "names.npy", names.read_text(encoding="utf-8").split())
    options = ("--full_ranking", "--no_clustering", "--ks=1,5", f"--output={output}")
    found = []
    for labels in (files["y"], names, tmp_path / "names.npy"):
        code, out, err = run(f"--embeddings={files['x']}", f"--labels={labels}", *options)
        assert (code, err) == (0, "")
        found.append(json.loads(output.read_text()))
    numbers, strings, arrays = ({k: v for k, v in r.items() if k not in ("labels", "seconds")} for r in found)
    assert numbers == strings == arrays
    expected = metrics.retrieval(np.load(files["x"]), y, ks=(1, 5), full_ranking=True)
    assert {key: strings[key] for key in expected} == expected
    for text in ("MRR", "MAP", "P@5", f"{100 * expected['map']:.2f}"):
        assert text in out


def test_queries_and_gallery(run: Execute, files: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    code, out, _ = run(
        f"--embeddings={files['x']}",
        f"--labels={files['y']}",
        f"--query_embeddings={files['xq']}",
        f"--query_labels={files['yq']}",
        "--ks=1,20",
        "--metric=euclidean",
        "--no_clustering",
        "--quiet",
        f"--output={output}",
    )
    assert code == 0
    x, y, xq, yq = (np.load(files[name]) for name in ("x", "y", "xq", "yq"))
    expected = metrics.retrieval(xq, yq, ks=(1, 20), metric="euclidean", gallery=x, gallery_labels=y)
    result = json.loads(output.read_text())
    assert {key: result[key] for key in expected} == expected
    assert "separate gallery" in result["protocol"]
    assert "nmi" not in result
    assert "candidates" not in out


def test_prefixes_and_lone_queries(run: Execute, files: dict[str, Path], tmp_path: Path) -> None:
    x, y = np.load(files["x"]), np.load(files["y"])
    y[:3] = [7, 8, 9]
    np.save(files["y"], y)
    output = tmp_path / "results.json"
    pair = f"--embeddings={files['x']}", f"--labels={files['y']}"
    more = "--prefixes=2", "--lone_queries=omit", "--rerank", "--no_clustering", "--ks=1"
    code, out, err = run(*pair, *more, f"--output={output}")
    assert (code, err) == (0, "")
    result = json.loads(output.read_text())
    for found, width in ((result, 8), (result["prefixes"]["2"], 2)):
        expected = metrics.retrieval(x[:, :width], y, ks=(1,), lone_queries="omit")
        assert {key: found[key] for key in expected} == expected
        assert f"{100 * expected['recall@1']:.2f}" in out
    _, indices = reranking.search(x, x, 9, exclude_self=True)
    reranked = metrics.of_ranked_lists(indices, y, ks=(1,), lone_queries="omit")
    assert {key: result["reranked"][key] for key in reranked} == reranked
    for text in ("first 2", "3 queries have no relevant row", "without a relevant row left out"):
        assert text in out


def test_invalid_input(fails: Fails, more: dict[str, Path], tmp_path: Path) -> None:
    bad = np.load(more["x"])
    bad[[5, 9]] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    np.save(tmp_path / "floats.npy", np.zeros(60))
    (tmp_path / "short.npy").write_bytes(more["x"].read_bytes()[:-100])
    pair = f"--embeddings={more['x']}", f"--labels={more['y']}"
    (tmp_path / "gap.txt").write_text("a\n\nb\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    for arguments, message in (
        ((), "--embeddings: missing"),
        (pair[:1], "--labels: missing"),
        ((*pair, "--embedding=x"), "there is no such option"),
        ((*pair, "--config.seed=1"), "has no configuration"),
        ((*pair, "--ks=1,0"), "--ks: 1,0: must be positive whole numbers"),
        ((*pair, "--ks=1,60"), "ks: K=60, but there are 59 candidates"),
        ((*pair, "--query_labels=y.npy"), "give it and --query_embeddings both or neither"),
        ((*pair, "--output=/nowhere/at/all.json"), "must be a file in an existing directory"),
        ((*pair, "--rerank", "--metric=euclidean"), "--rerank needs cosines, or a function"),
        ((*pair, "--flip"), "--flip: needs --model and --data"),
        ((*pair, "--weights=1,2"), "--weights: needs runs, --model=RUN,RUN"),
        ((*pair, "--data=photos"), "--data: needs --model"),
        ((pair[0], f"--labels={more['x'].parent / 'gap.txt'}"), "gap.txt: line 2 has 0 characters"),
        ((pair[0], f"--labels={more['x'].parent / 'bytes.txt'}"), "bytes.txt: is truncated or damaged"),
        (("--embeddings=none.npy", pair[1]), "--embeddings=none.npy: is missing"),
        (
            (pair[0], f"--labels={tmp_path / 'floats.npy'}"),
            "--labels: holds float64 of shape [60] for 60 rows",
        ),
        ((pair[0], f"--labels={more['yq']}"), "--labels: holds int64 of shape [20] for 60 rows of --embeddings"),
        ((f"--embeddings={tmp_path / 'bad.npy'}", pair[1]), "2 of 60 rows hold NaN or infinity, first row 5"),
        ((f"--embeddings={tmp_path / 'short.npy'}", pair[1]), "is truncated or damaged"),
        ((f"--embeddings={more['y']}", pair[1]), "--embeddings: holds int64 of shape [60]"),
        ((*pair, f"--query_groups={more['c']}"), "--query_groups: needs --query_embeddings"),
        (
            (*pair, f"--query_embeddings={more['xq']}", f"--query_labels={more['yq']}", f"--groups={more['c']}"),
            "--groups: with queries, give --query_groups too",
        ),
        ((*pair, f"--groups={more['c']}", "--rerank"), "--groups: not with --rerank or --protocol=paper"),
        ((*pair, f"--groups={more['cq']}"), "groups: holds int64 of shape [20] for 60 rows of queries"),
        ((pair[0], f"--labels={more['hot']}", "--rerank"), "--labels: have several classes per row"),
    ):
        assert message in fails(evaluate, *arguments), arguments


@pytest.mark.slow
def test_one_and_eight_devices_give_the_same_results(files: dict[str, Path], tmp_path: Path) -> None:
    results = []
    for count in (1, 8):
        output = tmp_path / f"{count}.json"
        subprocess.run(
            [sys.executable, "-m", "dml_jax", "evaluate", f"--embeddings={files['x']}", f"--labels={files['y']}",
             f"--output={output}"],
            cwd=ROOT,
            env=os.environ | {"JAX_NUM_CPU_DEVICES": str(count)},
            check=True,
            capture_output=True,
        )  # fmt: skip
        result = json.loads(output.read_text())
        results.append({key: value for key, value in result.items() if key != "seconds"})
    words = [{key: value for key, value in result.items() if isinstance(value, str)} for result in results]
    numbers = [{key: value for key, value in result.items() if key not in words[0]} for result in results]
    assert words[0] == words[1]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)


@pytest.mark.parametrize("separate", [False, True])
def test_reranking(run: Execute, files: dict[str, Path], tmp_path: Path, separate: bool) -> None:
    x, y, xq, yq = (np.load(files[name]) for name in ("x", "y", "xq", "yq"))
    output = tmp_path / "results.json"
    queries = [f"--query_embeddings={files['xq']}", f"--query_labels={files['yq']}"] if separate else []
    code, out, err = run(
        f"--embeddings={files['x']}", f"--labels={files['y']}", *queries, "--no_clustering", "--ks=1,5",
        "--rerank", f"--output={output}",
    )  # fmt: skip
    assert (code, err) == (0, "")
    result = json.loads(output.read_text())
    points, labels = (xq, yq) if separate else (x, y)
    own = not separate
    _, indices = reranking.search(points, x if separate else points, 9 + separate, exclude_self=own)
    expected = metrics.of_ranked_lists(indices, labels, y if separate else None, ks=(1, 5))
    assert {key: result["reranked"][key] for key in expected} == expected
    assert expected["map@r"] != result["map@r"]
    assert f"{100 * expected['map@r']:.2f}" in out
    assert result["reranked"]["protocol"].startswith("reranked")
    assert result["reranked"]["protocol"] in out
    assert f"{100 * result['map@r']:.2f}" in out
    assert ("queries and gallery together" in result["reranked"]["protocol"]) == separate


def test_reranking_by_the_paper_protocol(run: Execute, files: dict[str, Path], tmp_path: Path) -> None:
    """Without duplicates, dropping the first neighbour is the same as excluding the query."""
    found = []
    for protocol in ("clean", "paper"):
        output = tmp_path / f"{protocol}.json"
        code, _, _ = run(
            f"--embeddings={files['x']}", f"--labels={files['y']}", "--no_clustering", "--rerank",
            f"--protocol={protocol}", f"--output={output}",
        )  # fmt: skip
        assert code == 0
        found.append(json.loads(output.read_text()))
    assert found[0]["reranked"] == found[1]["reranked"]
    assert "recall@10" in found[0]["reranked"]


@pytest.fixture
def more(files: dict[str, Path]) -> dict[str, Path]:
    """`files` with cameras, and with several classes per row."""
    rng = np.random.default_rng(1)
    arrays = {"c": np.arange(60) // 6 % 3, "cq": np.arange(20) % 3, "hot": rng.random((60, 5)) < 0.3}
    for name, array in arrays.items():
        np.save(files["x"].parent / f"{name}.npy", array)
    return files | {name: files["x"].parent / f"{name}.npy" for name in arrays}


def test_groups(run: Execute, more: dict[str, Path], tmp_path: Path) -> None:
    given = [f"--embeddings={more['x']}", f"--labels={more['y']}", f"--groups={more['c']}"]
    given += ["--ks=1,5", "--no_clustering", f"--output={tmp_path / 'results.json'}"]
    sides = [f"--query_embeddings={more['xq']}", f"--query_labels={more['yq']}", f"--query_groups={more['cq']}"]
    x, y, xq, yq, c, cq = (np.load(more[name]) for name in ("x", "y", "xq", "yq", "c", "cq"))
    gallery = {"gallery": x, "gallery_labels": y, "groups": cq, "gallery_groups": c}
    for options, expected in (
        (given, metrics.retrieval(x, y, ks=(1, 5), groups=c)),
        ([*given, *sides], metrics.retrieval(xq, yq, ks=(1, 5), **gallery)),
    ):
        assert run(*options)[0] == 0
        found = json.loads((tmp_path / "results.json").read_text())
        assert {key: found[key] for key in expected} == expected
        assert "relevant rows of the query's group excluded" in found["protocol"]


def test_several_classes(run: Execute, more: dict[str, Path], tmp_path: Path) -> None:
    hot = np.load(more["hot"])
    expected = metrics.retrieval(np.load(more["x"]), hot, ks=(1, 5))
    lines = ["\t".join(f"class {c}" for c in np.flatnonzero(row)) for row in hot]
    (tmp_path / "classes.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for labels in (more["hot"], tmp_path / "classes.tsv"):
        given = f"--embeddings={more['x']}", f"--labels={labels}", "--ks=1,5", f"--output={tmp_path / 'results.json'}"
        code, out, _ = run(*given)
        assert (code, "60 rows, 5 classes" in out) == (0, True)
        found = json.loads((tmp_path / "results.json").read_text())
        assert {key: found[key] for key in expected} == expected
