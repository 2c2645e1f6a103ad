"""Which model is kept, by validation classes: training that hurts is not."""

import json
import shutil
import signal
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pyarrow import parquet

import dml_jax
from dml_jax import run, table
from dml_jax.commands import export
from dml_jax.config import Config, Data, Group, resolve
from dml_jax.console import Console
from dml_jax.data.formats import digits
from dml_jax.data.split import Split, together
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline, whitening
from dml_jax.train import experiment as experiments
from dml_jax.train import mixture, model, warm_start
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.embedding import Embedder
from dml_jax.train.mixture import Gain
from tests.hub import Hub
from tests.train.experiments import small, values

DEVICES = 1
pytestmark = pytest.mark.usefixtures("few_images", "patches")


def config(rate: float, **train: Any) -> Config:
    given = values(steps=4, select="mixture", optimizer="sgd", **train)
    method = baseline.make_config("proxy_anchor", embedding_dim=0, init="whitened")
    given["method"], given["data"]["validation_share"] = asdict(method), 0.4
    given["train"]["groups"] = {name: asdict(Group(rate)) for name in baseline.GROUPS}
    return resolve(given)


def train(directory: Path, rate: float) -> dict[str, Any]:
    with Stop() as stop:
        run.train(config(rate), directory, Console(active=False), stop)
    results: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return results


def coloured(data: Data) -> dict[str, Split]:
    """Images of one colour for each class, in any order: a random network tells them apart."""

    def split(first: int, count: int) -> Split:
        rng = np.random.default_rng(first)
        labels = rng.permutation(np.repeat(np.arange(count), 8))
        colours = rng.integers(40, 215, (count, 3))
        noise = rng.integers(-8, 8, (len(labels), 8, 8, 3))

        def read(index: int, _: Any) -> np.ndarray:
            return (colours[labels[index]] + noise[index]).astype(np.uint8)

        names = [str(first + i) for i in range(count)]
        return Split(labels, [f"{first}-{i}" for i in range(len(labels))], read, names)

    return {"train": split(0, 16), "test": split(100, 4)}


def interrupted(*_: Any) -> Any:
    raise Interrupted(signal.SIGTERM)


def test_published_weights_are_kept_where_training_hurts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer in closed form is spoilt, and training destroys the network. An interruption before
    the choice changes nothing, and the model that is kept embeds like the published weights."""

    def spoilt(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All embeddings become equal."""
        return np.zeros((4, 4), np.float32), np.ones(4, np.float32)

    monkeypatch.setattr(digits, "load", coloured)
    monkeypatch.setattr(whitening, "within_classes", spoilt)
    with monkeypatch.context() as patched:
        patched.setattr(mixture, "keep", interrupted)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", 30.0)
    results = train(tmp_path / "run", 30.0)
    choice, found = results["choice"], model.load(tmp_path / "run")
    assert choice["kept"] == mixture.PUBLISHED
    assert choice["validation"]["trained"]["map@r"] < choice["validation"][choice["kept"]]["map@r"]
    assert found.identity().sha256 == results["identity"]
    experiment = experiments.build(config(30.0))
    images = np.stack([experiment.splits["test"].read(i, None) for i in range(8)])
    start = warm_start.initial_state(experiment)
    assert experiment.method.hooks.refresh is not None
    pooled = experiment.method.hooks.refresh.features(start.params, start.model_state, images)
    rows = np.asarray(jax.jit(found.method.embed)(found.params, found.model_state, images))
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)


def test_the_mixture_is_one_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "best", lambda gains: "halfway")
    train(tmp_path / "run", 1e-2)
    kept = model.load(tmp_path / "run").params
    last = model.load(tmp_path / "run", "latest").params
    made = experiments.build(config(1e-2))
    run_facts = json.loads((tmp_path / "run" / "config.json").read_text())
    folder = tmp_path / "run" / "checkpoints"
    with closing(Checkpoints(folder, made.template, None, run=run_facts, writing=False)) as stored:
        states = [stored.restore(kind)[0] for kind in ("first", "latest")]
    first = states[0].params

    def check(a: Any, b: Any, c: Any) -> None:
        np.testing.assert_allclose(a, (np.asarray(b) + np.asarray(c)) / 2, rtol=1e-5, atol=1e-7)

    jax.tree.map(check, kept, first, last)
    kernels = (found["embedding"]["kernel"] for found in (first, last))
    assert np.abs(np.subtract(*map(np.asarray, kernels))).max() > 1e-4
    rng = np.random.default_rng(0)
    embed_split = lambda *given: rng.normal(size=(len(given[2].labels), 4))  # noqa: E731
    monkeypatch.setattr(Embedder, "embed_split", embed_split)  # what is chosen is given below
    for name, expected in (("before training", first), ("trained", last)):
        monkeypatch.setattr(mixture, "best", lambda gains, name=name: name)
        with Stop() as stop:
            chosen, about = mixture.choose(made, *states, Console(active=False), stop)
        assert about["kept"] == name
        jax.tree.map(np.testing.assert_array_equal, chosen.params, expected)


