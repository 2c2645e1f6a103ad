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


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Files here: 60 rows in 6 classes and 20 queries, with cameras, and with several classes per row."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    means, labels = rng.normal(size=(6, 8)), np.arange(80) % 6
    points = (means[labels] + rng.normal(size=(80, 8))).astype(np.float32)
    arrays = {"x": points[:60], "y": labels[:60], "xq": points[60:], "yq": labels[60:]}
    hot = np.random.default_rng(1).random((60, 5)) < 0.3
    arrays |= {"c": np.arange(60) // 6 % 3, "cq": np.arange(20) % 3, "hot": hot}
    arrays["lone"] = np.append([7, 8, 9], labels[3:60])
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    return SimpleNamespace(**arrays)


def test_classes_of_the_training_are_told(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is evaluated on the folder that it was trained on."""
    split = Split(data.y, [""] * 60, unread, [f"class {i}" for i in range(6)])
    for trained, told in ((["class 1", "class 5", "other"], True), (["other"], False)):
        model: Any = SimpleNamespace(embed_split=lambda split: data.x, training_classes=lambda names=trained: names)
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


def test_a_distance_of_ones_own(evaluated: Evaluated, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its import path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("mine.py").write_text(
        "import jax.numpy as jnp\ndef d(a, b):\n    return jnp.abs(a[:, None] - b[None]).sum(2)\n"
    )
    options = (*PAIR, "--no_clustering", "--ks=1")
    found, _ = evaluated(*options, "--metric=mine.d")
    x, y = data.x, data.y
    distances = np.abs(x[:, None] - x).sum(axis=2) + 1e9 * np.eye(60)
    assert found["recall@1"] == np.mean(y[distances.argmin(axis=1)] == y)
    assert "ranking by mine.d" in found["protocol"]
    sys.modules.pop("mine")


def test_labels_of_every_kind(evaluated: Evaluated, data: Any) -> None:
    """Numbers, and names in arrays, lines and lists, in other encodings, forms of Unicode and with
    spaces around them, give the same results; near-equal names are named."""
    plain = [f"grün {label}" for label in data.y.tolist()]
    names = [f" {n.replace('ü', 'u' + chr(0x308))}\t" if i % 2 else n for i, n in enumerate(plain)]
    text = "".join(f"{name}\n" for name in names)
    Path("names.txt").write_text(text, encoding="utf-8")
    Path("wide.txt").write_text("\r\n".join(plain), encoding="utf-16", newline="")
    Path("names.tsv").write_text("".join(f"{n.strip()} \n" for n in names), encoding="utf-8")
    np.save("names", names)
    Path("names.npy").rename("NAMES.NPY")
    options = ("--no_clustering", "--ks=1,5")
    expected, results = metrics.retrieval(data.x, data.y, ks=(1, 5)), []
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


def retrieval(d: Any, labels: np.ndarray, **options: Any) -> dict[str, Any]:
    return metrics.retrieval(d.x, labels, ks=(1, 5), **options)


def of_queries(d: Any, **options: Any) -> dict[str, Any]:
    return metrics.retrieval(d.xq, d.yq, ks=(1, 5), gallery=d.x, gallery_labels=d.y, **options)


# Options, the expected metrics, and words of the protocol.
RETRIEVAL = {
    "gallery": ((*PAIR, *QUERIES), of_queries, "separate gallery"),
    "distance": ((*PAIR, *QUERIES, "--metric=euclidean"), lambda d: of_queries(d, metric="euclidean"), "euclidean"),
    "lone": (
        (PAIR[0], "--labels=lone.npy", "--lone_queries=omit"),
        lambda d: retrieval(d, d.lone, lone_queries="omit"),
        "without a relevant row left out",
    ),
    "groups": (
        (*PAIR, "--groups=c.npy"),
        lambda d: retrieval(d, d.y, groups=d.c),
        "relevant rows of the query's group excluded",
    ),
    "groups of queries": (
        (*PAIR, "--groups=c.npy", *QUERIES, "--query_groups=cq.npy"),
        lambda d: of_queries(d, groups=d.cq, gallery_groups=d.c),
        "relevant rows of the query's group excluded",
    ),
    "several classes": ((PAIR[0], "--labels=hot.npy"), lambda d: retrieval(d, d.hot), ""),
    "several names": ((PAIR[0], "--labels=classes.tsv"), lambda d: retrieval(d, d.hot), ""),
}


@pytest.mark.parametrize("name", RETRIEVAL)
def test_retrieval(name: str, evaluated: Evaluated, data: Any) -> None:
    lines = ["\t".join(f"class {c}" for c in np.flatnonzero(row)) for row in data.hot]
    Path("classes.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options, expected, words = RETRIEVAL[name]
    found, out = evaluated(*options, "--ks=1,5", "--no_clustering")
    check(found, expected(data))
    assert words in found["protocol"]
    assert f"{100 * found['recall@1']:.2f}" in out
    assert "nmi" not in found
    assert ("3 queries have no relevant row" in out) == (name == "lone")


@pytest.mark.parametrize("separate", [False, True])
def test_reranking(separate: bool, evaluated: Evaluated, data: Any) -> None:
    """Among the other rows, of which three are alone in their classes, or in a gallery."""
    among = (*PAIR, *QUERIES) if separate else (PAIR[0], "--labels=lone.npy", "--lone_queries=omit")
    options = (*among, "--no_clustering", "--ks=1,5", "--rerank")
    result, out = evaluated(*options)
    queries = data.xq if separate else data.x
    _, indices = reranking.search(queries, data.x, 10 if separate else 9, exclude_self=not separate)
    labels = (data.yq, data.y) if separate else (data.lone,)
    expected = metrics.of_ranked_lists(indices, *labels, ks=(1, 5), lone_queries="miss" if separate else "omit")
    check(result["reranked"], expected)
    assert expected["map@r"] != result["map@r"]
    protocol = result["reranked"]["protocol"]
    assert ("queries and gallery together" in protocol) == separate
    for words in (protocol, f"{100 * expected['map@r']:.2f}", f"{100 * result['map@r']:.2f}"):
        assert words in out
    if not separate:  # without duplicates, dropping the first neighbour is the same as excluding the query
        paper = evaluated(*options, "--protocol=paper")[0]["reranked"]
        check(paper, expected)
