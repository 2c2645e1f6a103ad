"""Data sets of any arrays: trained, resumed, evaluated, loaded and exported like images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml_jax
from dml_jax import drawing
from dml_jax import run as runs
from dml_jax.analysis import run_report
from dml_jax.commands import export
from dml_jax.config import Config, Data, resolve
from dml_jax.config.modules import import_code
from dml_jax.console import Console
from dml_jax.data import arrays, transforms
from dml_jax.errors import ConfigError, DataError
from dml_jax.methods import contract
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from tests.plugins import sentences, text

QUIET = Console(active=False)


def config(**changes: Any) -> Config:
    """The guide's text encoder, small."""
    values = text.get_config().to_dict()
    import_code(values)
    values["train"] |= {"steps": 4, "checkpoint_every": 2, "log_every": 1}
    values["data"] |= {"batch_size": 16, "threads": 1}
    values["backbone"]["width"] = 8
    for key, value in changes.items():
        values["data"][key] = value
    return resolve(values)


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        (np.zeros((4, 6, 3), np.uint8), (4, 6)),
        (np.zeros((8, 5), np.int16), ("int16", 8, 5)),
        (np.zeros(24, np.int32), ("int32", 24)),
        (np.zeros((4, 6, 3), np.float32), ("float32", 4, 6, 3)),
        (np.zeros((4, 6, 1), np.uint8), ("uint8", 4, 6, 1)),
    ],
)
def test_shapes(row: np.ndarray, shape: arrays.Shape) -> None:
    assert arrays.shape_of(row) == shape
    assert tuple(json.loads(json.dumps(shape))) == shape
    for example in (arrays.blank(shape, 2), arrays.random(shape, 2)):
        assert (example.shape, example.dtype) == ((2, *row.shape), row.dtype)
    if not arrays.is_image(shape):
        values = set(example.flat)
        assert values == {0, 1} if row.dtype.kind == "i" else 0 <= min(values) < max(values) < 2
    seen = row.shape[:2] if arrays.is_image(shape) else row.shape
    assert contract.input_shape(contract.zeros(2, shape)) == seen
    picture = drawing.as_image(arrays.random(shape, 1)[0])
    assert (picture.dtype, picture.shape[2]) == (np.uint8, 3)


@pytest.mark.parametrize("row", [np.zeros(4), np.zeros(4, np.int64), np.array(["a"]), np.zeros((0, 3), np.int32)])
def test_rows_that_are_refused(row: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"read returns .*; give numbers of at most 32 bits"):
        arrays.shape_of(row)


def test_training_stopped_resumed_evaluated_loaded_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tokens int32; the embeddings equal those of a run without a stop."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    runs.train(config(), whole, QUIET, Stop())
    stop = Stop()
    read = sentences.load(None)["train"].read
    calls: list[int] = []

    def load(data: Data) -> dict[str, Any]:
        def counted(index: int, rng: Any) -> np.ndarray:
            calls.append(index)
            if len(calls) == 3 * 16:
                stop.signal = 15
            return read(index, rng)

        splits = sentences_load(data)
        return splits | {"train": splits["train"]._replace(read=counted)}

    sentences_load = sentences.load
    with monkeypatch.context() as patch:
        patch.setattr(sentences, "load", load)
        with pytest.raises(Interrupted):
            runs.train(config(), stopped, QUIET, stop)
    monkeypatch.setattr(run_report, "write", lambda run, results: None)  # that of `whole` suffices
    runs.train(config(), stopped, QUIET, Stop())
    rows = [np.load(run / "embeddings/test/embeddings.npy") for run in (whole, stopped)]
    np.testing.assert_array_equal(*rows)
    results = json.loads((whole / "results.json").read_text())
    assert results["recall@1"] == runs.evaluate(config(), whole, "reported", QUIET)["recall@1"]
    assert json.loads((whole / "config.json").read_text())["shape"] == ["int32", 12]

    model = dml_jax.load(whole)
    split = sentences.load(None)["test"]
    embeddings = model.embed([split.read(i, None) for i in range(5)])
    np.testing.assert_allclose(embeddings, rows[0][:5], atol=1e-5)
    np.testing.assert_allclose(model.embed([split.read(7, None)])[0], rows[0][7], atol=1e-5)
    with pytest.raises(DataError, match=r"is int32 \[7\], but the model takes int32 \[12\]; give r"):
        model.embed([np.zeros(7, np.int32)])
    export.execute([f"--model={whole}", "--to=parquet", f"--output={tmp_path}"])
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "test.parquet")
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), rows[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    run = tmp_path / "run"
    runs.train(config(), run, QUIET, Stop())
    export.execute([f"--model={run}", "--to=onnx", f"--output={tmp_path}"])
    split = sentences.load(None)["test"]
    tokens = np.stack([split.read(i, None) for i in range(5)])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (embeddings,) = session.run(["embeddings"], {"images": tokens})
    np.testing.assert_allclose(embeddings, np.load(run / "embeddings/test/embeddings.npy")[:5], atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"flip": 0.5}, "data.flip=0.5"),
        ({"jitter": 0.2}, "data.jitter=0.2"),
        ({"crop": "centre", "image_size": 8, "resize": 8}, "data.crop='centre'"),
        ({"erasing": 0.5}, "data.erasing=0.5"),
    ],
)
def test_options_of_images(changes: dict[str, Any], option: str) -> None:
    message = rf"{option}: the data set holds int32 \[12\], and this option is for images; remove"
    with pytest.raises(ConfigError, match=message):
        experiments.build(config(**changes))


def test_a_network_for_images() -> None:
    values = text.get_config().to_dict()
    import_code(values)
    values["backbone"] = {"name": "resnet"}
    message = r"backbone\.name='resnet': is for images, but the data set contains int32 \[12\]; give a"
    with pytest.raises(ConfigError, match=message):
        experiments.build(resolve(values))


def test_arrays_of_other_shapes() -> None:
    """The message names them when a batch or an evaluation reads them."""
    loaded = sentences.load(None)

    def uneven(read: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        return lambda index, rng: read(index, rng)[: 12 - index % 2]

    splits = {key: split._replace(read=uneven(split.read)) for key, split in loaded.items()}
    run = experiments.build(config(), splits)
    message = r"has int32 \[1[12]\], but .* has int32 \[1[12]\]: the arrays of a data set must have"
    with run.batches(0, 1) as batches, pytest.raises(DataError, match=message):
        next(batches)
    with pytest.raises(DataError, match=r"1-1: is int32 \[11\], but the model takes int32 \[12\]"):
        transforms.fit_image(run.config.data, run.shape, splits["test"].read(1, None), "1-1")


def test_spectrograms_and_vectors() -> None:
    """Other types reach the network as they are."""
    for dtype, shape in ((np.int16, (6, 4)), (np.float32, (12,))):
        rows = np.random.default_rng(0).integers(0, 20, (40, *shape)).astype(dtype)
        read = lambda index, rng, rows=rows: rows[index % 40]  # noqa: E731
        splits = {key: split._replace(read=read) for key, split in sentences.load(None).items()}
        run = experiments.build(config(), splits)
        with run.batches(0, 1) as batches:
            images, _, index = next(batches)
        assert images.dtype == dtype
        np.testing.assert_array_equal(images[0], rows[index % 40])
        batch = run.example_batch()
        assert (batch.images.dtype, batch.images.shape) == (dtype, (1, 16, *shape))