@pytest.fixture(scope="module")
def unchosen(
    tmp_path_factory: pytest.TempPathFactory, few_images: None, patches: None
) -> tuple[Path, np.ndarray]:
    """A run that was interrupted before its choice, and test images, uint8 [9, H, W, 3]."""
    directory = tmp_path_factory.mktemp("unchosen") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "keep", interrupted)
        with pytest.raises(Interrupted):
            train(directory, 1e-2)
    test = experiments.build(config(1e-2)).splits["test"]
    return directory, np.stack([test.read(i, None) for i in range(9)])


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name in (mixture.PUBLISHED, "halfway") else pytest.mark.slow)
        for name in (mixture.PUBLISHED, *mixture.SHARES)
    ]
)
def chosen(
    request: pytest.FixtureRequest,
    unchosen: tuple[Path, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Path, np.ndarray, np.ndarray]:
    """The run with each of the choices, the images, and the rows that it wrote for them."""
    directory, images = unchosen
    shutil.copytree(directory, tmp_path / "run")
    monkeypatch.setattr(mixture, "best", lambda gains: request.param)
    assert train(tmp_path / "run", 1e-2)["choice"]["kept"] == request.param
    own = table.read(tmp_path / "run" / "embeddings" / "test")
    return tmp_path / "run", images, own.embeddings[: len(images)]


def test_every_choice_is_exported(
    chosen: tuple[Path, np.ndarray, np.ndarray], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Parquet and a hub; what is loaded from the run and from the hub gives the run's rows."""
    directory, images, rows = chosen
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    out = directory.parent / "out"
    arguments = [f"--model={directory}", "--to=parquet", f"--output={out}", "--push=me/digits"]
    export.execute(arguments)
    table = parquet.read_table(out / "test.parquet").slice(0, len(rows))
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), rows)
    for source in (directory, "hf://me/digits"):
        found = dml_jax.load(source, runtime="jax").embed_pixels(images)
        np.testing.assert_allclose(found, rows, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the converter
def test_every_choice_in_onnx(chosen: tuple[Path, np.ndarray, np.ndarray]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    directory, images, rows = chosen
    out = directory.parent / "out"
    export.execute([f"--model={directory}", "--to=onnx", f"--output={out}"])
    session = runtime.InferenceSession(out / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"images": images})[0], rows, rtol=0, atol=1e-4)


def test_the_mean_of_weights_with_shares() -> None:
    """A quarter of the second model; its counters are those of the second model alone."""
    first, last = ({"w": np.array([w, 4.0]), "seen": np.int32(n)} for w, n in ((0.0, 2), (2.0, 7)))
    found = jax.jit(mixture.mixed)(first, last, 0.25)
    np.testing.assert_allclose(found["w"], [0.5, 4.0])
    assert found["seen"] == 7


def test_gain_of_classes() -> None:
    """Two classes that gain 0.2 and 0.4; a query that does not count."""
    labels = np.array([0, 0, 1, 1, 1])
    reference = np.array([0.5, 0.5, 0.1, 0.1, np.nan])
    rows = reference + np.array([0.1, 0.3, 0.4, 0.4, 0.0])
    found = mixture.gain(rows, reference, labels)
    np.testing.assert_allclose(found, [0.3, np.std([0.2, 0.4], ddof=1) / 2**0.5])
    assert mixture.gain(rows[:2], reference[:2], labels[:2]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("start", "trained", "kept"),
    [
        ((0.02, 0.01), (0.03, 0.02), "trained"),
        ((0.04, 0.01), (0.03, 0.02), "start"),
        ((0.02, 0.01), (0.03, 0.08), "start"),
        ((0.01, 0.03), (-0.1, 0.02), mixture.PUBLISHED),
        ((0.0, 0.0), (0.03, 0.06), mixture.PUBLISHED),
    ],
)
def test_the_best_of_those_that_are_clearly_better(start: Any, trained: Any, kept: str) -> None:
    """Published weights are kept unless a gain exceeds half its standard error."""
    given = {mixture.PUBLISHED: Gain(0.0, 0.0), "start": Gain(*start), "trained": Gain(*trained)}
    assert mixture.best(given) == kept


def test_models_are_chosen_on_classes_that_are_not_trained() -> None:
    """Also with data.split=all and the data set's own validation split."""

    def part(first: int, count: int) -> Split:
        labels = np.repeat(np.arange(count), 4)
        names = [f"class {first + i}" for i in range(count)]
        ids = [f"{first + int(label)}/{i}" for i, label in enumerate(labels)]
        pixels = np.zeros((24, 24, 3), np.uint8)
        return Split(labels, ids, lambda index, rng: pixels, names)

    config = small(steps=2)
    train = replace(config.train, select="validation", evaluate_every=1)
    chosen = replace(config, train=train, data=replace(config.data, split="all"))
    splits = {"validation": part(8, 2), "test": part(10, 2)}
    whole = part(0, 8)
    built = experiments.build(chosen, splits | {"train": together([whole, *splits.values()])})
    assert set(built.splits["train"].classes) == {*whole.classes, *splits["test"].classes}
    assert not set(built.splits["train"].ids) & set(splits["validation"].ids)
    overlapping = splits | {"train": together([whole, splits["validation"]])}
    own = replace(chosen, data=replace(chosen.data, split="classes"))
    with pytest.raises(ConfigError, match=r"2 classes of the validation split, e\.g\. 'class 8'"):
        experiments.build(own, overlapping)
