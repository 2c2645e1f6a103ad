"""Lines of metrics: a torn last one is a kill's doing, any other damage is reported."""

from pathlib import Path

import pytest

from dml_jax.errors import CheckpointError
from dml_jax.train.jsonl import Records

WHOLE = ['{"step": 1, "loss": 0.5}', '{"step": 2, "loss": 0.25}', '{"step": 3, "loss": 0.125}']


def records(folder: Path, text: str) -> Records:
    (folder / "metrics.jsonl").write_text(text)
    return Records(folder / "metrics.jsonl")


def test_a_torn_last_line_is_left_out_and_written_again(tmp_path: Path) -> None:
    torn = records(tmp_path, "\n".join([*WHOLE[:2], WHOLE[2][:9]]))
    assert [line["step"] for line in torn.read()] == [1, 2]
    torn.cut(2)
    torn.write({"step": 3, "loss": 0.125})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == WHOLE


@pytest.mark.parametrize("damage", ['{"step": 2, "lo', "", "3", '{"loss": 1}', '{"step": "2"}', "\0\0\0"])
def test_another_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    text = "\n".join([WHOLE[0], damage, WHOLE[2]]) + "\n"
    damaged = records(tmp_path, text)
    for act in (damaged.read, lambda: damaged.cut(3)):
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl: line 2 is damaged"):
            act()
    assert (tmp_path / "metrics.jsonl").read_text() == text


def test_no_file_no_lines(tmp_path: Path) -> None:
    assert Records(tmp_path / "metrics.jsonl").read() == []
