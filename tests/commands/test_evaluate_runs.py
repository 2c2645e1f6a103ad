"""`dml-jax evaluate --model=RUN,RUN`: metrics of stored embeddings against NumPy, and error messages."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from dml_jax import seal, table
from dml_jax.commands import cli, evaluate
from dml_jax.evaluation import protocol
from tests.commands.members import ROWS, member
from tests.plugins.relation import shared_tags


def run(runs: list[Path], *options: str) -> int:
    return cli.exit_code(lambda: evaluate.execute([f"--model={','.join(map(str, runs))}", "--quiet", *options]))


def recall(cosine: np.ndarray, labels: np.ndarray, own: np.ndarray) -> float:
    return float(np.mean(own[np.argmax(cosine, axis=1)] == labels))


def test_against_numpy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shops = [f"shop {i}" for i in range(ROWS)]
    points = [member(tmp_path / name, seed, 4 + seed, metadata={"shop": shops}) for seed, name in enumerate("abc")]
    runs, output = [tmp_path / name for name in "abc"], tmp_path / "abc.json"
    assert run(runs, f"--output={output}", f"--export={tmp_path / 'abc'}") == 0
    labels = np.arange(ROWS) % 4
    cosines = [p.astype(np.float64) @ p.T for p in points]
    expected = []
    for cosine in (*cosines, np.mean(cosines, axis=0)):
        outside = cosine.copy()
        np.fill_diagonal(outside, -2)
        expected.append(recall(outside, labels, labels))
    for results in (json.loads(path.read_text()) for path in (output, tmp_path / "abc" / "results.json")):
        found = [each["recall@1"] for each in (*results["members"].values(), results)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert list(results["members"]) == [str(path) for path in runs]
    assert run(runs, f"--export={tmp_path / 'abc'}") == 0  # replaces its own output
    assert "embeddings/test" in seal.read(tmp_path / "abc", "evaluation").parts
    written = table.read(tmp_path / "abc" / "embeddings" / "test")
    assert written.embeddings.shape == (ROWS, 4 + 5 + 6)
    np.testing.assert_allclose(written.embeddings @ written.embeddings.T, np.mean(cosines, axis=0), atol=1e-6)
    np.testing.assert_array_equal(written.labels, labels)
    assert written.metadata == {"shop": shops}
    assert written.ids == [f"test{i}.png" for i in range(ROWS)]
    members = written.seal.about["members"]
    assert [each["identity"]["description"]["step"] for each in members] == [0, 1, 2]
    out = capsys.readouterr().out
    assert "combined" in out
    assert f"{100 * expected[-1]:.1f}" in out


@pytest.mark.parametrize("lone_queries", ["", "miss", "omit"])
def test_two_runs_are_compared_by_query(lone_queries: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paired test of both models' queries, with classes as the units. A query without a
    relevant row counts as a miss of both models, or not at all."""
    labels, hits = np.arange(ROWS) % 4, []
    labels[-1] = 4 if lone_queries else 3
    for seed, name in enumerate("ab"):
        settings = {"lone_queries": lone_queries or "miss"}
        points = member(tmp_path / name, seed, 4, labels=labels, evaluation=settings)
        cosine = points.astype(np.float64) @ points.T
        np.fill_diagonal(cosine, -2)
        hits.append(labels[cosine.argmax(axis=1)] == labels)
    assert run([tmp_path / "a", tmp_path / "b"], f"--output={tmp_path / 'ab.json'}") == 0
    asked = slice(-1 if lone_queries == "omit" else None)
    difference, classes = (hits[1] * 1.0 - hits[0])[asked], labels[asked]
    count = len(np.unique(classes))
    deviations = difference - difference.mean()
    sums = [np.sum(deviations[classes == c]) for c in range(count)]
    error = np.sqrt(count / (count - 1) * np.square(sums).sum()) / len(difference)
    paired = json.loads((tmp_path / "ab.json").read_text())["paired"]
    assert paired["recall@1"]["queries"] == len(difference)
    assert paired["recall@1"]["mean"] == pytest.approx(difference.mean())
    assert paired["recall@1"]["stderr"] == pytest.approx(error)
    assert {"map@r", "mrr", "r_precision"} <= paired.keys()
    assert f"second less first, R@1: {100 * difference.mean():+.2f} (" in capsys.readouterr().out


