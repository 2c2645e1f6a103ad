"""Training on features of a frozen backbone: the same as training with the backbone frozen, and faster."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import run, seal
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.functional import on_features, pooled_cells
from dml_jax.backbones.layers import global_pool
from dml_jax.config import Group, resolve
from dml_jax.console import Console
from dml_jax.data.split import unread as unread_split
from dml_jax.errors import ConfigError, DataError
from dml_jax.methods import baseline, heads
from dml_jax.train import experiment as experiments
from dml_jax.train import frozen_features, loop, warm_start
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.embedding import Embedder
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState
from tests.train.experiments import values

pytestmark = pytest.mark.usefixtures("few_images", "patches")
DEVICES, STEPS = 1, 3


def build(**train: Any) -> Experiment:
    given = values(steps=STEPS, optimizer="sgd", **train)
    given["method"] = asdict(baseline.make_config("proxy_anchor", embedding_dim=4, pooling="avg+max"))
    given["train"]["groups"] = {name: asdict(Group(1e-2)) for name in baseline.GROUPS}
    given["train"]["groups"]["backbone"] = asdict(Group(0.0, freeze=True))
    given["data"] |= {"validation_share": 0.9}  # 90 images are left
    experiment = experiments.build(resolve(given))
    split = experiment.splits["train"]
    # Digits are drawn at random in training; here each image is always the same.
    splits = experiment.splits | {"train": split._replace(read=lambda index, rng: split.read(index, None))}
    return experiment._replace(splits=splits)


def with_features(experiment: Experiment, directory: Path) -> Experiment:
    return frozen_features.with_features(experiment, directory, Console(active=False), Stop())


def trained(experiment: Experiment) -> Any:
    state = warm_start.initial_state(experiment, Console(active=False))
    step, key = experiment.jitted_step(state), experiment.key
    leaves, structure = jax.tree.flatten(state)
    with experiment.batches(0, STEPS) as batches:
        for arrays in batches:
            leaves, _ = step(leaves, experiment.device_batch(*arrays), key)
    return jax.tree.unflatten(structure, leaves)


@pytest.mark.parametrize("kind", ["avg", "max", "avg+max"])
def test_two_cells_pool_like_the_map(kind: Any) -> None:
    maps = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype(np.float32)
    mean, largest = maps.mean(axis=(1, 2)), maps.max(axis=(1, 2))
    expected = {"avg": mean, "max": largest, "avg+max": mean + largest}[kind]
    found = jax.jit(lambda maps: global_pool(pooled_cells(maps), kind))(maps)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_tokens_are_no_features() -> None:
    """Not even as many as the network has channels."""

    def apply(params: Any, stats: Any, tokens: jax.Array, *, train: bool, key: Any = None) -> Any:
        return stats["table"][tokens][:, None], stats

    tokens, table = jnp.array([[1, 0, 2], [2, 2, 0]]), jnp.arange(9.0).reshape(3, 3)
    network = Backbone(lambda *_: ({"table": table}, {}), apply, 3, preprocess=lambda x: x)
    made = on_features(network)
    _, stats = made.init(jax.random.key(0), (3,))
    maps, _ = made.apply({}, stats, made.preprocess(tokens), train=False)
    np.testing.assert_array_equal(maps, table[tokens][:, None])
    np.testing.assert_array_equal(made.apply({}, stats, made.preprocess(maps), train=False)[0], maps)


def test_same_as_a_frozen_backbone(tmp_path: Path) -> None:
    """The head learns what it learns from images, and the whole network embeds images afterwards."""
    images, features = build(), with_features(build(feature_views=1), tmp_path)
    expected, found = trained(images), trained(features)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for name in ("embedding", "loss"):
        jax.tree.map(close, found.params[name], expected.params[name])
    start = warm_start.initial_state(images, Console(active=False))
    assert np.abs(found.params["embedding"]["kernel"] - start.params["embedding"]["kernel"]).max() > 1e-3
    pixels = np.stack([images.splits["test"].read(i, None) for i in range(8)])
    rows = jax.jit(features.method.embed)(found.params, found.model_state, pixels)
    wanted = jax.jit(images.method.embed)(expected.params, expected.model_state, pixels)
    np.testing.assert_allclose(rows, wanted, atol=1e-5)


def test_a_layer_in_closed_form_is_computed_from_the_features(tmp_path: Path) -> None:
    """The result is that from the images, which are not read again, in the view of the evaluation."""
    experiment = build(feature_views=1)
    method = baseline.make_config("proxy_anchor", embedding_dim=0, init="whitened")
    made = experiments.build(replace(experiment.config, method=method), dict(experiment.splits))
    refresh = made.method.hooks.refresh
    assert refresh is not None
    state, embedder = warm_start.initial_state(made), made.embedder(refresh.features)
    rest: Any = embedder, state, lambda done: None
    expected = loop.refreshed(made, *rest).params["embedding"]
    with_maps = with_features(made, tmp_path)
    unread = {"train": made.splits["train"]._replace(read=unread_split)}
    assert with_maps.features is not None
    two = np.concatenate([with_maps.features, 2 * with_maps.features + 1], axis=1)
    given = with_maps._replace(splits=made.splits | unread, features=two)
    found = loop.refreshed(given, *rest).params
    assert np.abs(expected["kernel"] - np.eye(4)).max() > 1e-2
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3), found["embedding"], expected)


def test_features_are_kept_and_follow_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, initial_state = build(feature_views=2), warm_start.initial_state
    first = with_features(experiment, tmp_path / "run")
    kept = list((tmp_path / "features").iterdir())
    assert len(kept) == 2
    for path in kept:  # what is on disk is used
        changed = np.load(path / frozen_features.FILE) + 1
        with seal.write(path, frozen_features.KIND) as draft:
            np.save(draft / frozen_features.FILE, changed)
    options = experiment.config.method
    other = replace(experiment.config, seed=1, method=replace(options, pooling="avg"))
    with monkeypatch.context() as patched:  # weights that do not depend on the seed
        patched.setattr(warm_start, "initial_state", lambda *_: initial_state(experiment, Console()))
        again = with_features(experiment._replace(config=other), tmp_path / "other_head_and_seed")
    np.testing.assert_array_equal(again.features, first.features + 1)

    def larger(*arguments: Any) -> TrainState:
        state = initial_state(*arguments)
        return state._replace(model_state=jax.tree.map(lambda x: np.asarray(x) + np.float32(1), state.model_state))

    np.save(kept[0] / frozen_features.FILE, changed[::-1])  # rows moved
    with pytest.raises(DataError, match=r"features\.npy: has changed since it was written; delete"):
        with_features(experiment, tmp_path / "run")
    monkeypatch.setattr(warm_start, "initial_state", larger)
    with_features(experiment, tmp_path / "run")
    assert len(list((tmp_path / "features").iterdir())) == 4


def test_a_directory_that_cannot_be_made_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Embedder, "embed_split", lambda *_: pytest.fail("computed"))
    (tmp_path / "file").touch()
    made = build(feature_views=1, features=str(tmp_path / "file"))
    with pytest.raises(FileExistsError):
        with_features(made, tmp_path)


@pytest.mark.parametrize(("views", "expected"), [(1, (2, 2, 4)), (2, (3, 6, 9))])
def test_files_of_views(views: int, expected: tuple[int, ...], tmp_path: Path) -> None:
    """Without random views, their options change nothing. Other splits have one view, that of the evaluation."""
    experiment = build(feature_views=views)
    state = warm_start.initial_state(experiment, Console(active=False))

    def files(**data: Any) -> int:
        config = replace(experiment.config, data=replace(experiment.config.data, **data))
        changed = experiment._replace(config=config)
        for name, count in (("train", views), ("test", 1)):
            rows = frozen_features.cells(changed, state, name, tmp_path)
            assert rows.shape == (len(experiment.splits[name].labels), count, 1, 2, 4)
        return len(list(tmp_path.iterdir()))

    assert (files(), files(flip=0.5), files(interpolation="bicubic")) == expected


@pytest.mark.parametrize("name", ["backbone", "backbone/kernel"])
def test_a_backbone_that_would_be_trained_is_refused(name: str) -> None:
    given = build(feature_views=1).config
    train = replace(given.train, groups={**given.train.groups, name: Group(1e-2)})
    with pytest.raises(ConfigError, match=f"feature_views=1: .* train.groups.{name} is not fr"):
        experiments.build(replace(given, train=train))


def test_a_group_with_more_than_the_backbone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's method may have such a group."""
    build_method, given = baseline.build, build(feature_views=1).config

    def one_group(*arguments: Any) -> Any:
        made = build_method(*arguments)
        return made._replace(groups=("model", "loss"), group=lambda path: "model")

    monkeypatch.setattr(baseline, "build", one_group)
    groups = {"model": Group(1e-2), "loss": Group(1e-2)}
    with pytest.raises(ConfigError, match=r"train\.groups\.model is not frozen"):
        experiments.build(replace(given, train=replace(given.train, groups=groups)))


def test_methods_that_need_maps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an embedding of the first position in place of all."""
    monkeypatch.setattr(heads, "global_pool", lambda features, kind: features[:, 0, 0])
    experiment = build(feature_views=1)
    for read in (
        lambda: with_features(experiment, tmp_path),
        lambda: run.check(experiment.config, Console(active=False)),
    ):
        with pytest.raises(ConfigError, match="views=1: method baseline needs whole feature maps"):
            read()


def test_features_are_shared_by_whatever_does_not_change_them() -> None:
    """A frozen network computes the same, whether batch norm is said to be frozen or not."""
    experiment = build(feature_views=1)
    state = warm_start.initial_state(experiment, Console(active=False))
    variables, config = state.model_state["backbone"], experiment.config
    other = replace(config, backbone=replace(config.backbone, freeze_bn=True, bn_momentum=0.5))
    keys = [
        frozen_features.key(experiment._replace(config=each), variables)
        for each in (config, other, replace(config, data=replace(config.data, exif_rotation=False)))
    ]
    assert keys[0] == keys[1] != keys[2]
