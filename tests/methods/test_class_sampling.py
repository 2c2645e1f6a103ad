"""Classifiers that see a part of the classes in each step: which are drawn, and the loss and gradients among them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.methods import baseline
from dml_jax.methods.baseline import CLASSIFIERS, LOSSES, Criterion, class_sampling

LABELS = jnp.asarray([700, 3, 999, 3, 0, 512], jnp.int32)
CLASSES, DIM = 1000, 4


def drawn_classes(key: int, fraction: float, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """(classes drawn, positions of LABELS among them)."""
    layout = class_sampling.groups(classes, len(LABELS), fraction)
    rows, positions = class_sampling.draw(jax.random.key(key), LABELS, classes, layout)
    first = layout.rows * np.arange(layout.number)
    return (np.asarray(rows) + first[:, None]).reshape(-1), np.asarray(positions)


def test_the_classes_of_the_batch_and_others_at_random() -> None:
    times = np.zeros(CLASSES)
    for key in range(60):
        drawn, positions = drawn_classes(key, 0.25)
        np.testing.assert_array_equal(drawn[positions], LABELS)
        assert len(np.unique(drawn)) == len(drawn)
        assert 250 <= len(drawn) < 270
        assert drawn.max() < CLASSES
        times[drawn] += 1
    assert (times[np.asarray(LABELS)] == 60).all()
    others = np.delete(times, np.asarray(LABELS))
    assert abs(others.mean() - 15) < 0.6
    assert others.min() >= 2
    assert others.max() <= 32
    for part in np.array_split(others, 8):  # no part of the table is neglected
        assert abs(part.mean() - 15) < 2


@pytest.mark.parametrize(
    ("classes", "batch", "fraction", "expected"),
    [
        (1_000_000, 128, 0.1, (256, 3907, 391)),
        (1_000_000, 512, 0.1, (128, 7814, 782)),  # a group must be able to hold all classes of the batch
        (1_000_000, 4096, 0.1, (16, 62512, 6252)),
        (1000, 512, 0.1, (1, 1000, 512)),
        (8, 16, 0.5, (1, 8, 8)),
        (100, 16, 0.0, (1, 100, 16)),
    ],
)
def test_groups(classes: int, batch: int, fraction: float, expected: tuple[int, int, int]) -> None:
    assert class_sampling.groups(classes, batch, fraction) == expected


@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_loss_and_gradients_are_those_among_the_drawn_classes(loss: str) -> None:
    config: Any = baseline.make_config(loss, embedding_dim=DIM)
    embeddings = jax.random.normal(jax.random.key(5), (len(LABELS), DIM))
    key = jax.random.key(7)
    part = Criterion(config.options, CLASSES, DIM, sample_classes=0.25)
    params = jax.jit(part.init)(jax.random.key(0), embeddings)["params"]

    def value(params: Any) -> jax.Array:
        return part.apply({"params": params}, embeddings, LABELS, key, method="values")[loss]  # type: ignore[index]

    layout = class_sampling.groups(CLASSES, len(LABELS), 0.25)
    rows, _ = class_sampling.draw(jax.random.fold_in(key, 0), LABELS, CLASSES, layout)
    drawn = np.asarray(rows + layout.rows * jnp.arange(layout.number)[:, None]).reshape(-1)
    targets = jnp.asarray([drawn.tolist().index(label) for label in LABELS.tolist()])

    def expected(params: Any) -> jax.Array:
        own = {name: table[:, drawn] if name == "kernel" else table[drawn] for name, table in params.items()}
        return LOSSES[loss].loss(embeddings, targets, **vars(config.options[loss]), **own)

    found, other = (jax.tree.leaves(jax.jit(jax.value_and_grad(f))(params)) for f in (value, expected))
    for got, wanted in zip(found, other, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    whole = Criterion(config.options, CLASSES, DIM)
    values: Any = jax.jit(lambda params: whole.apply({"params": params}, embeddings, LABELS, key, method="values"))
    assert values(params)[loss] > found[0]  # it has more negatives
