"""The reader of collectives in compiled programs."""

import jax
import jax.numpy as jnp

from benchmarks.collectives import Collective, collectives
from dml_jax.train import mesh as meshes

TEXT = """
  %all-reduce.1 = (f32[3,4]{1,0}, bf16[5]{0}) all-reduce(%a, %b), channel_id=1, to_apply=%add, metadata={op_name="jit(f)/sum"}
  %start = (f32[2]{0}, f32[16]{0}) all-gather-start(%c), dimensions={0}
  %all-gather.2 = f32[16]{0:T(128)} all-gather-done(%start), metadata={op_name="jit(f)/dot"}
  ROOT %p = pred[7]{0} collective-permute(%d), source_target_pairs={{0,1}}
  %fused = f32[100]{0} fusion(%all-reduce.1), calls=%computation
  %scalar = s64[] all-reduce(%e), to_apply=%add
"""  # noqa: E501


def test_a_program_by_hand() -> None:
    assert collectives(TEXT) == [
        Collective("all-reduce", 12, 48, "jit(f)/sum"),
        Collective("all-reduce", 5, 10, "jit(f)/sum"),
        Collective("all-gather", 16, 64, "jit(f)/dot"),
        Collective("collective-permute", 7, 7, ""),
        Collective("all-reduce", 1, 8, ""),
    ]


def test_a_compiled_program() -> None:
    """The gradient of a kernel [32, 16] in float32 from 64 rows on eight devices, and the rows [64, 3] on all."""
    mesh = meshes.make()
    rows, everywhere = meshes.row_sharded(mesh), meshes.replicated(mesh)

    def update(kernel: jax.Array, x: jax.Array, others: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda kernel: jnp.sum((x @ kernel) ** 2))(kernel), others

    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
        for shape, sharding in (((32, 16), everywhere), ((64, 32), rows), ((64, 3), rows))
    ]
    text = jax.jit(update, out_shardings=(everywhere, everywhere)).lower(*arguments).compile().as_text()
    found = sorted((c.kind, c.size, c.bytes) for c in collectives(text))
    assert found == [("all-gather", 64 * 3, 64 * 3 * 4), ("all-reduce", 32 * 16, 32 * 16 * 4)]
