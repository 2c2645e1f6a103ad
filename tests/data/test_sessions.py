"""Sessions of photographs: where their names come from, and metrics that leave them out."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_jax import main, table
from dml_jax.commands import cli, evaluate
from dml_jax.data import decode, sessions
from dml_jax.data.split import Split, take, together, unread
from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import metrics, protocol
from dml_jax.train import model_metrics
from tests.data import layouts
from tests.train.experiments import small


def photo(path: Path, date: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if date:
        exif[306] = f"{date} 12:00:00"
    Image.new("RGB", (40, 40), (9, 9, 9)).save(path, exif=exif)
    return path


def test_where_sessions_come_from(tmp_path: Path) -> None:
    names = ["oak/train_1.jpg", "oak/test_2.jpg", "elm/x.jpg"]
    assert sessions.find_sessions("^(train|test)_", names) == ["train", "test", ""]
    assert sessions.find_sessions("[a-z]+_", names) == ["train_", "test_", ""]
    assert sessions.find_sessions("folder", names) == ["oak", "oak", "elm"]
    assert sessions.find_sessions("day", names, columns={"day": [3, None, "4"]}) == ["3", "", "4"]
    days = ["2024:05:31", "2024:06:01", ""]
    dated = [photo(tmp_path / f"{i}.jpg", day) for i, day in enumerate(days)]
    assert sessions.find_sessions("date", names, dated) == days
    assert sessions.find_sessions("", names, dated) == [""] * 3  # not all have a date
    assert sessions.find_sessions("", names[:2], dated[:2]) == days[:2]
    assert sessions.find_sessions("", names[:2], dated[:1] * 2) == [""] * 2  # all of one day
    with pytest.raises(DataError, match=r"session=\^x_: fits none of 3 images, e\.g\. oak/train_1\.jpg"):
        sessions.find_sessions("^x_", names)
    with pytest.raises(ConfigError, match=r"session=\(: is neither a column nor a regular expression"):
        sessions.find_sessions("(", names)


@pytest.mark.parametrize("date", ["0000:00:00", "    :  :  "])
def test_the_date_of_a_clock_that_was_not_set_is_unknown(date: str, tmp_path: Path) -> None:
    assert decode.exif_day(photo(tmp_path / "a.jpg", date)) == ""


def test_dates_of_heic_files(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    exif = Image.Exif()
    exif[306] = "2024:05:31 12:00:00"
    image = pillow_heif.from_pillow(Image.new("RGB", (64, 64)))
    image.save(tmp_path / "a.heic", exif=exif.tobytes())
    assert decode.exif_day(tmp_path / "a.heic") == "2024:05:31"


def test_a_column_called_session_counts_only_if_it_is_asked_for() -> None:
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    labels, days = np.repeat([0, 1], 6), ["a", "b", "c"] * 4
    split = Split(labels, [""] * 12, unread, ["x", "y"], metadata={"session": days})
    for session, options in (("", {}), ("session", {"groups": days})):
        config = small(steps=1)
        config = replace(config, data=replace(config.data, session=session))
        results = model_metrics.metrics(config, "cosine", {"test": split}, {"test": rows}, cluster=False)
        expected = metrics.retrieval(rows, labels, ks=(1,), **options)
        assert results["map@r"] == pytest.approx(expected["map@r"]), session


def test_all_classes_together() -> None:
    def read(start: int) -> object:
        return lambda index, rng: np.full((1, 1, 3), start + index, np.uint8)

    train = Split(np.array([0, 1]), ["a", "b"], read(0), ["oak", "elm"], metadata={"day": [1, 2], "x": [0, 0]})
    test = Split(np.array([0, 0]), ["c", "d"], read(10), ["yew"], metadata={"day": [3, 4]})
    whole = together([train, test])
    assert [whole.classes[label] for label in whole.labels] == ["oak", "elm", "yew", "yew"]
    assert list(whole.ids) == [*"abcd"]
    assert [int(whole.read(i, None)[0, 0, 0]) for i in range(4)] == [0, 1, 10, 11]
    assert whole.metadata == {"day": [1, 2, 3, 4]}
    assert take(whole, np.array([3, 0])).metadata == {"day": [4, 1]}


def test_unknown_sessions_are_their_own() -> None:
    split = Split(np.zeros(3, np.int64), [*"abc"], unread, ["x"], metadata={"session": ["s", "", ""]})
    (groups,) = sessions.session_groups({"test": split}).values()
    assert len(set(groups)) == 3
    assert sessions.session_groups({"test": split._replace(metadata={})}) == {}


def test_near_copies() -> None:
    rows = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    assert protocol.near_copies(rows) == 1
    assert protocol.near_copies(rows[::2]) == 0
    assert protocol.near_copies(rows[:3], rows[2:]) == pytest.approx(1 / 3)


@pytest.mark.slow
def test_training_and_evaluation_across_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics of a run, of its controls and of `evaluate` are those of relevant images of other
    sessions."""
    photos = layouts.photos(tmp_path / "photos", tuple(f"class {i}" for i in range(8)), each=6)
    for directory in photos.iterdir():
        for number, file in enumerate(sorted(directory.iterdir())):
            file.rename(file.with_name(f"{'ab'[number % 2]}_{file.name}"))
    options = [
        f"--config.data.path={photos}", "--config.train.steps=1", "--config.data.batch_size=8",
        "--config.data.images_per_class=2", "--config.evaluation.ks=1,2",
    ]  # fmt: skip

    def train(name: str, *more: str) -> tuple[int, Path, str]:
        run = tmp_path / name
        command = ["--config=configs/folder_baseline.py:small", f"--workdir={run}", *options, *more]
        code = cli.exit_code(lambda: main.execute(command))
        return code, run, "".join(capsys.readouterr())

    code, run, text = train("run", "--config.data.session=^(a|b)_")
    assert code == 0, text
    results = json.loads((run / "results.json").read_text())
    assert results["protocol"].startswith("across sessions: clean protocol")
    exported = table.read(run / "embeddings" / "test")
    assert set(exported.metadata["session"]) == {"a", "b"}
    expected = metrics.retrieval(
        exported.embeddings, exported.labels, groups=list(exported.metadata["session"]), ks=(1, 2)
    )
    assert results["recall@1"] == pytest.approx(expected["recall@1"])
    assert results["map@r"] == pytest.approx(expected["map@r"], abs=1e-6)
    assert results["controls"]
    for session in ("", "^(a|b)_"):
        output = tmp_path / "out.json"
        evaluate.execute([f"--model={run}", "--quiet", f"--output={output}", f"--session={session}"])
        assert json.loads(output.read_text())["map@r"] == pytest.approx(expected["map@r"], abs=1e-6)
    assert "across 2 sessions" in capsys.readouterr().out
    evaluate.execute([f"--model={run}", f"--data={photos}", "--quiet", f"--output={output}"])
    assert 0 <= json.loads(output.read_text())["near_copies"] <= 1
    assert cli.exit_code(lambda: evaluate.execute([f"--model={run}", f"--data={photos}", "--session=^[ab]()"])) == 2
    capsys.readouterr()

    code, run, text = train("all", "--config.data.split=all")
    assert code == 0, text
    assert "test classes were trained on" in text
    assert "evaluating on the training classes" in text
    assert "baseline on training classes: " in (run / "report.html").read_text()
    results = json.loads((run / "results.json").read_text())
    assert results["protocol"].startswith("classes that the model was trained on (data.split=all)")
    assert len(json.loads((run / "config.json").read_text())["class_names"]) == 8
