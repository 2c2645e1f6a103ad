"""Hostile weights and checkpoints."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dml_jax import manifest
from dml_jax.backbones.weights import tensor_files
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.step import TrainState
from tests.reliability import mutations
from tests.reliability.sandbox import Attack, Files

WEIGHTS = {"layer1.0.conv1.weight": np.ones((2, 2, 1, 1), np.float32), "fc.bias": np.zeros(3, np.float16)}


def _read_weights(directory: Path) -> None:
    tensor_files.finite(tensor_files.read(directory / "w.safetensors"), "w.safetensors")


# Checkpoints: damage, with or without a manifest that agrees with it.


def _state(step: int) -> TrainState:
    values = jax.numpy.full((3, 2), step, jax.numpy.float32)
    return TrainState(jax.numpy.asarray(step, jax.numpy.int32), {"w": values}, {}, {"mu": values})


@functools.cache
def _checkpoints() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        store = Checkpoints(Path(folder), lambda: _state(0), None, run={})
        for step in (1, 2):
            store.save("latest", _state(step), {"best": 0.5, "pending": None, "lines": 1})
        store.close()
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


@st.composite
def _damaged_checkpoint(draw: DrawFn) -> Files:
    files: dict[str, Any] = dict(_checkpoints())
    newest = sorted(name for name in files if name.startswith("latest/2/"))
    for name in draw(st.lists(st.sampled_from(newest), min_size=1, max_size=2, unique=True)):
        what = draw(st.integers(0, 9))
        if what < 7:
            text = files[name][:1] == b"{" and b"\0" not in files[name]
            files[name] = draw(mutations.json_file(json.loads(files[name])) if text else mutations.damaged(files[name]))
        else:
            del files[name]
            files |= {name: draw(st.sampled_from((None, Path("/nowhere"), Path("."))))} if what > 7 else {}
    if draw(st.booleans()) and isinstance(files.get(f"latest/2/{manifest.NAME}"), bytes):
        del files[f"latest/2/{manifest.NAME}"]
        with tempfile.TemporaryDirectory() as folder:
            for name in newest:
                if isinstance(files.get(name), bytes):
                    path = Path(folder) / name.removeprefix("latest/2/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(files[name])
            manifest.write(Path(folder), {})
            content = (Path(folder) / manifest.NAME).read_bytes()
        files[f"latest/2/{manifest.NAME}"] = content
    return files


def _read_checkpoint(directory: Path) -> None:
    """Like a run that resumes; a checkpoint that is read must be one of those that were written."""
    store = Checkpoints(directory, lambda: _state(0), lambda text: None, run={})
    try:
        restored = store.restore()
        assert restored is not None
        store.select("reported", "last")
    finally:
        store.close()


ATTACKS = {
    "weights": Attack(
        mutations.damaged(safetensors.numpy.save(WEIGHTS)).map(lambda content: {"w.safetensors": content}),
        _read_weights,
        lambda d: ["convert", f"--weights={d}/w.safetensors", f"--output={d}/out"],
        share=20,
    ),
    "checkpoint": Attack(_damaged_checkpoint(), _read_checkpoint, share=1),
}
