"""What is read from compiled programs, against programs whose cost is known by hand."""

from functools import partial
from textwrap import dedent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dml_jax.lab import hlo
from dml_jax.train.distributed import device_mesh


def test_products_by_type_and_precision() -> None:
    text = """
    ENTRY %main (a: f32[4,4], b: bf16[4,4]) -> f32[4,4] {
      %a = f32[4,4]{1,0} parameter(0)
      %b = bf16[4,4]{1,0} parameter(1)
      %c = f32[4,4]{1,0} dot(%a, %a), lhs_contracting_dims={1}, operand_precision={highest,highest}
      %d = (f32[4,4]{1,0}, u8[0]{0}) custom-call(%b, %b), custom_call_target="__cudnn$convForward"
      %e = (f32[4,4]{1,0}, s8[8]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={"precision_config":{"operand_precision":["HIGH","HIGH"]}}
      ROOT %f = f32[4,4]{1,0} transpose(%c), dimensions={1,0}
    }
    """  # noqa: E501
    assert [tuple(row.values()) for row in hlo.products(text)] == [
        ("convolution", "bf16", "default", 1),
        ("dot", "bf16×f32", "high", 1),
        ("dot", "f32", "highest", 1),
    ]
    assert hlo.copies(text) == {"count": 1, "bytes": 64}


def test_launches_and_graphs() -> None:
    """A convolution and a loop end a graph, which has five launches or more; the loop runs three
    times."""
    five = "\n".join(f"%n{i} = f32[8]{{0}} negate(%a)" for i in range(5))
    text = f"""
    %sum (p: f32[8]) -> f32[] {{
      %p = f32[8]{{0}} parameter(0)
      ROOT %q = f32[] reduce(%p, %zero), dimensions={{0}}, to_apply=%add
    }}
    %body (p: f32[8]) -> f32[8] {{
      %p = f32[8]{{0}} parameter(0)
      ROOT %q = f32[8]{{0}} copy(%p)
    }}
    ENTRY %main (a: f32[8]) -> f32[8] {{
      %a = f32[8]{{0}} parameter(0)
      {five}
      %c = (f32[8]{{0}}, u8[0]{{0}}) custom-call(%a, %a), custom_call_target="__cudnn$convForward"
      %d = (f32[8]{{0}}, s8[8]{{0}}) custom-call(%a, %a), custom_call_target="__cublas$lt$matmul"
      %g = f32[8]{{0}} get-tuple-element(%c), index=0
      %r = f32[] fusion(%g), kind=kInput, calls=%sum
      %s = f32[8]{{0}} all-reduce-start(%g), to_apply=%add
      %t = f32[8]{{0}} all-reduce-done(%s)
      ROOT %w = f32[8]{{0}} while(%t), condition=%cond, body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}
    }}
    """  # noqa: E501
    found = hlo.launches(dedent(text))
    kinds = {"elementwise": 5, "copy": 3, "convolution": 1, "product": 1, "reduction": 1}
    assert found == {
        "kinds": kinds | {"collective": 1},
        "graphs": 1,
        "in graphs": 5,
        "with convolutions": {"graphs": 1, "in graphs": 8},
    }


def test_traffic_of_a_loop_counts_every_turn() -> None:
    text = """
    %body (p: f32[8]) -> f32[8] {
      %p = f32[8]{0} parameter(0)
      ROOT %q = f32[8]{0} add(%p, %p)
    }
    ENTRY %main (a: f32[8]) -> f32[8] {
      %a = f32[8]{0} parameter(0)
      %n = f32[8]{0} negate(%a)
      ROOT %w = f32[8]{0} while(%n), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
    }
    """  # noqa: E501
    assert hlo.traffic(dedent(text)) == 2 * 32 + 5 * 3 * 32


def test_traffic_of_slices_counts_what_they_read() -> None:
    text = """
    %fused (p: f32[100], q: f32[8]) -> f32[8] {
      %p = f32[100]{0} parameter(0)
      %q = f32[8]{0} parameter(1)
      %s = f32[8]{0} slice(%p), slice={[0:8]}
      ROOT %r = f32[8]{0} add(%s, %q)
    }
    ENTRY %main (a: f32[100]) -> f32[8] {
      %a = f32[100]{0} parameter(0)
      %b = f32[8]{0} slice(%a), slice={[8:16]}
      ROOT %c = f32[8]{0} fusion(%a, %b), kind=kLoop, calls=%fused
    }
    """
    assert hlo.traffic(dedent(text)) == 2 * 32 + 3 * 32


