"""Which model is kept, by folds of the training classes: training that hurts is not."""

import json
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
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
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.evaluation import metrics
from dml_jax.methods import baseline, whitening
from dml_jax.train import experiment as experiments
from dml_jax.train import length, loop, model, selection, warm_start
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.selection import Gain
from tests.hub import Hub
from tests.train.experiments import small, values

DEVICES = 1
pytestmark = pytest.mark.usefixtures("few_images", "patches")


def config(rate: float, **train: Any) -> Config:
    given = values(steps=4, select="folds", optimizer="sgd", **train)
    method = baseline.make_config("proxy_anchor", embedding_dim=0, init="whitened")
    given["method"] = asdict(method)
    given["train"]["groups"] = {name: asdict(Group(rate)) for name in baseline.GROUPS}
    return resolve(given)


def train(directory: Path, given: Config) -> dict[str, Any]:
    with Stop() as stop:
        run.train(given, directory, Console(active=False), stop)
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


def test_published_weights_are_kept_where_training_hurts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer in closed form is spoilt, and training destroys the network. An interruption before
    the choice changes nothing, and the model that is kept embeds like the published weights."""

    def spoilt(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All embeddings become equal."""
        return np.zeros((4, 4), np.float32), np.ones(4, np.float32)

    monkeypatch.setattr(digits, "load", coloured)
    monkeypatch.setattr(whitening, "within_classes", spoilt)
    with monkeypatch.context() as patched:
        patched.setattr(selection, "keep", interrupted)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", config(30.0))
    results = train(tmp_path / "run", config(30.0))
    choice, found = results["choice"], model.load(tmp_path / "run")
    assert choice["kept"] == selection.PUBLISHED
    assert choice["training"]["trained"]["map@r"] < choice["training"][choice["kept"]]["map@r"]
    assert found.identity().sha256 == results["identity"]
    experiment = experiments.build(config(30.0))
    images = np.stack([experiment.splits["test"].read(i, None) for i in range(8)])
    start = warm_start.initial_state(experiment)
    assert experiment.method.hooks.refresh is not None
    pooled = experiment.method.hooks.refresh.features(start.params, start.model_state, images)
    rows = np.asarray(jax.jit(found.method.embed)(found.params, found.model_state, images))
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)


def test_candidates_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is kept is the mean of the weights before and after the training; each is loaded
    by its name, and the report's figures on the test classes are those of the named models."""
    monkeypatch.setattr(selection, "best", lambda gains: "halfway")
    results = train(tmp_path / "run", config(1e-2))
    named = {name: model.load(tmp_path / "run", name) for name in ("layer", "trained", "halfway")}
    kept = model.load(tmp_path / "run").params
    counts = {name: int(found.step) for name, found in named.items()}
    assert counts == {"layer": 0, "trained": 4, "halfway": 4}

    def check(a: Any, b: Any, c: Any, d: Any) -> None:
        np.testing.assert_allclose(a, (np.asarray(b) + np.asarray(c)) / 2, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(a, d)

    jax.tree.map(check, kept, *(named[name].params for name in named))
    kernels = (np.asarray(found.params["embedding"]["kernel"]) for found in named.values())
    assert np.abs(np.subtract(*list(kernels)[:2])).max() > 1e-4
    test = experiments.build(config(1e-2)).splits["test"]
    for name, found in named.items():
        rows = found.embedder().embed_split(found, test)
        expected = metrics.retrieval(rows, test.labels, ks=(1,))
        assert results["choice"]["unseen"][name] == pytest.approx(
            {key: expected[key] for key in ("recall@1", "map@r")}, abs=1e-6
        )
    with pytest.raises(CheckpointError, match="must be reported, latest, best, layer, trained, ha"):
        model.load(tmp_path / "run", "published")
    assert not (tmp_path / "run" / selection.DIRECTORY).exists()


@pytest.fixture(scope="module")
def unchosen(tmp_path_factory: pytest.TempPathFactory, few_images: None, patches: None) -> tuple[Path, np.ndarray]:
    """A run that was interrupted before its choice, and test images, uint8 [9, H, W, 3]."""
    directory = tmp_path_factory.mktemp("unchosen") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "keep", interrupted)
        with pytest.raises(Interrupted):
            train(directory, config(1e-2))
    test = experiments.build(config(1e-2)).splits["test"]
    return directory, np.stack([test.read(i, None) for i in range(9)])


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name in ("published", "halfway") else pytest.mark.slow)
        for name in ("published", "layer", "halfway", "trained")
    ]
)
def chosen(
    request: pytest.FixtureRequest, unchosen: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, np.ndarray, np.ndarray]:
    """The run with each of the choices, the images, and the rows that it wrote for them."""
    directory, images = unchosen
    shutil.copytree(directory, tmp_path / "run")
    monkeypatch.setattr(selection, "best", lambda gains: request.param)
    assert train(tmp_path / "run", config(1e-2))["choice"]["kept"] == request.param
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


