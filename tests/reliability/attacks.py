"""All attacks by name: those on configurations, and those of the other modules."""

import functools
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dml_jax import config as configs
from dml_jax import main
from dml_jax.config.files import load_config
from tests.reliability import attack_data, attack_directories
from tests.reliability.sandbox import CONFIG, Attack, Files


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


ATTACKS = {
    "configuration": Attack(
        _overrides(),
        lambda d: main.execute([CONFIG, *_lines(d), "--mode=show"]),
        lambda d: ["main", CONFIG, f"--workdir={d}/run", *_lines(d), "--mode=show"],
    ),
    **attack_data.ATTACKS,
    **attack_directories.ATTACKS,
}
