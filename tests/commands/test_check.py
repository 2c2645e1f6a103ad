"""`dml-jax check`: the guide's plug-ins pass, and each kind of mistake is named with its line and
its remedy."""

import dataclasses
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from dml_jax.commands import check, cli
from dml_jax.config import Data, Evaluation, Train, fields
from dml_jax.errors import ConfigError
from dml_jax.lab import conformance, plugins
from dml_jax.methods import baseline

ROOT = Path(__file__).parents[2]
PLUGINS = {
    "loss.attraction": "loss",
    "distance.poincare": "distance",
    "sampler.one_against_many": "sampler",
    "optimizer.lion": "optimizer",
    "metric.last_hit": "metric",
    "refine.expand": "refine",
    "method": "method",
    "network": "backbone",
    "photos": "data",
    "relation.shared_tags": "relation",
    "tagged": "data",
    "sentences": "data",
}
OTHER_FILES = {  # of tests/plugins: (the only plug-in in it, its kind), or None
    "comparison": None, "experiment": None, "graded": None, "own_loop": None, "text": None,
    "two_towers": "method", "text_encoder": "backbone",
}  # fmt: skip
MISTAKES = {
    "def a(embeddings, labels):\n    return jnp.sqrt(((embeddings[:, None] - embeddings[None]) ** "
    "2).sum(2)).mean()": ["scalar, finite", "gradient", *conformance.DEGENERATE, "bfloat16"],
    "def a(embeddings, labels):\n    return embeddings.sum(axis=1)": [
        "scalar, finite",
        "order of the rows",
        *conformance.DEGENERATE,
        "bfloat16",
    ],
    "def a(embeddings, labels):\n    return (jnp.arange(len(labels)) * embeddings[:, 0]).sum()": [
        "order of the rows",
        "bfloat16",
    ],
    "def a(embeddings, labels):\n    same = labels[:, None] == labels[None] - "
    "jnp.eye(len(labels))\n"
    "    return (embeddings @ embeddings.T * same).sum() / same.sum()": [
        "every image its own class",
        "bfloat16",
    ],
    "def a(embeddings, labels):\n    return ((2 * jax.lax.stop_gradient(embeddings) - embeddings) "
    "** 2).sum()": ["gradient", "bfloat16"],
    "def a(x, y):\n    return jnp.abs(x[:, None] - y[None]).sum(2) * x[:, :1]": [
        "finite, symmetric"
    ],
    "def a(x, y):\n    return ((x[:, None] - y[None]) ** 2).sum(2) / x.std()": [
        "pairs of rows",
        "finite, symmetric",
        "gradient",
    ],
    "calls = []\ndef a(labels, batch_size, images_per_class, seed):\n    def batch(step):\n       "
    " calls.append(step)\n"
    "        return np.arange(len(calls), len(calls) + batch_size) % 60\n"
    "    return samplers.from_batches(batch, 5)": ["a function of seed and step"],
    "def a(weight_decay):\n    return optax.scale(-1.0)": ["descends", "weight decay"],
    "def a(hits):\n    return np.flatnonzero(hits)": ["finite numbers"],
    "def a(names, others):\n    return np.array([[len(names)] * len(others)] * len(names))": [
        "weights"
    ],
    "def a(names, others):\n    return -1.0 * (names[:, None] == others[None])": ["weights"],
    "def a(queries, gallery):\n    queries *= 2\n    return queries": ["queries"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(("name", "kind"), PLUGINS.items())
def test_the_plugins_of_the_guide_pass(
    name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"tests.plugins.{name}"
    assert plugins.find_plugins(path) == [(path, kind)]
    assert plugins.find_plugins(f"tests.plugins.{name.partition('.')[0]}") == [(path, kind)]
    check.execute([path, "--alone"])
    out = capsys.readouterr().out
    assert "passed" in out
    assert "failed " not in out


def test_a_network_for_other_arrays_than_images() -> None:
    """It is examined with the arrays of the data set that is named, and the other way round."""
    network, data = (f"tests.plugins.{name}" for name in ("text_encoder", "sentences"))
    assert [plugins.find_plugins(path)[0][1] for path in (network, data)] == ["backbone", "data"]
    of_images = conformance.check(network, "backbone", {}, None)[1]
    assert of_images.result == "failed"
    assert of_images.remedy.endswith("needs --config.data.name, a data set of them")
    of_tokens = conformance.check(network, "backbone", {"data.name": data}, None)[1]
    assert (of_tokens.result, of_tokens.text) == ("passed", "of int32 [12]")
    plugin = conformance.Plugin(data, "data", {"backbone.name": network, "backbone.width": "8"})
    config = conformance.configuration(plugin)
    assert (config.data.name, config.backbone.name, config.backbone.width) == (data, network, 8)


def test_every_file_of_the_plugins_is_recognised() -> None:
    files = {
        path.stem
        for path in (ROOT / "tests/plugins").glob("*.py")
        if not path.stem.startswith(("_", "test_"))
    }
    assert files == {name.partition(".")[0] for name in PLUGINS} | OTHER_FILES.keys()
    for name, kind in OTHER_FILES.items():
        if kind:
            assert plugins.find_plugins(f"tests.plugins.{name}") == [
                (f"tests.plugins.{name}", kind)
            ]
        else:
            with pytest.raises(ConfigError, match="is not a plug-in; "):
                plugins.find_plugins(f"tests.plugins.{name}")


@pytest.mark.parametrize(
    ("signature", "kind"),
    [
        ("x, labels, *, scale=1.0", "loss"),
        ("names, others, *, depth=2", "relation"),
        ("labels, batch_size, *, images_per_class=4, seed=0", "sampler"),
        ("labels", None),
        ("x, y, p=2", "distance"),
        ("x", None),
        ("", None),
    ],
)
def test_kinds_are_known_by_the_arguments(signature: str, kind: str | None) -> None:
    function = eval(f"lambda {signature}: 0")
    assert plugins.kind_of(function) == kind


def test_keys_are_those_that_options_declare_and_the_guide_names() -> None:
    sections = {"data": Data, "train": Train, "evaluation": Evaluation, "method": baseline.Config}
    declared = {
        f"{name}.{option.name}"
        for name, kind in sections.items()
        for option in dataclasses.fields(kind)
        if any(map(fields.names_code, fields.declared(kind, option.name)))
    }
    assert declared == {kind.key for kind in plugins.FUNCTIONS.values()}
    guide = (ROOT / "docs/guides/own_parts.md").read_text()
    assert all(f"| `{kind.key}` | `{kind.call}`" in guide for kind in plugins.FUNCTIONS.values())


def test_an_optimizer_that_finds_its_own_rate(folder: Path) -> None:
    """Prodigy begins a million times too slowly."""
    (folder / "mine.py").write_text(
        "import optax\n\ndef a(weight_decay):\n"
        "    complete = optax.contrib.prodigy(1.0, weight_decay=weight_decay)\n"
        "    return optax.chain(complete, optax.scale(-1.0))\n"
    )
    ((path, kind),) = plugins.find_plugins("mine")
    outcomes = conformance.check(path, kind, {}, None)
    assert {one.check: one.result for one in outcomes}["descends"] == "passed"


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes(code: str, folder: Path) -> None:
    imports = (
        "import jax\nimport jax.numpy as jnp\nimport numpy as np\nimport optax\nfrom "
        "dml_jax.data "
        "import "
        "samplers\n"
    )
    (folder / "mine.py").write_text(imports + code)
    ((path, kind),) = plugins.find_plugins("mine")
    outcomes = conformance.check(path, kind, {}, None)
    assert [one.check for one in outcomes if one.result == "failed"] == MISTAKES[code]
    for one in outcomes:
        assert one.result != "failed" or (
            one.remedy and one.where.startswith(str(folder / "mine.py"))
        )


def test_a_line_and_the_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text("def a(hits):\n    return 1 / 0\n")
    monkeypatch.setenv("HOME", str(folder))
    seen: list[Path | None] = []
    examine = conformance.check
    monkeypatch.setattr(conformance, "check", lambda *x: (seen.append(x[-1]), examine(*x))[1])
    assert cli.exit_code(lambda: check.execute(["mine.a", "--workdir=~/runs"])) == 2
    assert seen == [folder / "runs"]
    shown = capsys.readouterr()
    assert "ZeroDivisionError: division by zero" in shown.out
    assert "mine.py:2" in shown.out.replace("\n", "").replace(" ", "")
    assert "until the checks above pass" in shown.out
    assert shown.err == "error: mine.a: 1 check failed\n"


def test_pytorch_metric_learning_is_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in with two losses, for which tensors are NumPy arrays."""
    library = types.ModuleType("pytorch_metric_learning")
    library.__spec__ = importlib.machinery.ModuleSpec(library.__name__, None)
    library.losses = types.SimpleNamespace(
        TotalLoss=lambda: lambda x, _: x.sum(), TwiceLoss=lambda: lambda x, _: 2.0
    )
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(tensor=np.asarray))
    code = "def {}(embeddings, labels):\n    return at_least_float32(embeddings).sum()\n"
    losses = "".join(code.format(name) for name in ("total", "twice", "other"))
    (folder / "mine.py").write_text(f"from dml_jax.numerics import at_least_float32\n{losses}")
    total, twice, other = (
        conformance.check(*each, {}, None)[-1] for each in plugins.find_plugins("mine")
    )
    assert total.text.startswith("equals TotalLoss to ")
    assert twice.text.endswith("and TwiceLoss with its defaults gives 2")
    assert other.text == "it has no otherloss"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nowhere.losses"],
            r"MODULE='nowhere\.losses': cannot be imported \(ModuleNotFoundError.*PYTHONPATH",
        ),
        (["mine.brokn"], r"mine\.brokn: mine has no brokn; did you mean broken\?"),
        (["mine.broken"], r"mine\.broken: is not a plug-in; a module defines build or load"),
    ],
)
def test_bad_input(arguments: list[str], message: str, folder: Path) -> None:
    (folder / "mine.py").write_text("def broken():\n    pass\n")
    with pytest.raises(ConfigError, match=message):
        check.execute(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUGINS)
def test_training(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check.execute([f"tests.plugins.{name}", f"--workdir={tmp_path}"])
    out = capsys.readouterr().out
    for one in ("kill and resume", "evaluate", "refine", "export", "load", "8 devices"):
        result = "skipped" if one == "refine" and name != "refine.expand" else "passed"
        assert any(one in line and result in line for line in out.splitlines())