def test_grades_of_a_relation(tmp_path: Path) -> None:
    """The relation of class names comes from the command line or the run's own configuration."""
    names = [["red round", "red square", "blue round", "grey"][i % 4] for i in range(ROWS)]
    points = member(tmp_path / "a", 0, 4, metadata={"class_name": names})
    output, path = tmp_path / "a.json", "tests.plugins.relation.shared_tags"
    found = []
    for options in ((f"--relation={path}",), ()):
        assert run([tmp_path / "a"], *options, f"--output={output}") == 0
        found.append(json.loads(output.read_text()))
        facts = json.loads((tmp_path / "a/config.json").read_text())
        facts["config"]["data"] = {"relation": path}
        (tmp_path / "a/config.json").write_text(json.dumps(facts))
    assert found[0]["ndcg@2"] == found[1]["ndcg@2"]
    assert f"relevance by {path}, above 0" in found[0]["protocol"]
    grades = shared_tags(names, names)
    cosine = points.astype(np.float64) @ points.T
    rows = ~np.eye(ROWS, dtype=bool)
    best = [ndcg_score([g[r]], [c[r]], k=2) for g, c, r in zip(grades, cosine, rows, strict=True)]
    assert found[0]["ndcg@2"] == pytest.approx(np.mean(best), abs=1e-6)


def test_one_run(tmp_path: Path) -> None:
    """With the settings of the run, unless the command line gives others."""
    settings = {"lone_queries": "omit", "cluster": True, "nmi_average": "geometric"}
    points = member(tmp_path / "a", 0, 6, evaluation=settings)
    labels, output = np.arange(ROWS) % 4, tmp_path / "a.json"
    for options, ks in (((), (1, 2)), (("--ks=3",), (3,))):
        assert run([tmp_path / "a"], *options, f"--output={output}") == 0
        results = json.loads(output.read_text())
        expected = protocol.evaluate(points, labels, ks=ks, lone_queries="omit", average="geometric")
        assert {key: results[key] for key in expected} == expected
        assert (results["model"], results["selected"]) == (str(tmp_path / "a"), "last")
        assert "members" not in results
        assert "without a relevant row left out" in results["protocol"]
        assert "NMI (geometric mean of entropies)" in results["protocol"]


def test_weights(tmp_path: Path) -> None:
    """The cosine is the mean of the members' cosines, weighted by the squares; hits are kept by query."""
    first, second = (member(tmp_path / name, seed, 4) for seed, name in enumerate("ab"))
    output = tmp_path / "ab"
    assert run([tmp_path / "a", tmp_path / "b"], "--weights=1,2", f"--export={output}") == 0
    rows = table.read(output / "embeddings" / "test").embeddings
    cosine = (first @ first.T + 4 * second @ second.T) / 5
    np.testing.assert_allclose(rows @ rows.T, cosine, atol=1e-6)
    labels = np.arange(ROWS) % 4
    np.fill_diagonal(cosine, -2)
    with np.load(output / "queries.npz") as kept:
        np.testing.assert_array_equal(kept["rank"] == 1, labels[np.argmax(cosine, axis=1)] == labels)


def test_queries_and_gallery(tmp_path: Path) -> None:
    queries = [member(tmp_path / name, seed, 6) for seed, name in enumerate("ab")]
    gallery = [member(tmp_path / name, seed + 5, 6, "gallery") for seed, name in enumerate("ab")]
    assert run([tmp_path / "a", tmp_path / "b"], f"--export={tmp_path / 'ab'}") == 0
    labels = np.arange(ROWS) % 4
    cosine = sum(q.astype(np.float64) @ g.T for q, g in zip(queries, gallery, strict=True))
    results = json.loads((tmp_path / "ab" / "results.json").read_text())
    np.testing.assert_allclose(results["recall@1"], recall(np.asarray(cosine), labels, labels), rtol=1e-9)
    assert (tmp_path / "ab" / "embeddings" / "gallery" / "manifest.json").is_file()


def test_selection_of_the_members(tmp_path: Path) -> None:
    """Stays known, as results of models that were selected on the test classes are optimistic."""
    member(tmp_path / "a", 0, 6, select="last")
    for select, model in (("test", "test"), ("validation", "last and validation")):
        member(tmp_path / "b", 1, 6, select=select)
        assert run([tmp_path / "a", tmp_path / "b"], f"--export={tmp_path / 'ab'}") == 0
        assert json.loads((tmp_path / "ab" / "results.json").read_text())["model"] == model
