"""The command `dml-jax evaluate`: output and error messages."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest

from dml_jax.analysis import labelled_embeddings
from dml_jax.commands import evaluate
from dml_jax.data.split import Split, unread
from dml_jax.evaluation import metrics, reranking
from tests.commands.conftest import Execute

PAIR = ("--embeddings=x.npy", "--labels=y.npy")
QUERIES = ("--query_embeddings=xq.npy", "--query_labels=yq.npy")
Evaluated: TypeAlias = Callable[..., tuple[dict[str, Any], str]]
Arrays: TypeAlias = Mapping[str, np.ndarray]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arrays:
    """Files here: 60 rows in 6 classes and 20 queries, with cameras, and with several classes per row."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    means, labels = rng.normal(size=(6, 8)), np.arange(80) % 6
    points = (means[labels] + rng.normal(size=(80, 8))).astype(np.float32)
    arrays = {"x": points[:60], "y": labels[:60], "xq": points[60:], "yq": labels[60:]}
    hot = np.random.default_rng(1).random((60, 5)) < 0.3
    arrays |= {"c": np.arange(60) // 6 % 3, "cq": np.arange(20) % 3, "hot": hot}
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    return arrays


def test_classes_of_the_training_are_told(data: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is evaluated on the folder that it was trained on."""
    split = Split(data["y"], [""] * 60, unread, [f"class {i}" for i in range(6)])
    for trained, told in ((["class 1", "class 5", "other"], True), (["other"], False)):
        model: Any = SimpleNamespace(embed_split=lambda split: data["x"], training_classes=lambda names=trained: names)
        settings = labelled_embeddings.Settings(ks=(1,), metric="cosine", clustering=False)
        results = labelled_embeddings.evaluate_images(model, {"test": split}, settings)
        assert results.get("training_classes") == (2 if told else None)
        labelled_embeddings.print_results(results | {"seconds": 0.0})
        said = " ".join("".join(capsys.readouterr()).split())
        assert ("the names of 2 of 6 classes are those of classes that the model" in said) == told


@pytest.fixture
def evaluated(execute: Execute) -> Evaluated:
    """Runs the command, which must succeed: what it writes and what it prints."""

    def run(*options: str) -> tuple[dict[str, Any], str]:
        code, out, err = execute(evaluate, *options, "--output=results.json")
        assert (code, err) == (0, "")
        return json.loads(Path("results.json").read_text()), out

    return run


def check(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """All expected metrics were found."""
    assert {key: found[key] for key in expected} == expected


def test_a_distance_of_ones_own(evaluated: Evaluated, data: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its import path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("mine.py").write_text(
        "import jax.numpy as jnp\ndef d(a, b):\n    return jnp.abs(a[:, None] - b[None]).sum(2)\n"
    )
    options = (*PAIR, "--no_clustering", "--ks=1")
    found, _ = evaluated(*options, "--metric=mine.d")
    x, y = data["x"], data["y"]
    distances = np.abs(x[:, None] - x).sum(axis=2) + 1e9 * np.eye(60)
    assert found["recall@1"] == np.mean(y[distances.argmin(axis=1)] == y)
    assert "ranking by mine.d" in found["protocol"]
    sys.modules.pop("mine")


def test_labels_of_every_kind(evaluated: Evaluated, data: Arrays) -> None:
    """Numbers, and names in arrays, lines and lists, in other encodings, forms of Unicode and with
    spaces around them, give the same results; near-equal names are named."""
    plain = [f"grün {label}" for label in data["y"].tolist()]
    names = [f" {n.replace('ü', 'u' + chr(0x308))}\t" if i % 2 else n for i, n in enumerate(plain)]
    text = "".join(f"{name}\n" for name in names)
    Path("names.txt").write_text(text, encoding="utf-8")
    Path("wide.txt").write_text("\r\n".join(plain), encoding="utf-16", newline="")
    Path("names.tsv").write_text("".join(f"{n.strip()} \n" for n in names), encoding="utf-8")
    np.save("names", names)
    Path("names.npy").rename("NAMES.NPY")
    options = ("--no_clustering", "--ks=1,5")
    expected, results = metrics.retrieval(data["x"], data["y"], ks=(1, 5)), []
    for file in ("y.npy", "names.txt", "wide.txt", "names.tsv", "NAMES.NPY"):
        result, out = evaluated(PAIR[0], f"--labels={file}", *options)
        if file != "names.tsv":  # several classes a row have other standard errors
            check(result, expected)
            results.append({k: v for k, v in result.items() if k not in ("labels", "seconds")})
        assert result["recall@1"] == expected["recall@1"]
        assert (result["rows"], result["columns"], result["classes"]) == (60, 8, 6)
        for words in ("MRR", "MAP@R", "R@5", f"{100 * expected['map@r']:.2f}"):
            assert words in out
        assert "near-equal" not in out
    assert all(result == results[0] for result in results)
    Path("names.txt").write_text(text.replace("grün 0", "grün_0", 1), encoding="utf-8")
    result, out = evaluated(PAIR[0], "--labels=names.txt", *options)
    assert result["classes"] == 7
    names_of_both = "'grün 0' and 'grün_0'"
    assert f"near-equal names count as different classes: {names_of_both}" in out
    result, out = evaluated(*PAIR)
    recalls = [key for key in result if key.startswith("recall") and "stderr" not in key]
    assert (recalls[-1], "NMI" in out) == ("recall@10", True)  # of 59 rows


def test_queries_and_gallery(evaluated: Evaluated, data: Arrays) -> None:
    result, out = evaluated(*PAIR, *QUERIES, "--ks=1,20", "--metric=euclidean", "--no_clustering", "--quiet")
    x, y, xq, yq = (data[name] for name in ("x", "y", "xq", "yq"))
    check(result, metrics.retrieval(xq, yq, ks=(1, 20), metric="euclidean", gallery=x, gallery_labels=y))
    assert "separate gallery" in result["protocol"]
    assert "nmi" not in result
    assert "candidates" not in out


def test_lone_queries(evaluated: Evaluated, data: Arrays) -> None:
    x, y = data["x"], data["y"]
    y[:3] = [7, 8, 9]
    np.save("y.npy", y)
    result, out = evaluated(*PAIR, "--lone_queries=omit", "--rerank", "--no_clustering", "--ks=1")
    expected = metrics.retrieval(x, y, ks=(1,), lone_queries="omit")
    check(result, expected)
    assert f"{100 * expected['recall@1']:.2f}" in out
    _, indices = reranking.search(x, x, 9, exclude_self=True)
    check(result["reranked"], metrics.of_ranked_lists(indices, y, ks=(1,), lone_queries="omit"))
    for text in ("3 queries have no relevant row", "without a relevant row left out"):
        assert text in out


def test_reranking(evaluated: Evaluated, data: Arrays) -> None:
    """With a gallery; `test_lone_queries` has none."""
    x, y, xq, yq = (data[name] for name in ("x", "y", "xq", "yq"))
    result, out = evaluated(*PAIR, *QUERIES, "--no_clustering", "--ks=1,5", "--rerank")
    _, indices = reranking.search(xq, x, 10)
    expected = metrics.of_ranked_lists(indices, yq, y, ks=(1, 5))
    check(result["reranked"], expected)
    assert expected["map@r"] != result["map@r"]
    assert f"{100 * expected['map@r']:.2f}" in out
    assert result["reranked"]["protocol"].startswith("reranked")
    assert result["reranked"]["protocol"] in out
    assert f"{100 * result['map@r']:.2f}" in out
    assert "queries and gallery together" in result["reranked"]["protocol"]


def test_reranking_by_the_paper_protocol(evaluated: Evaluated, data: Arrays) -> None:
    """Without duplicates, dropping the first neighbour is the same as excluding the query."""
    options = (*PAIR, "--no_clustering", "--rerank")
    clean, paper = (evaluated(*options, f"--protocol={name}")[0]["reranked"] for name in ("clean", "paper"))
    assert clean == paper
    assert "recall@10" in clean


def test_groups(evaluated: Evaluated, data: Arrays) -> None:
    given = (*PAIR, "--groups=c.npy", "--ks=1,5", "--no_clustering")
    x, y, xq, yq, c, cq = (data[name] for name in ("x", "y", "xq", "yq", "c", "cq"))
    gallery = {"gallery": x, "gallery_labels": y, "groups": cq, "gallery_groups": c}
    for options, expected in (
        (given, metrics.retrieval(x, y, ks=(1, 5), groups=c)),
        ((*given, *QUERIES, "--query_groups=cq.npy"), metrics.retrieval(xq, yq, ks=(1, 5), **gallery)),
    ):
        found, _ = evaluated(*options)
        check(found, expected)
        assert "relevant rows of the query's group excluded" in found["protocol"]


def test_several_classes(evaluated: Evaluated, data: Arrays) -> None:
    lines = ["\t".join(f"class {c}" for c in np.flatnonzero(row)) for row in data["hot"]]
    Path("classes.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for file in ("hot.npy", "classes.tsv"):
        found, out = evaluated(PAIR[0], f"--labels={file}", "--ks=1,5")
        assert "60 rows, 5 classes" in out
        check(found, metrics.retrieval(data["x"], data["hot"], ks=(1, 5)))
