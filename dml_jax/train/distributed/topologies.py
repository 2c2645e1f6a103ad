"""Devices that need not be present: XLA compiles for them on any machine that has JAX's wheels for their platform."""

import importlib.util
import os
import re
from typing import NamedTuple

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from dml_jax.errors import ConfigError
from dml_jax.train.distributed.mesh import AXIS

H100 = """
    gpu_device_info {
      threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
      shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
      shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 minor: 0 }
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
    }
    platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 patch: 0 }
    runtime_version { major: 12 minor: 9 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Chip(NamedTuple):
    """The vendor's peak figures of one device, per second and in bytes."""

    flops: dict[str, float]  # dense products by precision
    bandwidth: float  # of its memory
    memory: int
    network: float  # to the other devices of a host, in one direction


class Topology(NamedTuple):
    """Devices to compile for."""

    name: str
    platform: str  # "cuda" or "tpu"
    mesh: Mesh
    chip: Chip
    options: dict[str, bool]  # of the compiler


CHIPS = {
    "h100": Chip({"float32": 67e12, "tensorfloat32": 494e12, "bfloat16": 989e12}, 3.35e12, 84_942_979_072, 450e9),
    # A product of float32 takes six passes of bfloat16.
    "v5e": Chip({"float32": 197e12 / 6, "bfloat16": 197e12}, 819e9, 16 * 2**30, 200e9),
}
WHEELS = {"h100": ("jax_cuda12_plugin", "requirements-cuda.txt"), "v5e": ("libtpu", "requirements-tpu.txt")}
KNOWN = "h100:N or h100:HOSTSxN (GPUs of a host), v5e:2x2, v5e:2x4, v5e:4x4, v5e:8x8 or v5e:16x16"


def find(name: str) -> Topology:
    """The devices that a name such as "h100:8", "h100:2x8" or "v5e:4x4" stands for.

    Raises ConfigError if the name is unknown or the wheels of its platform are not installed.
    """
    found = re.fullmatch(r"(h100):(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})|(v5e):(2x2|2x4|4x4|8x8|16x16)", name)
    if found is None:
        raise ConfigError(f"--topology={name}: is unknown; give {KNOWN}")
    kind = found[1] or found[4]
    module, requirements = WHEELS[kind]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"--topology={name}: JAX cannot compile for it; pip install -r {requirements}")
    if kind == "h100":
        shape = f"{found[2] or 1}x1x{found[3]}"
        devices = topologies.get_topology_desc(
            platform="cuda", topology_name="any", topology=shape, target_config=H100
        ).devices
        # Without a device to measure them on, Triton finds no sizes for the tiles of some products.
        options = {"xla_gpu_enable_triton_gemm": False}
    else:
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # the service that tells a TPU's host about itself
        devices, options = topologies.get_topology_desc(platform="tpu", topology_name=name).devices, {}
    platform = "cuda" if kind == "h100" else "tpu"
    return Topology(name, platform, Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,)), CHIPS[kind], options)
