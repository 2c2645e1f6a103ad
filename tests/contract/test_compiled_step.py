"""What the devices exchange in a training step, and what they hold, by the text of the compiled program; every paper's
method passes `dml-jax check`, but for what it says of itself."""

import math
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import optax
import pytest

from dml_jax.data import augment
from dml_jax.lab import compilation, conformance, plugins
from dml_jax.methods.contract import Batch
from dml_jax.train import experiment, step
from dml_jax.train.distributed import device_mesh
from tests import toys
from tests.contract.cases import BATCH
from tests.contract.methods import LARGE, SMALL
from tests.train.experiments import small


def compiled_step(name: str) -> tuple[Any, Any]:
    """(state's shapes, compiled step) of a run on eight devices."""
    made, teacher = LARGE[name].build()
    config, optimizer = small(steps=1), optax.adam(1e-3)
    data = replace(config.data, flip=0.5, jitter=0.2, greyscale=0.2)
    given = {"method": made, "optimizer": optimizer, "augment": partial(augment.apply, data=data)}
    run = experiment.build(config)._replace(**given)
    given = toys.batch(made.hooks.views, size=BATCH)

    def placed(tree: Any, sharding: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    everywhere = device_mesh.replicated(run.mesh)
    initial = jax.eval_shape(partial(step.initial, made, optimizer), jax.random.key(0), given)
    state = placed(initial, everywhere)
    by_rows = [device_mesh.row_sharded(run.mesh, axis) for axis in (1, 0, 0)]
    batch = Batch(*map(placed, given[:3], by_rows), placed(teacher, everywhere))
    inputs = jax.tree.leaves(state), batch, jax.random.key(0)
    return state, run.jitted_step(state).lower(*inputs).compile()


def exchanged(text: str) -> list[tuple[str, int, int]]:
    """(operation, elements, bytes) of the arrays that collectives result in; a combined one counts as several."""
    return [
        (kind, math.prod(map(int, filter(None, shape.split(",")))), compilation.size(array))
        for _, result, operation, _ in compilation.INSTRUCTION.findall(text)
        # Only the end of an asynchronous pair has the result alone.
        if (kind := operation.removesuffix("-done")) in compilation.COLLECTIVES
        for array, shape in re.findall(r"(\w+\[([\d,]*)\])", result)
    ]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if c.slow else ()) for n, c in LARGE.items()])
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
            assert sizes[1] <= LARGE[name].limit, (kind, *sizes)

    assert f",{BATCH // 8},8,8,3]" in text
    assert f",{BATCH},8,8,3]" not in text  # no device has all images
    assert text.count("may-alias") == len(jax.tree.leaves(state))  # donated
    for host in ("custom-call", "infeed", "outfeed", "send(", "recv("):
        assert host not in text


def examined(method: str) -> dict[str, str]:
    """Outcomes by check, without training; the name of a method of this package is no import path."""
    outcomes = conformance.check(*plugins.find_plugins(f"dml_jax.methods.{method}")[0], {}, None)
    return {one.check: one.result for one in outcomes if one.check != conformance.NAMED}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in SMALL.items() if case.examined])
def test_all_checks_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method whose gradients are reversed differs by this alone."""
    reverses, found = SMALL[name].reverses, examined(name)
    if reverses:
        assert found.pop(conformance.GRADIENT) == "skipped"
    assert set(found.values()) == {"passed"}
    if reverses:
        monkeypatch.setattr(reverses, lambda x: x)
        assert examined(name)[conformance.GRADIENT] == "passed"