def test_gain_of_classes() -> None:
    """Two classes that gain 0.2 and 0.4, and a third without a query that counts."""
    labels = np.array([0, 0, 1, 1, 1, 2])
    reference = np.array([0.5, 0.5, 0.1, 0.1, np.nan, np.nan])
    rows = reference + np.array([0.1, 0.3, 0.4, 0.4, 0.0, 0.0])
    means = [selection.by_class(values, labels) for values in (rows, reference)]
    np.testing.assert_allclose(means, [[0.7, 0.5, np.nan], [0.5, 0.1, np.nan]])
    found = selection.gain(*means)
    np.testing.assert_allclose(found, [0.3, np.std([0.2, 0.4], ddof=1) / 2**0.5])
    assert selection.gain(means[0][:1], means[1][:1]) == (0.0, 0.0)


def test_the_largest_mean_gain_is_kept() -> None:
    """Published weights only if they are better by more than half a standard error."""
    gains = {selection.PUBLISHED: Gain(0.0, 0.0), "layer": Gain(-0.01, 0.03)}
    assert selection.best(gains | {"trained": Gain(-0.02, 0.09)}) == "layer"
    assert selection.best(gains | {"trained": Gain(0.01, 0.09)}) == "trained"
    assert selection.best(gains | {"layer": Gain(-0.02, 0.03)}) == selection.PUBLISHED


def test_candidates_are_measured_on_classes_that_they_were_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each training class is measured once; no test class has a part in the choice."""
    made = experiments.build(config(1e-2))
    both = list(selection.halves(made))
    measured = [name for _, other in both for name in other.classes]
    assert sorted(measured) == sorted(made.class_names)
    assert not set(measured).intersection(made.splits["test"].classes)
    for half, other in both:
        assert not set(half.splits["train"].ids).intersection(other.ids)
        assert (half.steps, half.splits["test"]) == (2, other)
    overlapping = made.splits["train"]
    monkeypatch.setattr(selection, "hold_out", lambda split, share: (overlapping, overlapping))
    with pytest.raises(AssertionError, match="measured on classes that are trained on"):
        list(selection.halves(made))


OFTEN = config(1e-2, checkpoint_every=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, few_images: None, patches: None) -> dict[str, Any]:
    return train(tmp_path_factory.mktemp("whole") / "run", OFTEN)


@pytest.mark.parametrize("after", ["half of a fold", "both folds"])
def test_an_interrupted_choice_continues(
    after: str, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit; once the layer is measured, there is a model to use."""
    calls, make = [], loop.Training.make_steps

    def stopping(self: loop.Training, profile: Any) -> None:
        calls.append(self)
        if after == "half of a fold":
            self.stop.signal = signal.SIGTERM
        elif len(calls) == 3:
            raise Interrupted(signal.SIGTERM)
        make(self, profile)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "make_steps", stopping)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", OFTEN)
    with pytest.warns(UserWarning, match="has not finished"):
        assert model.load(tmp_path / "run").step == 0
    results = train(tmp_path / "run", OFTEN)
    assert {key: results[key] for key in ("choice", "identity")} == {key: whole[key] for key in ("choice", "identity")}


def test_minutes_become_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run makes the steps that were recorded, whatever the clock says then."""
    clock = iter((100.0, 108.0))  # a second for each of the timed steps
    monkeypatch.setattr(length, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    plain = config(1e-2)
    given, fixed = (
        replace(plain, train=replace(plain.train, select="last", **length))
        for length in ({"minutes": 0.1}, {"steps": 6})
    )
    make = loop.Training.make_steps

    def stopping(self: loop.Training, profile: Any) -> None:
        self.stop.signal = signal.SIGTERM
        make(self, profile)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "make_steps", stopping)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", given)
    monkeypatch.setattr(length, "timed", lambda *_: pytest.fail("timed again"))
    results = train(tmp_path / "run", given)
    assert (results["steps"], results["step"]) == (6, 6)
    assert train(tmp_path / "fixed", fixed)["identity"]
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("run", "fixed")]
    assert lines[0] == lines[1]


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
