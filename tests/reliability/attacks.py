"""Hostile input by kind: valid files with flipped, missing or repeated parts, and command lines with odd values."""

import copy
import functools
import io
import json
import operator
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.numpy
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from PIL import Image

from dml_jax import main
from dml_jax.analysis import changes
from dml_jax.analysis.changes import Change
from dml_jax.backbones.weights import tensor_files
from dml_jax.config import flatten, resolve
from dml_jax.config.files import load_config
from dml_jax.data import decode, files, prepared_data, sources, transforms, understand
from dml_jax.data.formats import csv as csv_tables
from dml_jax.errors import UserError
from dml_jax.evaluation import validation
from dml_jax.evaluation.open_set import Photographs
from dml_jax.inference.enrolled import Enrolled
from dml_jax.inference.index import Index
from dml_jax.train.records import workdir
from dml_jax.train.records.logs import JsonLines
from tests.data import pictures
from tests.reliability.sandbox import CONFIG, Attack, Files
from tests.tiny_model import identity
from tests.train import experiments

HOSTILE_JSON: tuple[Any, ...] = (
    None, True, 0, -1, 1, 3, 10**20, -(2**63), 1e308, 0.5, float("nan"), float("inf"),
    "", "x", "1", "../../x", "/etc/passwd", "~nobody-here/x", "nul\0x", "\ud800", "\x1b[2J",
    "x" * 5000, [], {}, [[]], [0, -1], [1e9, 1e9], [10**20], ["a", 1], {"a": None},
    {"name": "baseline"}, {"": {"": {}}},
)  # fmt: skip
BROKEN_JSON = (
    b"", b"[" * 5000, b'{"a":' * 5000, b"\xff\xfe", b"null", b"9" * 5000, b"\xef\xbb\xbf{}"
)  # fmt: skip


@st.composite
def damaged(draw: DrawFn, data: bytes) -> bytes:
    """The bytes after a few edits: parts removed, repeated, overwritten or inserted."""
    edited = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, max(len(edited) - 1, 0)))
        end = start + draw(st.sampled_from((0, 1, 2, 4, 8, 30, 500, len(edited))))
        part = bytes(edited[start:end])
        changed = (b"", bytes(len(part)), b"\xff" * len(part), part[:500] * 2, part[:500] * 50)
        edited[start:end] = draw(st.sampled_from(changed) | st.binary(max_size=20))
    return bytes(edited)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    return [place for key, entry in inner for place in ((*path, key), *_places(entry, (*path, key)))]


