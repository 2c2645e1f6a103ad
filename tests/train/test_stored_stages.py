"""Training of upper stages on stored maps, compared with training the whole network on images."""

from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np
import pytest

from dml_jax.backbones import vit
from dml_jax.config import Config, Group, plugin_module, resolve
from dml_jax.console import Console
from dml_jax.data.formats import digits
from dml_jax.errors import ConfigError
from dml_jax.lab import head_bench
from dml_jax.train import experiment as experiments
from dml_jax.train import step
from tests.train.experiments import values

pytestmark = pytest.mark.usefixtures("few_images")


def config(directory: Path, trained: str) -> Config:
    """Two blocks on digits; all but one part of the network is frozen, and the head."""
    given = values(steps=6, feature_views=1, features=str(directory), optimizer="sgd")
    given["backbone"] |= {"depths": (1, 1), "widths": (4, 8)}
    given["train"]["groups"]["backbone"] |= {"freeze": True, "learning_rate": 0.0}
    given["train"]["groups"][f"backbone/{trained}"] = asdict(Group(0.1))
    return resolve(given)


def test_upper_stages(tmp_path: Path) -> None:
    """Parameters and embeddings are those of training on images, up to the half precision of the
    maps."""
    given = config(tmp_path, "layer2_0")
    inputs = head_bench.head_inputs(given, Console(quiet=True))
    assert inputs.part == "layer1_0"
    head = head_bench.Head(given, inputs)
    _, state = head.trained(0)

    images = replace(given, train=replace(given.train, feature_views=0, features=""))
    splits = {  # digits are drawn at random in training; their maps are those of the evaluation
        name: split._replace(read=lambda index, rng, read=split.read: read(index, None))
        for name, split in digits.load(given.data).items()
    }
    whole = experiments.build(images, splits)
    key = jax.random.fold_in(whole.key, 2**31 - 1)
    start = step.initial(whole.method, whole.optimizer, key, whole.example_batch())
    # Published weights are always the same; these are random, and the maps are those of key 0.
    network = plugin_module("backbone", "resnet").build(given.backbone)
    for part, leaves in network.init(jax.random.key(0), whole.shape)[0].items():
        if part != "layer2_0":
            start.params["backbone"][part] = leaves
    before = start.params["backbone"]["layer2_0"]["conv1"]["kernel"].copy()
    update = jax.jit(step.build(whole.method, whole.optimizer, whole.augment))
    expected = start
    with whole.batches(0, 6) as batches:
        for _ in range(6):
            expected, _ = update(expected, whole.device_batch(*next(batches)), whole.key)
    after = state.params["backbone"]
    for params, wanted in (
        (after["layer2_0"], expected.params["backbone"]["layer2_0"]),
        (state.params["embedding"], expected.params["embedding"]),
    ):
        for got, leaf in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(got, leaf, atol=2e-3)
    assert float(abs(after["layer2_0"]["conv1"]["kernel"] - before).max()) > 0.02
    rows = whole.embedder(whole.method.embed).embed_split(expected, whole.splits["test"])
    np.testing.assert_allclose(head.embedded(state, head.points), rows, atol=5e-3)


def test_parts_that_need_more_than_one_map(tmp_path: Path) -> None:
    """There is nothing to store below the first part."""
    with pytest.raises(ConfigError, match=r"train\.feature_views=1: .*conv1.* set it to 0"):
        head_bench.head_inputs(config(tmp_path, "conv1"), Console(quiet=True))


@pytest.mark.parametrize("trained", ["norm", "cls_token"])
def test_networks_of_images_of_one_size(
    tmp_path: Path, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_bench, "SIDE", 4)  # smaller than digits
    small = vit.Config(depth=1, width=16, heads=2, patch=4)
    given = config(tmp_path, trained)
    with pytest.raises(ConfigError, match=f"{trained}, needs more than the output"):
        head_bench.head_inputs(replace(given, backbone=small), Console(quiet=True))
