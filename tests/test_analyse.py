"""The command: what it writes for a run, and invalid input."""

import csv
import json
import re
import sys
from pathlib import Path

import jax
import pytest

from dml_jax import analyse, main
from dml_jax.analysis.findings import SUBJECTS
from tests.test_main import CACHE_OPTIONS, ROOT

TINY = (
    "--config.backbone.depths=(1,)", "--config.backbone.widths=(4,)", "--config.data.batch_size=16",
    "--config.train.steps=4", "--config.train.keep_every=2", "--config.train.log_every=2",
    "--config.evaluation.cluster=false", "--config.evaluation.controls=false", "--quiet",
)  # fmt: skip
CONFIG = """
from dataclasses import asdict
from configs import digits_hist
from dml_jax.config import Group, Train
from dml_jax.options.methods import mpn


def get_config():
    config = digits_hist.get_config()
    config.method = asdict(mpn.Config(embedding_dim=8, heads=2))
    config.train = asdict(Train(groups=dict.fromkeys(mpn.GROUPS, Group(1e-3)), steps=4))
    return config
"""
MADE = (
    "health", "overfitting", "retrieval", "worst_queries", "classes", "confused_classes", "distances", "calibration",
    "spectra", "geometry", "attention", "attention_node", "influence", "influence_means",
)  # fmt: skip


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of MPN on digits, of four steps."""
    directory = tmp_path_factory.mktemp("analyse")
    (directory / "tiny.py").write_text(CONFIG)
    kept = {key: jax.config.values[key] for key in CACHE_OPTIONS}
    path = [*sys.path]
    sys.path.insert(0, str(ROOT))
    main.execute([f"--config={directory / 'tiny.py'}", f"--workdir={directory / 'run'}", *TINY])
    sys.path[:] = path
    for key, value in kept.items():
        jax.config.update(key, value)
    return directory / "run"


def test_everything_of_a_run(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = ",".join(name for name in SUBJECTS if name not in ("tsne", "umap", "heat_maps"))  # slow, or of CRT
    analyse.execute([f"--workdir={workdir}", f"--what={what}", "--quiet"])
    files = {path.name for path in (workdir / "analysis").iterdir()}
    assert files >= {f"{name}.{kind}" for name in MADE for kind in ("png", "csv")}
    tables = {}
    for name in MADE:
        with (workdir / "analysis" / f"{name}.csv").open(newline="") as file:
            tables[name] = list(csv.DictReader(file))
    assert [row["step"] for row in tables["attention"]] == ["0", "0", "2", "2", "4", "4"]
    assert [(row["step"], row["classes"]) for row in tables["overfitting"]] == [
        (step, name) for step in "024" for name in ("train", "test")
    ]
    results = json.loads((workdir / "results.json").read_text())
    assert float(tables["overfitting"][-1]["recall@1"]) == pytest.approx(results["recall@1"])
    by_class = [(float(row["recall@1"]), int(row["queries"])) for row in tables["classes"]]
    assert sum(recall * count for recall, count in by_class) == pytest.approx(results["recall@1"] * 896, abs=1e-2)
    for scalar in ("density", "uniformity", "alignment", "effective_rank"):
        assert float(tables["geometry"][0][scalar]) == pytest.approx(results["geometry"][scalar], rel=1e-5)
    assert [row["step"] for row in tables["health"]] == ["2", "4"]
    report = (workdir / "report.html").read_text()
    assert '<meta name="viewport"' in report
    assert [name for name in re.findall("alt='(\\w+)'", report) if name in MADE] == list(MADE)
    assert all(f"href='analysis/{name}.csv'" in report for name in MADE)
    assert "Recall@1" in report
    assert "report: " in capsys.readouterr().out


def test_another_split_is_kept_beside(workdir: Path) -> None:
    analyse.execute([f"--workdir={workdir}", "--what=distances", "--split=train", "--quiet"])
    assert (workdir / "analysis" / "distances-train.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--workdir: missing"),
        (["--workdir={}/.."], "is not a work directory"),
        (["--workdir={}", "--what=atention"], "--what=atention: there is no such analysis; did you mean attention?"),
        (["--workdir={}", "--what=heat_maps"], "--what=heat_maps: method mpn has no prototypes on the feature map"),
        (["--workdir={}", "--split=tets"], "--split=tets: did you mean test?"),
        (["--workdir={}", "--split=validation"], "--split=validation: the run has none; give train or test"),
        (["--workdir={}", "--split=train", "--what=health"], "--split=train: health is not made by split"),
        (["--workdir={}", "--config.method.layers=2"], "--config.method.layers: belongs to the run; only data.path"),
        (["--workdir={}", "--checkpoint=3"], "--checkpoint=3: not in"),
    ],
)
def test_invalid_input(arguments: list[str], message: str, workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys_argv = ["dml_jax.analyse", *(argument.format(workdir) for argument in arguments)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", sys_argv)
        assert analyse.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
