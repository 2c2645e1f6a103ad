"""What compiled programs exchange."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from benchmarks.collectives import Collective, collectives
from dml_jax.train.distributed import mesh as meshes

TEXT = """
  %all-reduce.1 = (f32[3,4]{1,0:T(8,128)}, bf16[5]{0}) all-reduce(%a, %b), channel_id=1, to_apply=%add, metadata={op_name="jit(f)/sum"}
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


def compiled(devices: int, rows: int) -> list[Collective]:
    """The gradient of a kernel [32, 16] in float32 from some rows on each device, and the rows [N, 3] on all."""
    mesh = jax.make_mesh((devices,), (meshes.AXIS,), (AxisType.Auto,), devices=jax.devices()[:devices])
    divided, everywhere = meshes.row_sharded(mesh), meshes.replicated(mesh)

    def update(kernel: jax.Array, x: jax.Array, others: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda kernel: jnp.sum((x @ kernel) ** 2))(kernel), others

    shapes = (((32, 16), everywhere), ((devices * rows, 32), divided), ((devices * rows, 3), divided))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape, sharding in shapes]
    program = jax.jit(update, out_shardings=(everywhere, everywhere)).lower(*arguments).compile()
    return collectives(program.as_text())


def test_a_compiled_program() -> None:
    gradient = Collective("all-reduce", 32 * 16, 32 * 16 * 4, "")
    for devices in (8, 2):
        batch = devices * 7
        found = sorted(one._replace(source="") for one in compiled(devices, 7))
        assert found == [Collective("all-gather", batch * 3, batch * 3 * 4, ""), gradient]
