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
        ("extend.md", "method experiment comparison own_loop"),
        ("own_parts.md", "loss sampler optimizer schedule distance metric refine relation"),
    ],
)
def test_the_pages_show_the_files(page: str, files: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)
    assert {(HERE / f"{name}.py").read_text() for name in files.split()} <= {*blocks}


def test_a_loop_of_ones_own() -> None:
    assert own_loop.train(steps=60)["recall@1"] > 0.3  # of five classes


def test_two_towers() -> None:
    """After some steps, the captions of a class find its images."""
    data, batch = TrainingSet(4, 64, np.arange(64) // 4 % 4), toys.batch(1, size=16, classes=4)
    method = two_towers.build(two_towers.Config(), toys.backbone(), data)
    optimizer = optax.adam(1e-2)
    state = jax.jit(lambda key: step.initial(method, optimizer, key, batch))(jax.random.key(0))
    update = jax.jit(step.build(method, optimizer))
    for number in range(60):
        state, _ = update(state, batch, jax.random.key(number))
    images = method.embed(state.params, state.model_state, batch.images[0])
    text = two_towers.embed_text(state.params, two_towers.captions(data)[np.asarray(batch.index)])
    labels = np.asarray(batch.labels)
    found = evaluation.retrieval(text, labels, gallery=images, gallery_labels=labels, ks=1)
    assert found["recall@1"] > 0.6
