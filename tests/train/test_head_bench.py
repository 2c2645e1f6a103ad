"""Heads on stored maps, compared with the whole network."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import traverse_util

from dml_jax.config import Config, plugin_module, resolve
from dml_jax.console import Console
from dml_jax.lab import head_bench
from dml_jax.train import experiment as experiments
from tests.train.experiments import values

pytestmark = pytest.mark.usefixtures("few_images", "patches")


def config() -> Config:
    """A small network on digits, none of whose parameters but the head's are trained."""
    given = values(steps=8, feature_views=2)
    given["evaluation"] |= {"diagnose": True}
    given["train"]["groups"]["backbone"] |= {"freeze": True, "learning_rate": 0.0}
    return resolve(given)


def kept_in(directory: Path, class_split: int = 0) -> Config:
    given = config()
    train = replace(given.train, features=str(directory))
    return replace(given, train=train, data=replace(given.data, class_split=class_split))


@pytest.fixture(scope="module")
def inputs(
    few_images: None, patches: None, tmp_path_factory: pytest.TempPathFactory
) -> head_bench.HeadInputs:
    return head_bench.head_inputs(kept_in(tmp_path_factory.mktemp("maps")), Console(quiet=True))


@pytest.fixture(scope="module")
def head(inputs: head_bench.HeadInputs) -> head_bench.Head:
    return head_bench.Head(config(), inputs)


def test_embeddings_are_those_of_the_whole_network(
    inputs: head_bench.HeadInputs, head: head_bench.Head
) -> None:
    """On pooled features and on whole maps, up to the half precision of the maps."""
    experiment, state = head.trained(3)
    assert experiment.config.seed == 3
    assert head.update._cache_size() == 1
    network = experiments.build(config())
    parts = (
        plugin_module("backbone", "resnet")
        .build(config().backbone)
        .init(jax.random.key(0), network.shape)
    )
    params, stats = map(traverse_util.flatten_dict, parts)
    backbone = traverse_util.unflatten_dict(params | stats)
    both = state._replace(model_state={**state.model_state, "backbone": backbone})
    expected = network.embedder(network.method.embed).embed_split(both, network.splits["test"])
    for whole in (False, True):
        points = inputs.maps.of(experiment.splits["test"].ids, 1, whole=whole)[:, 0]
        np.testing.assert_allclose(head.embedded(state, points), expected, atol=2e-3)


def test_a_seed_gives_the_same_head_again(head: head_bench.Head) -> None:
    """Whatever was trained in between."""
    first = head.trained(1)[1]
    head.trained(0)
    jax.tree.map(np.testing.assert_array_equal, first.params, head.trained(1)[1].params)


def test_maps_are_shared_by_configurations_of_the_same_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Config] = []
    monkeypatch.setattr(head_bench, "head_inputs", lambda given, console: made.append(given))
    monkeypatch.setattr(head_bench, "Head", lambda *_: None)
    bench, given = head_bench.Bench(), kept_in(tmp_path)
    for changes, count in (
        ({}, 1),
        ({"batch_size": 8, "sampler": "shuffled"}, 1),
        ({"name": "tests.plugins.tagged"}, 2),
        ({"name": "tests.plugins.tagged", "image_size": 12, "resize": 12, "crop": "centre"}, 3),
    ):
        bench.prepare(replace(given, data=replace(given.data, **changes)))
        assert len(made) == count


def test_trials_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished ones are kept, impossible ones do not stop the others, ensembles are
    concatenations."""
    made = []
    for name, seed, batch, split in (
        ("a", 0, 16, 0),
        ("bad", 0, 10**6, 0),
        ("b", 1, 16, 0),
        ("c", 0, 16, 1),
    ):
        given = asdict(replace(kept_in(tmp_path, split), seed=seed))
        given["data"]["batch_size"] = batch
        (tmp_path / f"{name}.json").write_text(json.dumps({"config": given}))
        trial = {
            "config": str(tmp_path / f"{name}.json"),
            "directory": str(tmp_path / name),
            "members": [],
        }
        made.append(trial | {"weights": []})
    both = {
        "directory": str(tmp_path / "both"),
        "members": [str(tmp_path / name) for name in "ab"],
        "weights": [1, 2],
    }
    file = tmp_path / "trials.json"
    file.write_text(json.dumps({"trials": [*made, made[0] | both]}))
    assert head_bench.main(file) == 1
    assert not (tmp_path / "bad").exists()
    rows = {
        name: np.load(tmp_path / name / "embeddings.npy").astype(float)
        for name in ("a", "b", "both")
    }
    unit = {name: rows[name] / np.linalg.norm(rows[name], axis=1, keepdims=True) for name in "ab"}
    both_rows = np.hstack([unit["a"], 2 * unit["b"]]) / np.sqrt(5)
    np.testing.assert_allclose(rows["both"], both_rows, atol=2e-3)
    before = (tmp_path / "a" / "results.json").stat().st_mtime_ns
    assert head_bench.main(file) == 1
    assert (tmp_path / "a" / "results.json").stat().st_mtime_ns == before
    capsys.readouterr()
    (tmp_path / "a.json").write_text((tmp_path / "c.json").read_text())
    (tmp_path / "one.json").write_text(json.dumps({"trials": made[:1]}))
    assert head_bench.main(tmp_path / "one.json") == 1
    assert f"failed: {tmp_path / 'a'}: belongs to a run of" in capsys.readouterr().out
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert {"recall@1", "map@r", "density", "spectral_decay", "protocol"} <= results.keys()
    assert results["overfitting"] > -1
    # Another draw of the classes has other test images.
    hashes = {
        name: json.loads((tmp_path / name / "config.json").read_text())["data_hash"]
        for name in ("a", "b", "c")
    }
    assert hashes["a"] == hashes["b"] != hashes["c"]
