"""A training step in bfloat16, and its memory if batches are encoded in chunks."""

import re
from dataclasses import asdict
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dml_jax.backbones import convolution
from dml_jax.config import resolve
from dml_jax.lab import compilation
from dml_jax.methods import baseline
from dml_jax.numerics import heads_in, product
from dml_jax.train import experiment, method_wrappers, step
from dml_jax.train.distributed import device_mesh
from tests import toys
from tests.train.experiments import small


@pytest.mark.parametrize(
    ("equation", "shapes"), [("...i,io->...o", ((2, 3, 4), (4, 5))), ("npk,npl->nkl", ((2, 6, 3), (2, 6, 4)))]
)
def test_operands_are_rounded_and_sums_are_not(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Value and both gradients are those of rounded operands, which NumPy computes in float64."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    weights = rng.standard_normal(np.einsum(equation, a, b).shape).astype(np.float32)

    def rounded(x: np.ndarray) -> np.ndarray:
        return np.asarray(x, jnp.bfloat16).astype(np.float64)

    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        with heads_in("bfloat16"):
            value, pull = jax.vjp(partial(product, equation), a, b)
        return value, pull(jnp.asarray(weights))

    value, gradients = run(a, b)
    left, right, result = re.split(",|->", equation.replace("...", "xy"[: a.ndim - 1]))
    expected = (
        np.einsum(f"{left},{right}->{result}", rounded(a), rounded(b)),
        np.einsum(f"{result},{right}->{left}", rounded(weights), rounded(b)),
        np.einsum(f"{left},{result}->{right}", rounded(a), rounded(weights)),
    )
    for found, wanted in zip((value, *gradients), expected, strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(product(equation, a, b), np.einsum(equation, a, b), atol=1e-5)  # nothing is rounded


def test_one_option_sets_backbone_and_heads() -> None:
    """Every convolution of the step for GPUs is of bfloat16 arrays, and so is the product of the embedding layer."""
    config = small(steps=1, precision="bfloat16")
    assert config.backbone.dtype == "bfloat16"
    assert resolve(asdict(config)) == config  # as config.json says
    made = experiment.build(config)
    state, key = made.template(), jax.eval_shape(lambda: jax.random.key(config.seed))
    update = made.jitted_step(state).trace(jax.tree.leaves(state), made.example_batch(), key)
    text = update.lower(lowering_platforms=("cuda",)).as_text()
    convolutions = [line for line in text.splitlines() if "stablehlo.convolution" in line]
    assert len(convolutions) >= 3
    assert all(re.search(r"\(tensor<[x\d]*bf16>, tensor<[x\d]*bf16>\)", line) for line in convolutions)
    assert re.search(r"dot_general.*\(tensor<16x4xbf16>, tensor<4x8xbf16>\) -> tensor<16x8xf32>", text)
    after, _ = update.out_info
    assert [x.dtype for x in after] == [x.dtype for x in jax.tree.leaves(state)]


@pytest.mark.parametrize(("devices", "size"), [(1, 3), (2, 3), (4, 3), (4, 1)])
def test_kernel_gradients_are_summed_over_devices_in_float32(devices: int, size: int) -> None:
    """The form for accelerators, run on CPUs: each device's part is rounded to bfloat16, as cuDNN gives it, their
    sum is not. NumPy has the sum of the parts; the values do not depend on the devices."""
    rng, side = np.random.default_rng(0), 3 + size
    x, grad = (rng.standard_normal(shape).astype(jnp.bfloat16) for shape in ((8, side, side, 3), (8, 4, 4, 5)))
    kernel = rng.standard_normal((size, size, 3, 5)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))

    def general(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    @jax.jit
    def gradients(x: jax.Array, kernel: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(partial(convolution._rounded, general, mesh), x, kernel)[1](grad)

    arguments = jax.device_put(x, rows), kernel, jax.device_put(grad, rows)
    of_x, of_kernel = gradients(*arguments)
    assert (of_x.dtype, of_kernel.dtype) == (jnp.bfloat16, jnp.float32)
    wide_x, wide_grad = x.astype(np.float64), grad.astype(np.float64)
    expected = np.zeros(kernel.shape)
    for part in np.split(np.arange(8), devices):
        for i in range(size):
            for j in range(size):
                whole = np.einsum("nhwc,nhwd->cd", wide_x[part, i : i + 4, j : j + 4], wide_grad[part])
                expected[i, j] += whole.astype(jnp.bfloat16).astype(np.float64)
    np.testing.assert_allclose(of_kernel, expected, rtol=0, atol=0.02 * np.abs(expected).max())
    texts = gradients.lower(*arguments).compile().as_text()
    assert devices == 1 or {*compilation.operations(texts)["collectives"]} == {"all-reduce f32"}
    if size == 1:  # the layers below must not wait for the sum
        (program,) = jax.make_jaxpr(gradients)(*arguments).eqns
        equations = program.params["jaxpr"].eqns
        (at,) = (i for i, each in enumerate(equations) if each.primitive.name == "shard_map")
        rounded, returned = equations[at].invars[1], equations[at].outvars[1]
        assert not any(rounded in each.invars for each in equations[at + 1 :])
        assert any(returned in each.invars for each in equations[at + 1 :])
        barrier, total = equations[at].params["jaxpr"].eqns[-2:]  # of gradient and kernel
        assert (barrier.primitive.name, len(barrier.invars)) == ("optimization_barrier", 2)
        assert (total.primitive.name, total.invars) == ("psum", barrier.outvars[:1])


def test_matrix_products_on_a_cpu_are_those_of_xla() -> None:
    matrix = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    options = device_mesh.compiler_options(device_mesh.make())
    ours, default = (jax.jit(jnp.dot, compiler_options=chosen).lower(matrix, matrix) for chosen in (options, {}))
    assert ["ynn" in lowered.compile().as_text() for lowered in (ours, default)] == [False, True]


def test_chunks_need_a_fraction_of_the_memory() -> None:
    """The compiler's own figure for a batch whose feature maps are larger than everything else."""
    made = baseline.build(baseline.make_config(embedding_dim=16), toys.backbone(1024), toys.training_set(4))
    optimizer = optax.sgd(0.01)
    batch = toys.batch(1, size=256)
    state = jax.eval_shape(partial(step.initial, made, optimizer), jax.random.key(0), batch)

    def temporary(parts: int) -> int:
        run = jax.jit(step.build(method_wrappers.chunked(made, parts), optimizer))
        memory = run.lower(state, batch, jax.random.key(0)).compile().memory_analysis()
        return memory.temp_size_in_bytes

    assert temporary(16) < temporary(1) / 4