@st.composite
def json_file(draw: DrawFn, value: Any) -> bytes:
    """A JSON object with one or two entries replaced or removed or, less often, with damaged bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(damaged(json.dumps(value).encode()) | st.sampled_from(BROKEN_JSON))
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from(_places(value)))
        holder = functools.reduce(operator.getitem, path, value)
        if draw(st.integers(0, 2)):
            holder[last] = copy.deepcopy(draw(st.sampled_from(HOSTILE_JSON)))
        else:
            del holder[last]
    return json.dumps(value).encode()


def _lines(directory: Path) -> list[str]:
    return (directory / "arguments").read_text("utf-8", "surrogatepass").split("\0")


TEXTS = (
    "", "0", "-1", "1", "3", "2147483648", "1e39", "1e-50", "nan", "-inf", "1e400", "0x10",
    "1_000", "٣", "true", "99999999999999999999", "9" * 5000, "()", "(1,)", "[1,2]", "1,", "a,b",
    "(1,2", "{}", "(" * 300, "[" * 5000, "__import__('os').system('touch x')", "'a'", "b'x'",
    "1+1", "x" * 3000, "../../x", "~nobody/x", "~", "1;2", "\x1b[2J", "\udcff",
    "line\nbreak", "balanced", "shuffled", "cosine", "folder", "(0.1,0.2)", "/dev/zero",
)  # fmt: skip
NO_KEYS = (
    "", ".", "train", "method..tau", "__class__", "data.__init__", "train.groups.x", "no.such",
    "a" * 999,
)  # fmt: skip


@functools.cache
def _values() -> dict[str, str]:
    values = flatten(load_config(CONFIG.removeprefix("--config="), {}))
    return {key: ",".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in values.items()}


@st.composite
def _overrides(draw: DrawFn) -> Files:
    values, arguments = _values(), []
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from((*values, *values, *NO_KEYS)))
        text = st.just(values.get(key, "")) | st.sampled_from(tuple(values.values())) | st.sampled_from(TEXTS)
        arguments.append(f"--config.{key}={draw(text)}")
    if draw(st.integers(0, 4)) == 0:
        option = draw(st.sampled_from(("workdir", "checkpoint", "output", "coordinator", "processes", "process", "")))
        arguments.append(f"--{option}={draw(st.sampled_from(TEXTS))}")
    return {"arguments": "\0".join(arguments).encode("utf-8", "surrogatepass")}


FACTS = {"config": json.loads(json.dumps(asdict(experiments.small(steps=20)))), "hash": "x", "data_hash": "y"}
FACTS |= {"classes": 40, "images": 7208, "shape": [24, 24], "commit": None, "versions": {}}
LINE = {"step": 3, "loss": 1.5, "test/recall@1": 0.5}


@st.composite
def _work_directory(draw: DrawFn) -> Files:
    lines = b"\n".join(draw(st.lists(json_file(LINE) | st.just(json.dumps(LINE).encode()), max_size=3)))
    files: dict[str, bytes | Path | None] = {
        "config.json": draw(json_file(FACTS)),
        "metrics.jsonl": lines + draw(st.sampled_from((b"\n", b""))),
        "results.json": draw(json_file({"steps": 20, "step": 20, "equal_error_cosine": 0.5})),
    }
    if draw(st.integers(0, 4)) == 0:
        name = draw(st.sampled_from((*files, "checkpoints", "figures", "embeddings")))
        files[name] = draw(st.sampled_from((None, Path("/nowhere"), Path("config.json"), b"")))
    return files


def _read_work_directory(directory: Path) -> None:
    """Each file is read even if another one is refused."""
    config = experiments.small(steps=20)
    readers: list[Callable[[], object]] = [
        lambda: workdir.check_same_run(directory, {"config": asdict(config)}),
        lambda: resolve(workdir.read_config(directory)["config"]),
        lambda: workdir.is_finished(directory, 20),
        lambda: JsonLines(directory / "metrics.jsonl").truncate(2),
    ]
    refused: UserError | None = None
    for reader in readers:
        try:
            reader()
        except UserError as error:
            refused = error
    if refused:
        raise refused


WEIGHTS = {"layer1.0.conv1.weight": np.ones((2, 2, 1, 1), np.float32), "fc.bias": np.zeros(3, np.float16)}


def _read_weights(directory: Path) -> None:
    tensor_files.finite(tensor_files.read(directory / "w.safetensors"), "w.safetensors")


PICTURES = {f"{name}{i}.png": pictures.encoded(i, 8, 8, "PNG") for i, name in enumerate("aabbccdd")}
TABLE = "path,label,split\n" + "".join(f"{n},{n[0]},{'train' if n < 'c' else 'test'}\n" for n in PICTURES)


def _damaged(name: str, contents: Sequence[bytes], **others: bytes) -> SearchStrategy[Files]:
    """A damaged file of this name beside others, whose names have underscores in place of dots."""
    beside = {other.replace("_", "."): content for other, content in others.items()}
    return st.sampled_from(contents).flatmap(damaged).map(lambda content: {**beside, name: content})


def _written(write: Callable[[Any], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _read_table(directory: Path) -> None:
    table = understand.understand(csv_tables.RECIPE, sources.survey(files.walk(directory)), sources.Options(), "source")
    prepared_data._check_folder(directory, csv_tables.RECIPE, table, "csv")


def _images() -> list[bytes]:
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    colours = Image.fromarray(pictures.pixels(0, 12, 16))
    modes = [("RGB", kind) for kind in decode.FORMATS]
    modes += [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("1", "TIFF"), ("P", "GIF")]
    images = [_written(lambda f, m=mode, k=kind: colours.convert(m).save(f, format=k)) for mode, kind in modes]
    return [*images, _written(lambda file: colours.save(file, format="JPEG", exif=exif, progressive=True))]


def _read_image(directory: Path) -> None:
    pixels = decode.rgb(files.File(directory / "a" / "x.jpg").read())
    assert pixels.dtype == np.uint8
    assert pixels.shape[2:] == (3,)
    transforms.centre_crop(transforms.resize_shorter(pixels, 16), 16)


ROWS, LABELS = (_written(lambda file: np.save(file, np.eye(3))), _written(lambda file: np.save(file, np.arange(3))))


def _read_arrays(directory: Path) -> None:
    points = validation.embeddings(validation.load(directory / "x.npy"))
    labels = directory / "labels.txt"
    given = validation.read_lines(labels) if labels.exists() else validation.load(directory / "y.npy")
    validation.labels(given, len(points))


ITEMS = ("a", "x", "", ""), ("b", "y", "1", "1"), ("b", "", "2", "")


@functools.cache
def _index() -> Files:
    rows = np.eye(3, dtype=np.float32)
    index = Index(MODEL, [Enrolled(*each, row) for each, row in zip(ITEMS, rows, strict=True)])
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder, "i"))
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def _damaged_index(name: str) -> SearchStrategy[Files]:
    return damaged(_index()[name]).map(lambda content: _index() | {name: content})  # type: ignore


def _no_others() -> Photographs:
    return Photographs(np.zeros((0, 3), np.float32), *np.zeros((2, 0), "U1"))


MODEL: Any = SimpleNamespace(method_distance=False, identity=identity(0), unseen=_no_others, training_classes=list)


DEVICES: dict[str, Callable[[Path], object]] = {
    "x.npy": validation.load,
    "labels.txt": validation.read_lines,
    "config.json": lambda file: workdir.read_config(file.parent),
    "metrics.jsonl": lambda file: JsonLines(file).truncate(2),
    "w.safetensors": tensor_files.read,
    "manifest.json": lambda file: Index.load(MODEL, file.parent),
    "x.jpg": lambda file: files.File(file).read(),
    "c.py": lambda file: load_config(str(file), {}),
}


def _read_device(directory: Path) -> None:
    (file,) = directory.iterdir()
    DEVICES[file.name](file)
    raise AssertionError("has an end")


CLICKS = [Change(1, "move", "./a0.png", "0", "./b/a0.png"), Change(2, "undo", "", "", "1")]


def _changes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        changes.append(Path(folder, "c.csv"), CLICKS)
        return Path(folder, "c.csv").read_bytes()


ATTACKS = {
    "changes of a catalogue": Attack(
        damaged(_changes()).map(lambda content: {**PICTURES, "c.csv": content}),
        lambda d: changes.apply(d, d / "c.csv"),
        lambda d: ["catalogue", str(d), f"--apply={d}/c.csv"],
    ),
    "device": Attack(
        st.sampled_from(tuple(DEVICES)).map(lambda name: {name: Path("/dev/zero")}), _read_device, share=1
    ),
    "index": Attack(st.sampled_from([*_index()]).flatmap(_damaged_index), lambda d: Index.load(MODEL, d / "i")),
    "configuration": Attack(
        _overrides(),
        lambda d: main.execute([CONFIG, *_lines(d), "--mode=show"]),
        lambda d: ["main", CONFIG, f"--workdir={d}/run", *_lines(d), "--mode=show"],
    ),
    "weights": Attack(
        damaged(safetensors.numpy.save(WEIGHTS)).map(lambda content: {"w.safetensors": content}),
        _read_weights,
        lambda d: ["convert", f"--weights={d}/w.safetensors", f"--output={d}/out"],
        share=20,
    ),
    "work directory": Attack(
        _work_directory(),
        _read_work_directory,
        lambda d: ["main", CONFIG, f"--workdir={d}", "--mode=evaluate", "--quiet"],
    ),
    "CSV table": Attack(
        damaged(TABLE.encode()).map(lambda content: {**PICTURES, "t.csv": content}),
        _read_table,
        lambda d: ["prepare", "--name=csv", f"--source={d}", f"--output={d}/out", "--quiet"],
    ),
    "image": Attack(
        _damaged("a/x.jpg", _images()).map(
            lambda f: f | {"a/y.png": PICTURES["a0.png"], "b/z.png": PICTURES["b2.png"]}
        ),
        _read_image,
        lambda d: ["prepare", "--name=folder", f"--source={d}", f"--output={d}/out", "--quiet"],
        share=20,
    ),
    "embeddings (.npy)": Attack(
        _damaged("x.npy", [ROWS], y_npy=LABELS) | _damaged("y.npy", [LABELS], x_npy=ROWS),
        _read_arrays,
        lambda d: ["evaluate", f"--embeddings={d}/x.npy", f"--labels={d}/y.npy", "--quiet"],
    ),
    "labels (text)": Attack(
        _damaged("labels.txt", ["ant\nbee\nFrüchte/Apfel\n".encode()], x_npy=ROWS),
        _read_arrays,
        lambda d: ["evaluate", f"--embeddings={d}/x.npy", f"--labels={d}/labels.txt", "--quiet"],
    ),
}
