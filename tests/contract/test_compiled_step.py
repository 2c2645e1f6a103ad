"""What the devices exchange in a training step, and what they hold, by the text of the compiled program."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import optax
import pytest

from dml_jax.data import augment
from dml_jax.methods import baseline, crt, diva, group_loss, hist, mpn, student
from dml_jax.methods.contract import Batch, Method, TrainingSet, teaching
from dml_jax.train import experiment, hlo, step
from dml_jax.train.distributed import mesh as meshes
from tests import toys
from tests.train.experiments import small

# Much larger than an array of embeddings: images, feature maps, similarities of the batch to itself, logits.
BATCH, DIM, CHANNELS, CLASSES = 64, 8, 64, 1000
DATA, BODY = TrainingSet(CLASSES, 5000), toys.backbone(CHANNELS)
CRT = crt.Config(embedding_dims=(DIM, DIM), prototypes=(4, 4), hidden_dim=DIM)
MEMORY = {"embedding_dim": DIM, "memory": 64}


def imitation() -> tuple[Method, Any]:
    """A student and its teacher."""
    teacher = mpn.build(mpn.Config(embedding_dim=DIM, heads=2), BODY, DATA)
    variables = teacher.init(jax.random.key(0), toys.batch(1, size=BATCH))
    config = student.Config(teacher="an MPN", kind="imitation", embedding_dim=DIM)
    return student.build(config, BODY, DATA), jax.tree_util.Partial(teaching(teacher), *variables)


METHODS: dict[str, Callable[[], Any]] = {
    "mpn": lambda: mpn.build(mpn.Config(embedding_dim=DIM, heads=2, layers=1), BODY, DATA),
    "hist": lambda: hist.build(hist.Config(embedding_dim=DIM, hidden_dim=DIM), BODY, DATA),
    "crt": lambda: crt.build(CRT, BODY, DATA),
    "diva": lambda: diva.build(diva.Config(embedding_dim=DIM, queue_batches=2), BODY, DATA),
    "proxies": lambda: baseline.build(baseline.make_config(loss="proxy_anchor", embedding_dim=DIM), BODY, DATA),
    "memory": lambda: baseline.build(baseline.make_config(loss="multi_similarity", **MEMORY), BODY, DATA),
    "student": imitation,
    "group_loss": lambda: group_loss.build(group_loss.Config(embedding_dim=DIM), BODY, DATA),
}
FAST = ("hist", "proxies", "memory")  # the others compile for longer
# The dynamics of the Group Loss multiply similarities with the probabilities [B, C] of the batch.
LIMITS = {"group_loss": BATCH * CLASSES * 4}
STATISTICS = 8 * 3 * CHANNELS * 4  # of a batch norm, from eight devices


def build(name: str) -> tuple[Method, Any]:
    """A method, and its teacher if it needs one."""
    made = METHODS[name]()
    return made if name == "student" else (made, None)


def compiled_step(name: str) -> tuple[Any, Any]:
    """(state's shapes, compiled step) of a run on eight devices."""
    made, teacher = build(name)
    config, optimizer = small(steps=1), optax.adam(1e-3)
    data = replace(config.data, flip=0.5, jitter=0.2, greyscale=0.2)
    run = experiment.build(config)._replace(method=made, optimizer=optimizer, augment=partial(augment.apply, data=data))
    given = toys.batch(made.hooks.views, size=BATCH)

    def placed(tree: Any, sharding: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    everywhere = meshes.replicated(run.mesh)
    state = placed(jax.eval_shape(partial(step.initial, made, optimizer), jax.random.key(0), given), everywhere)
    rows = [placed(x, meshes.row_sharded(run.mesh, axis)) for x, axis in zip(given[:3], (1, 0, 0), strict=True)]
    batch = Batch(*rows, placed(teacher, everywhere))
    return state, run.jitted_step().lower(state, batch, jax.random.key(0)).compile()


def exchanged(text: str) -> list[tuple[str, int, int]]:
    """(operation, elements, bytes) of the arrays that collectives result in; a combined one counts as several."""
    return [
        (kind, size, int(hlo.SIZES[dtype] * size))
        for instruction in hlo.instructions(text)
        # Of an asynchronous pair, the end has the result alone.
        if (kind := instruction.operation.removesuffix("-done")) in hlo.COLLECTIVES
        for dtype, size in hlo.arrays(instruction.result)
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in METHODS]
)
def test_devices_exchange_gradients_and_embeddings(name: str) -> None:
    state, compiled = compiled_step(name)
    text = compiled.as_text()
    gradients = Counter((leaf.size, 4 * leaf.size) for leaf in jax.tree.leaves(state.params))
    found = exchanged(text)
    assert len([kind for kind, *_ in found if kind == "all-reduce"]) > 2
    for kind, *sizes in found:
        if kind == "all-reduce" and gradients[tuple(sizes)]:
            gradients[tuple(sizes)] -= 1  # of one parameter
        else:
            assert sizes[1] <= LIMITS.get(name, STATISTICS), (kind, *sizes)

    assert f",{BATCH // 8},8,8,3]" in text
    assert f",{BATCH},8,8,3]" not in text  # no device has all images
    assert text.count("may-alias") == len(jax.tree.leaves(state))  # donated
    for host in ("custom-call", "infeed", "outfeed", "send(", "recv("):
        assert host not in text