def test_traffic_of_a_tpu_leaves_out_what_stays_on_the_chip() -> None:
    """Read: 32 bytes of %a to the chip, 16 of its slice; written: the 32 of the result."""
    text = """
    ENTRY %main (a: f32[8]) -> f32[8] {
      %a = f32[8]{0:T(8)} parameter(0)
      %s = (f32[8]{0:T(8)S(1)}, f32[8]{0:T(8)}, u32[]{:S(2)}) copy-start(%a)
      %d = f32[8]{0:T(8)S(1)} copy-done(%s)
      %p = ((f32[8]{0:T(8)}), f32[4]{0:T(4)S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:4]}
      %q = f32[4]{0:T(4)S(1)} slice-done(%p)
      %n = f32[8]{0:T(8)S(1)} negate(%d)
      %m = f32[4]{0:T(4)S(1)} slice(%n), slice={[0:4]}
      %c = (f32[8]{0:T(8)}, f32[8]{0:T(8)S(1)}, u32[]{:S(2)}) copy-start(%n)
      ROOT %r = f32[8]{0:T(8)} copy-done(%c)
    }
    """
    assert hlo.traffic(dedent(text)) == 32 + 16 + 32
    assert hlo.copies(dedent(text)) == {"count": 0, "bytes": 0}


def test_collectives_of_a_sum_over_devices() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((16, 5), jnp.float32, sharding=rows)
    text = jax.jit(lambda x: x.sum(axis=0)).lower(x).compile().as_text()
    assert hlo.collectives(text) == [
        {"operation": "all-reduce", "type": "f32", "count": 1, "bytes": 20}
    ]
    halves = """
      %g = ((f32[1,3]{1,0}, f32[1,5]{1,0}), (f32[2,3]{1,0}, f32[2,5]{1,0})) all-gather-start(%a, %b), dimensions={0}
      %h = (f32[2,3]{1,0}, f32[2,5]{1,0}) all-gather-done(%g)
      %p = (f32[7]{0}, f32[7]{0}, u32[], u32[]) collective-permute-start(%c), source_target_pairs={{0,1}}
    """  # noqa: E501
    found = [tuple(row.values()) for row in hlo.collectives(halves)]
    assert found == [("all-gather", "f32", 1, 64), ("collective-permute", "f32", 1, 28)]


@pytest.mark.parametrize("stride", [1, 2])
def test_flops_of_a_convolution_and_its_gradients(stride: int) -> None:
    """Two per multiplication of an input that is no padding; XLA counts neither padding nor
    inserted zeros."""

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        return (
            lax.conv_general_dilated(
                x, kernel, (stride, stride), "VALID", dimension_numbers=dimensions
            ).sum()
            ** 2
        )

    x, kernel = jnp.ones((2, 9, 9, 3)), jnp.ones((3, 3, 3, 5))
    side = (9 - 3) // stride + 1
    forward = 2 * (2 * side * side * 5) * (3 * 3 * 3)
    assert hlo.flops(loss, x, kernel, platform="cpu") == forward
    both = hlo.flops(jax.grad(loss, (0, 1)), x, kernel, platform="cpu")
    to_input = (
        2 * (2 * 9 * 9 * 3) * (3 * 3 * 5) / stride**2
    )  # padding of the transposed convolution included
    assert both == pytest.approx(2 * forward + to_input)


def test_flops_of_loops_and_branches() -> None:
    a = jnp.ones((4, 4))

    def repeated(a: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (x @ a, None), a, length=7)[0]

    def chosen(a: jax.Array) -> jax.Array:
        return lax.platform_dependent(a, cpu=lambda a: a, default=lambda a: a @ a)

    once = 2 * 4**3
    assert hlo.flops(repeated, a, platform="cpu") == 7 * once
    assert hlo.flops(chosen, a, platform="cpu") == 0
    assert hlo.flops(chosen, a, platform="cuda") == once
    assert hlo.flops(partial(jax.jit(jnp.matmul), a), a, platform="tpu") == once


def test_matrix_products_on_a_cpu_are_those_of_xla() -> None:
    matrix = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    options = device_mesh.compiler_options(device_mesh.make())
    ours, default = (
        jax.jit(jnp.dot, compiler_options=chosen).lower(matrix, matrix) for chosen in (options, {})
    )
    assert ["ynn" in lowered.compile().as_text() for lowered in (ours, default)] == [False, True]
