"""Training on any number of devices and processes is the same up to rounding, in float32 and in float64."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType

from dml_jax.backbones import contract
from dml_jax.backbones.convolution import batches_over
from dml_jax.config import Group, Train
from dml_jax.data import augment
from dml_jax.train import optimizers, step
from dml_jax.train.distributed import device_mesh, process_group
from tests import toys
from tests.contract.cases import BATCH
from tests.contract.methods import LARGE
from tests.processes import ROOT, free_port
from tests.train.experiments import small

STEPS = {"float32": 3, "float64": 20}
TOLERANCE = {"float32": 1e-6, "float64": 1e-10}
FAST = [("proxies", "float64")]


def cast(tree: Any, dtype: str) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if jax.numpy.issubdtype(x.dtype, np.floating) else x, tree)


@cache
def losses(name: str, dtype: str, devices: int) -> list[float]:
    """The loss of each step on the first devices of all processes."""
    made, teacher = LARGE[name].build()
    # Adam would enlarge the rounding of gradients that are zero.
    optimizer = optax.sgd(0.01, momentum=0.9)
    first = toys.batch(made.hooks.views, size=BATCH)
    state = jax.jit(partial(step.initial, made, optimizer))(jax.random.key(1), first)
    chosen = jax.devices()[:devices]
    mesh = jax.make_mesh((devices,), (device_mesh.AXIS,), (AxisType.Auto,), devices=chosen)
    rows = np.split(np.arange(BATCH), jax.process_count())[jax.process_index()]
    found = []
    with jax.enable_x64(dtype == "float64"), batches_over(mesh):
        state = device_mesh.place(mesh, cast(jax.device_get(state), dtype))
        teacher = device_mesh.place(mesh, cast(jax.device_get(teacher), dtype))
        run = jax.jit(step.build(made, optimizer), donate_argnums=0)
        for seed in range(STEPS[dtype]):
            drawn = toys.batch(made.hooks.views, size=BATCH, classes=8, seed=seed)
            own = drawn.images[:, rows], drawn.labels[rows], drawn.index[rows]
            batch = device_mesh.shard_batch(mesh, *map(np.asarray, own))
            state, terms = run(state, batch._replace(teacher=teacher), jax.random.key(0))
            assert terms["loss"].dtype == dtype
            found.append(float(terms["loss"]))
    return found


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow]) for case in itertools.product(LARGE, STEPS)],
)
def test_one_two_and_eight_devices(name: str, dtype: str) -> None:
    one = losses(name, dtype, 1)
    assert np.isfinite(one).all()
    assert len(set(one)) > 2  # it trains; a loss of pairs may reach 0
    for count in (2, 8):
        np.testing.assert_allclose(losses(name, dtype, count), one, rtol=TOLERANCE[dtype])


@pytest.mark.slow
def test_two_processes_of_two_devices(tmp_path: Path) -> None:
    port = free_port()
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.contract.test_device_counts"]
    command += [f"localhost:{port}", str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*command, str(number)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    errors = [process.communicate(timeout=1800)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    for number in range(2):
        found = json.loads((tmp_path / f"{number}.json").read_text())
        assert len(found) == len(LARGE) * len(STEPS)
        for name, dtype, values in found:
            np.testing.assert_allclose(values, losses(name, dtype, 1), rtol=TOLERANCE[dtype], err_msg=name)


def narrow(jaxpr: Any) -> list[str]:
    """The operations of a program, and of those in it, whose results are floats of less than 64 bits."""
    found = []
    for equation in jaxpr.eqns:
        for dtype in (out.aval.dtype for out in equation.outvars):
            if jax.dtypes.issubdtype(dtype, np.floating) and dtype != np.float64:
                found.append(str(equation))
        for part in jaxprs_in_params(equation.params):
            found += narrow(part)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if c.slow_trace else ()) for n, c in LARGE.items()]
)
def test_nothing_is_computed_in_float32_in_a_run_in_float64(name: str) -> None:
    """With everything that a configuration can add to the step."""
    made, teacher = LARGE[name].build()
    data = replace(small(steps=1).data, flip=0.5, jitter=0.2, greyscale=0.2)
    groups = {group: Group(1e-3, weight_decay=1e-4) for group in made.groups}
    train = Train(groups=groups, steps=9, schedule="cosine", linear_warmup=2)
    schedule = optimizers.rate_factor(train, start=2, stop=9, milestones=())
    optimizer = optimizers.build(train, made, schedule, warmup_steps=2)
    given = toys.batch(made.hooks.views, size=BATCH)
    state = jax.eval_shape(partial(step.initial, made, optimizer), jax.random.key(0), given)
    with jax.enable_x64(True):
        wide = partial(jax.eval_shape, partial(cast, dtype="float64"))
        state, teacher = wide(state), wide(teacher)
        update = step.build(made, optimizer, partial(augment.apply, data=data))
        program = jax.make_jaxpr(update)(state, given._replace(teacher=teacher), jax.random.key(0))
    assert narrow(program.jaxpr) == []


def test_pixels_in_float64() -> None:
    images = jax.ShapeDtypeStruct((1, 2, 2, 3), np.uint8)
    assert narrow(jax.make_jaxpr(contract.preprocess(contract.Pixels()))(images).jaxpr) != []
    with jax.enable_x64(True):
        assert narrow(jax.make_jaxpr(contract.preprocess(contract.Pixels()))(images).jaxpr) == []


if __name__ == "__main__":
    address, folder, number = sys.argv[1:]
    process_group.connect(address, 2, int(number))
    found = [(name, dtype, losses(name, dtype, jax.device_count())) for name in LARGE for dtype in STEPS]
    Path(folder, f"{number}.json").write_text(json.dumps(found))
