"""Hostile directories: runs, prepared data sets; and hostile weights."""

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np
import safetensors.numpy
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dml_jax import config as configs
from dml_jax.backbones.weights import tensor_files
from dml_jax.data import split_metadata, store
from dml_jax.data.formats import folder
from dml_jax.data.split import Split, unread
from dml_jax.train.records import workdir
from dml_jax.train.records.jsonl import JsonLines
from tests.reliability import mutations, sandbox
from tests.reliability.sandbox import CONFIG, Attack, Files
from tests.train import experiments

FACTS = {
    "config": json.loads(json.dumps(asdict(experiments.small(steps=20)))), "hash": "x", "data_hash": "y", "classes": 40,
    "images": 7208, "shape": [24, 24], "commit": None, "versions": {},
}  # fmt: skip
LINE = {"step": 3, "loss": 1.5, "test/recall@1": 0.5}


@st.composite
def _work_directory(draw: DrawFn) -> Files:
    lines = b"\n".join(draw(st.lists(mutations.json_file(LINE) | st.just(json.dumps(LINE).encode()), max_size=3)))
    files: dict[str, bytes | Path | None] = {
        "config.json": draw(mutations.json_file(FACTS)),
        "metrics.jsonl": lines + draw(st.sampled_from((b"\n", b""))),
        "results.json": draw(mutations.json_file({"steps": 20, "step": 20, "equal_error_cosine": 0.5})),
    }
    if draw(st.integers(0, 4)) == 0:
        name = draw(st.sampled_from((*files, "checkpoints", "figures", "embeddings")))
        files[name] = draw(st.sampled_from((None, Path("/nowhere"), Path("config.json"), b"")))
    return files


def _read_work_directory(directory: Path) -> None:
    """Each file is read even if another one is refused."""
    config = experiments.small(steps=20)
    readers: list[Callable[[], object]] = [
        lambda: workdir.check_same_run(directory, config),
        lambda: configs.resolve(workdir.read_config(directory)["config"]),
        lambda: workdir.is_finished(directory, 20),
        lambda: JsonLines(directory / "metrics.jsonl").truncate(2),
    ]
    sandbox.read_all(readers)


@functools.cache
def _prepared() -> dict[str, bytes]:
    splits = {name: Split(np.array([0, 0, 1, 1]), list("abcd"), unread, ["x", "y"]) for name in ("train", "test")}
    with tempfile.TemporaryDirectory() as folder:
        split_metadata.save(Path(folder) / store.INDEX, splits)
        index = (Path(folder) / store.INDEX).read_bytes()
    entry = {store.INDEX: [len(index), sha256(index).hexdigest()]}
    marker = {"name": "folder", "sha256": "0", "splits": {}, "files": entry, "request": {}, "skipped": []}
    return {store.INDEX: index, store.MARKER: json.dumps(marker).encode()}


@st.composite
def _prepared_data(draw: DrawFn) -> Files:
    files: dict[str, bytes | Path | None] = dict(_prepared())
    if draw(st.booleans()):
        files[store.MARKER] = draw(mutations.json_file(json.loads(_prepared()[store.MARKER])))
    else:
        files[store.INDEX] = draw(mutations.damaged(_prepared()[store.INDEX]) | st.sampled_from((b"", None)))
    return files


def _read_prepared(directory: Path) -> None:
    sandbox.read_all(
        [
            lambda: store.load(configs.Data(name="folder", path=str(directory)), folder.RECIPE),
            lambda: store.verify(directory),
            lambda: split_metadata.load(directory / store.INDEX),
        ]
    )


WEIGHTS = {"layer1.0.conv1.weight": np.ones((2, 2, 1, 1), np.float32), "fc.bias": np.zeros(3, np.float16)}


def _read_weights(directory: Path) -> None:
    tensor_files.finite(tensor_files.read(directory / "w.safetensors"), "w.safetensors")


ATTACKS = {
    "weights": Attack(
        mutations.damaged(safetensors.numpy.save(WEIGHTS)).map(lambda content: {"w.safetensors": content}),
        _read_weights,
        lambda d: ["convert", f"--weights={d}/w.safetensors", f"--output={d}/out"],
        share=20,
    ),
    "work directory": Attack(
        _work_directory(),
        _read_work_directory,
        lambda d: ["main", CONFIG, f"--workdir={d}", "--mode=evaluate", "--quiet"],
    ),
    "prepared data": Attack(_prepared_data(), _read_prepared, lambda d: ["prepare", f"--verify={d}"]),
}
