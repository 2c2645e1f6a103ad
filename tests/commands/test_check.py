"""`dml-jax check`: the guide's plug-ins pass, and each kind of mistake is named with its file."""

import dataclasses
import sys
from pathlib import Path

import pytest

from dml_jax.commands import check
from dml_jax.config import Data, Evaluation, Train, fields
from dml_jax.errors import ConfigError
from dml_jax.lab import conformance, plugins
from dml_jax.methods import baseline
from tests.commands.conftest import Execute

ROOT = Path(__file__).parents[2]
PLUGINS = {  # of tests/plugins, and their kinds
    "loss.attraction": "loss", "distance.poincare": "distance", "sampler.one_against_many": "sampler",
    "optimizer.lion": "optimizer", "schedule.restarts": "schedule", "metric.last_hit": "metric",
    "refine.expand": "refine", "method": "method", "network": "backbone", "photos": "data",
    "relation.shared_tags": "relation", "tagged": "data", "sentences": "data",
}  # fmt: skip
OTHER_FILES = {  # of tests/plugins: the kind of the only plug-in in it, or None
    "comparison": None, "experiment": None, "graded": None, "own_loop": None, "text": None,
    "two_towers": "method", "text_encoder": "backbone",
}  # fmt: skip
X = "    x = embeddings.astype(jnp.promote_types(embeddings.dtype, jnp.float32))\n"
SQUARES = X + "    d = ((x[:, None] - x[None]) ** 2).sum(2)\n"
SAME = "    same = labels[:, None] == labels[None]\n"
ATTRACTION = "    return jnp.where(same, d, jnp.exp(-d)).mean()"
LOSS = f"def a(embeddings, labels):\n{SQUARES}{SAME}"
SAMPLER = "def a(labels, batch_size, images_per_class, seed):\n    n = len(labels)\n"
BATCHES = "    return samplers.from_batches(batch, 30)"
RANDOM = "        rng = np.random.default_rng((seed, step))\n"
SEPARATES, GRADIENT, TWICE = "minimising it", "the gradient equals", "the same result when"
IMAGES = "images_per_class has an effect"
EARLIER, EPOCH = "independent of earlier batches", "two epochs contain most images"
BATCH = f"{SAMPLER}    def batch(step):\n{RANDOM}        return "
# By code: the beginnings of the rules that fail, or of the error.
MISTAKES = {
    # losses
    f"{LOSS}    return jnp.where(same, jnp.exp(-d), d).mean()": (SEPARATES,),
    f"{LOSS}    d = jnp.where(same, jax.lax.stop_gradient(d), d)\n{ATTRACTION}": (GRADIENT, SEPARATES),
    f"{LOSS}    return jnp.where(same, d, jnp.exp(-d))[:64].mean()": ("rows matter",),
    f"{LOSS}    d = jnp.sqrt(d)\n{ATTRACTION}": (*("finite value",) * 5, GRADIENT, SEPARATES),
    f"def a(embeddings, labels):\n{X}    return x.sum(axis=1)": ("returns a scalar", "TypeError"),
    f"calls = []\n{LOSS}    calls.append(1)\n    d = d * len(calls)\n{ATTRACTION}": (TWICE, "rows matter"),
    "from dml_jax.config.fields import Positive\n"
    f"def a(embeddings, labels, *, scale: Positive = -1.0):\n{SQUARES}{SAME}    d = d * scale\n{ATTRACTION}": (
        "default options.scale",
    ),
    f"def a(embeddings, labels, *, scale=2.0, k=2):\n{SQUARES}{SAME}{ATTRACTION}": ("scale has", "k has"),
    f"def a(embeddings, labels, *, key):\n{SQUARES}{SAME}{ATTRACTION}": ("key has",),
    f"def a(embeddings, labels, *, key):\n{SQUARES}{SAME}    d *= jax.random.bernoulli(key, 0.5, d.shape)\n"
    f"    d += jax.random.uniform(key, d.shape)\n{ATTRACTION}": ("KeyReuseError",),
    f"def a(embeddings, labels, *, candidates=None):\n{SQUARES}{SAME}{ATTRACTION}": (
        "candidates has", "their relation has",
    ),
    "from dml_jax.losses.pairwise import WeightedCandidates\n"
    f"def a(embeddings, labels, *, candidates: WeightedCandidates = None):\n{X}{SAME}"
    "    y = x if candidates is None else candidates.embeddings\n"
    "    same = same if candidates is None else candidates[1] > 0\n"
    f"    d = ((x[:, None] - y[None]) ** 2).sum(2)\n{ATTRACTION}": ("weights of pairs has",),
    f"def a(embeddings, labels, *, weights=None):\n{SQUARES}{SAME}{ATTRACTION}": ("weights of",),
    f"def a(embeddings, labels):\n    x = embeddings\n{SQUARES.removeprefix(X)}{SAME}"
    "    return jnp.where(same, d, 1.0).mean()": ("float32 for",),
    # distances
    "def a(x, y):\n    return jnp.abs(x[:, None] - y[None]).sum(2) * x[:, :1]": ("mine.a must",),
    "def a(x, y):\n    return ((x[:, None] - y[None]) ** 2).sum(2) / x.std()": ("compares rows", "finite value"),
    "def a(x, y):\n    return jnp.ones((len(x), len(y)))": ("d(x, x) < d(x, y)",),
    "def a(x, y):\n    return x @ y.T": ("d(x, x) <=", "d(x, x) <"),
    "def a(x, y):\n    return ((x[:, None] - y[None]) ** 2).sum(2) + np.random.rand()": (TWICE,),
    # samplers
    f"calls = []\n{SAMPLER}    def batch(step):\n        calls.append(step)\n"
    f"        return np.arange(len(calls), len(calls) + batch_size) % n\n{BATCHES}": (EARLIER, EPOCH),
    f"{BATCH}np.random.default_rng(seed).integers(0, n, batch_size)\n{BATCHES}": (
        "the step", IMAGES, "an epoch", EPOCH,
    ),
    f"{BATCH}rng.choice(np.flatnonzero(labels == step % 10), batch_size)\n{BATCHES}": (IMAGES, "most batches"),
    f"{BATCH}rng.integers(n, size=8)\n{BATCHES}": ("batches are int64 [8]",),
    # the others
    "def a(weight_decay):\n    return optax.scale(-1.0)": ("steps against", "weight_decay shrinks"),
    "def a(weight_decay):\n    still = optax.masked(optax.set_to_zero(), {'kernel': True, 'bias': False})\n"
    "    return optax.chain(still, optax.add_decayed_weights(weight_decay))": ("steps against",),
    "def a(steps):\n    return lambda step: 1.0 - step / steps": ("factors are",),
    "def a(steps):\n    return lambda step: 1.0 + 0 * step": ("the step has",),
    "def a(hits):\n    return np.flatnonzero(hits)": ("is array",),
    "def a(hits):\n    return np.random.rand()": (TWICE,),
    "def a(hits):\n    return 0.5": ("hits at the first",),
    "def a(hits, *, grades):\n    return np.argmax(hits)": ("grades have",),
    "def a(names, others):\n    return np.array([[len(names)] * len(others)] * len(names))": (
        "independent of other names",
    ),
    "def a(names, others):\n    return -1.0 * (names[:, None] == others[None])": ("data.relation",),
    "def a(names, others):\n    return 1.0 * (names[:, None] == others[None])": ("classes of the",),
    "def a(names, others):\n    return 1.0 * (names[:, None] != others[None])": ("each class",),
    "def a(queries, gallery):\n    queries *= 2\n    return queries": (TWICE,),
    "def a(queries, gallery):\n    return queries[::-1]": ("queries of",),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(("name", "kind"), PLUGINS.items())
def test_the_plugins_of_the_guide_pass(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    of_images, of_tokens = (
        {one.result for one in conformance.check(network, "backbone", given, None)}
        for given in ({}, {"data.name": data})
    )
    assert "failed" in of_images
    assert of_tokens == {"passed"}
    plugin = conformance.Plugin(data, "data", {"backbone.name": network, "backbone.width": "8"})
    config = conformance.configuration(plugin)
    assert (config.data.name, config.backbone.name, config.backbone.width) == (data, network, 8)


def test_every_file_of_the_plugins_is_recognised() -> None:
    files = {path.stem for path in (ROOT / "tests/plugins").glob("*.py") if not path.stem.startswith(("_", "test_"))}
    assert files == {name.partition(".")[0] for name in PLUGINS} | OTHER_FILES.keys()
    for name, kind in OTHER_FILES.items():
        if kind:
            assert plugins.find_plugins(f"tests.plugins.{name}") == [(f"tests.plugins.{name}", kind)]
        else:
            with pytest.raises(ConfigError, match="is not recognised as a plug-in; "):
                plugins.find_plugins(f"tests.plugins.{name}")


SIGNATURES = {
    "x, labels, *, scale=1.0": "loss", "labels, embeddings": "loss", "x, y, p=2": "distance",
    "labels, batch_size, *, images_per_class=4, seed=0": "sampler", "names, others, *, depth=2": "relation",
    "labels": None, "x": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize(("signature", "kind"), SIGNATURES.items())
def test_kinds_are_known_by_the_arguments(signature: str, kind: str | None) -> None:
    assert plugins.kind_of(eval(f"lambda {signature}: 0")) == kind


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
    assert {one.check[:13]: one.result for one in outcomes}["steps against"] == "passed"


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes(code: str, folder: Path) -> None:
    imports = "import jax\nimport jax.numpy as jnp\nimport numpy as np\nimport optax\n"
    (folder / "mine.py").write_text(f"{imports}from dml_jax.data import samplers\n{code}")
    ((path, kind),) = plugins.find_plugins("mine")
    outcomes = conformance.check(path, kind, {}, None)
    failed = [one for one in outcomes if one.result == "failed"]
    names = [one.text if one.check == "no error" else one.check for one in failed]
    assert len(names) == len(MISTAKES[code]), names
    assert all(map(str.startswith, names, MISTAKES[code])), names
    assert all(one.where.startswith(str(folder / "mine.py")) for one in failed)


def test_a_line_and_the_exit_code(folder: Path, execute: Execute) -> None:
    (folder / "mine.py").write_text("def a(hits):\n    return 1 / 0\n")
    code, out, err = execute(check, "mine.a", "--alone")
    assert (code, err) == (2, "error: mine.a: 1 check failed\n")
    assert "ZeroDivisionError: division by zero" in out
    assert "mine.py:2" in out.replace("\n", "").replace(" ", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUGINS)
def test_training(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check.execute([f"tests.plugins.{name}", f"--workdir={tmp_path}"])
    out = capsys.readouterr().out
    assert "failed " not in out
    for one in ("trains: loss", "killed and resumed", "two devices"):
        assert any(one in line and "passed" in line for line in out.splitlines())
