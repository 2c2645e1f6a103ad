"""The guides' examples are these files, and they run."""

import re
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from dml_jax import evaluation
from dml_jax.methods.contract import TrainingSet
from dml_jax.train import step
from tests import toys
from tests.plugins import own_loop, two_towers

HERE = Path(__file__).parent
GUIDES = HERE.parents[1] / "docs" / "guides"


@pytest.mark.parametrize(
    ("page", "files"),
    [
        ("own_paper.md", ["method.py", "experiment.py", "comparison.py"]),
        ("own_loop.md", ["own_loop.py"]),
        (
            "own_parts.md",
            ["loss.py", "sampler.py", "optimizer.py", "distance.py", "metric.py", "step.py", "relation.py"],
        ),
    ],
)
def test_the_pages_show_the_files(page: str, files: list[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)
    assert blocks == [(HERE / name).read_text() for name in files]


def test_a_loop_of_ones_own() -> None:
    assert own_loop.train(steps=60)["recall@1"] > 0.3  # of five classes


def test_two_towers() -> None:
    """After some steps, the captions of a class find its images, more often than before."""
    config, labels = two_towers.Config(), np.arange(64) // 4 % 4
    data = TrainingSet(4, 64, labels)
    method, optimizer = two_towers.build(config, toys.backbone(), data), optax.adam(1e-2)
    batch = toys.batch(1, size=16, classes=4)
    state = jax.jit(lambda key: step.initial(method, optimizer, key, batch))(jax.random.key(0))
    update = jax.jit(step.build(method, optimizer))

    def found(state: step.TrainState) -> float:
        tokens = two_towers.captions(data)[np.asarray(batch.index)]
        text = two_towers.embed_text(config, state.params, tokens)
        images = method.embed(state.params, state.model_state, batch.images[0])
        own = np.asarray(batch.labels)
        return float(evaluation.retrieval(text, own, gallery=images, gallery_labels=own, ks=(1,))["recall@1"])

    before = found(state)
    for number in range(60):
        state, terms = update(state, batch, jax.random.key(number))
    assert np.isfinite(terms["loss"])
    assert found(state) > max(before, 0.6)
