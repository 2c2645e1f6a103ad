"""Devices of this machine in place of those that programs are compiled for."""

import jax

from dml_jax.lab.compilation import CHIPS, Topology
from dml_jax.train.distributed import device_mesh


def on_this_machine(devices: int = 1) -> Topology:
    mesh = jax.sharding.Mesh(jax.devices()[:devices], (device_mesh.AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    return Topology("h100:2", mesh, {}, *CHIPS["h100"])
