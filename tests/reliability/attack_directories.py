"""Hostile directories: runs, prepared data sets, and what the library exports."""

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dml_jax import config as configs
from dml_jax import manifest
from dml_jax.backbones.weights import store as converted
from dml_jax.data import split_metadata, store
from dml_jax.data.formats import folder
from dml_jax.data.split import Split, unread
from dml_jax.errors import DataError
from dml_jax.evaluation.open_set import Photographs
from dml_jax.export import embedding_files
from dml_jax.inference import inputs, parts
from dml_jax.inference.index import Index
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
            lambda: store.load(configs.Data(name="folder", path=str(directory)), "folder", folder.RECIPE),
            lambda: store.verify(directory),
            lambda: split_metadata.load(directory / store.INDEX),
        ]
    )


# Exported and unfinished embeddings, indexes of enrolled classes, converted weights.

PLAN = parts.plan([inputs.Unit("files", ("a", "b", "c"), "/")], parts.Facts("x", "y", 1, True, "jax"))


class _Embedder:
    fingerprint, own_distance = "f", False

    def embed(self, images: Any) -> np.ndarray:
        return np.ones((len(images), 2), np.float32)

    def embed_each(self, groups: Any, on_bad: Any) -> Any:
        for group in groups:
            rows = self.embed(group)
            rows[1] = np.nan
            on_bad(DataError("b: not an image"))
            yield rows

    def unseen(self) -> tuple[Photographs, list[str]]:
        rows = np.tile(np.eye(2, dtype=np.float32)[:1] - np.eye(2, dtype=np.float32)[1:], (40, 1))
        return Photographs(rows, np.arange(40) // 8, np.array([""] * 40)), list("abcde")


@functools.cache
def _exports() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows = np.eye(3, dtype=np.float32)
        embedding_files.write(root / "e", rows, np.arange(3), ["a", "b", "c"], config_hash="x", step=1)
        index = Index(_Embedder())
        index.add({"x": [np.zeros((2, 2, 3), np.uint8)] * 2})
        index.expect()  # so that the calibration is saved as well
        index.save(root / "i.npz")
        with parts.opened(root / "s", PLAN) as written:
            list(parts.embed(_Embedder(), [(written.file(0), inputs.Unit("files", ("a", "b", "c"), "/"))]))
        converted.write(root / "w", {"backbone/params/a": rows}, {"architecture": "resnet"})
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@st.composite
def _damaged_exports(draw: DrawFn) -> Files:
    files = dict(_exports())
    name = draw(st.sampled_from(sorted(files)))
    text = name.endswith(".json")
    files[name] = draw(mutations.json_file(json.loads(files[name])) if text else mutations.damaged(files[name]))
    if draw(st.booleans()) and name[0] in "ew" and not name.endswith(("manifest.json", "weights.json")):
        files |= _confirmed(files, name)
    return files


def _confirmed(files: Files, name: str) -> Files:
    """The digests that confirm a damaged file."""
    if name[0] == "w":
        content = json.loads(files["w/weights.json"])
        return {"w/weights.json": json.dumps(content | {"weights_sha256": sha256(files[name]).hexdigest()}).encode()}
    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            if path.startswith("e/"):
                Path(folder, path[2:]).write_bytes(content)
        Path(folder, manifest.NAME).unlink()
        manifest.write(Path(folder), {})
        return {"e/manifest.json": Path(folder, manifest.NAME).read_bytes()}


def _read_exports(directory: Path) -> None:
    sandbox.read_all(
        [
            lambda: embedding_files.read(directory / "e"),
            lambda: parts.Parts(directory / "s", PLAN).summary(3),
            lambda: parts.Parts(directory / "s", PLAN).usable_names(),
            lambda: list(parts.Parts(directory / "s", PLAN).usable_rows()),
            lambda: Index.load(_Embedder(), directory / "i.npz").classify([np.zeros((2, 2, 3), np.uint8)]),
            lambda: converted.read(directory / "w"),
        ]
    )


ATTACKS = {
    "work directory": Attack(
        _work_directory(),
        _read_work_directory,
        lambda d: ["main", CONFIG, f"--workdir={d}", "--mode=evaluate", "--quiet"],
    ),
    "prepared data": Attack(_prepared_data(), _read_prepared, lambda d: ["prepare", f"--verify={d}"]),
    "exported files": Attack(_damaged_exports(), _read_exports),
}
