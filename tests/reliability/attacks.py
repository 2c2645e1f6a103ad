"""All attacks by name: on configurations, runs and weights, and those on data."""

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.numpy
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dml_jax import config as configs
from dml_jax import main
from dml_jax.backbones.weights import tensor_files
from dml_jax.config.files import load_config
from dml_jax.errors import UserError
from dml_jax.train.records import workdir
from dml_jax.train.records.logs import JsonLines
from tests.reliability import attack_data, mutations
from tests.reliability.sandbox import CONFIG, Attack, Files
from tests.train import experiments


def _lines(directory: Path) -> list[str]:
    return (directory / "arguments").read_text("utf-8", "surrogatepass").split("\0")


TEXTS = (
    "", "0", "-1", "1", "3", "2147483648", "1e39", "1e-50", "nan", "-inf", "1e400", "0x10", "1_000", "٣", "true",
    "99999999999999999999", "9" * 5000, "()", "(1,)", "[1,2]", "1,", "a,b", "(1,2", "{}", "(" * 300, "[" * 5000,
    "__import__('os').system('touch x')", "'a'", "b'x'", "1+1", "x" * 3000, "../../x", "~nobody/x", "~", "1;2",
    "\x1b[2J", "\udcff", "line\nbreak", "balanced", "hist", "mpn", "cosine", "folder", "(0.1,0.2)", "/dev/zero",
)  # fmt: skip
NO_KEYS = ("", ".", "train", "method..tau", "__class__", "data.__init__", "train.groups.x", "no.such", "a" * 999)


@functools.cache
def _values() -> dict[str, str]:
    values = configs.flatten(load_config(CONFIG.removeprefix("--config="), {}))
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


ATTACKS = {
    "configuration": Attack(
        _overrides(),
        lambda d: main.execute([CONFIG, *_lines(d), "--mode=show"]),
        lambda d: ["main", CONFIG, f"--workdir={d}/run", *_lines(d), "--mode=show"],
    ),
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
    **attack_data.ATTACKS,
}
