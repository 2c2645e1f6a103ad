"""Options without effect: errors where the command line sets them, warnings where a file does; `--mode=show`."""

import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from dml_jax import main
from dml_jax.config import Config, flatten
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError
from tests.config.cases import of_papers

ROOT = Path(__file__).parents[2]
WITHOUT_EFFECT = [  # see `cases.Facts`
    *(case for facts in of_papers().values() for case in facts.without_effect),
    "digits_baseline:proxy_anchor data.path=photos/",
    "digits_baseline:proxy_anchor data.image_size=32",
    "digits_baseline:proxy_anchor data.crop_scale=0.5,1.0",
    "folder_vit data.training_size=160",
    "folder_baseline:frozen data.jitter=0.3",
    "cub_baseline:proxy_anchor data.images_per_class=2",
    "cub_baseline data.crop_ratio=1.0,1.0",  # normalised softmax: random crops
    "digits_baseline:proxy_anchor train.momentum=0.9",
    "digits_baseline:proxy_anchor train.schedule=step",
    "digits_baseline:proxy_anchor train.gamma=0.5",
    "digits_baseline:proxy_anchor train.rates_for_batch=32",
    "digits_baseline:proxy_anchor train.layer_decay=0.8",
    "digits_baseline:proxy_anchor train.reload_best_epochs=3,",
    "digits_baseline:proxy_anchor train.groups.backbone.warmup=freeze",
    "digits_baseline:proxy_anchor evaluation.cluster=false evaluation.nmi_average=geometric",
    "digits_baseline:proxy_anchor backbone.freeze_bn=true",
    "folder_vit train.groups.backbone.freeze=true backbone.drop_path=0.1",
    "folder_vit train.groups.backbone.freeze=true train.layer_decay=0.5",
    "cars_baseline backbone.freeze_bn=true backbone.bn_momentum=0.5",
    "cars_baseline train.groups.backbone.freeze=true backbone.bn_momentum=0.5",
    "digits_baseline:triplet method.triplet.nearest=0.3",
    "digits_baseline method.loss=margin method.margin.mining=hard method.margin.farthest=1.3",
    "digits_baseline:multi_similarity method.multi_similarity.mining=false method.multi_similarity.epsilon=0.2",
    "digits_baseline:proxy_anchor train.precision=bfloat16 backbone.dtype=float32",
    "digits_baseline method.embedding_dim=0 method.init=he",
    "digits_baseline method.embedding_dim=0 method.bias=false",
    "digits_baseline method.memory=64",
    "digits_baseline method.init=whitened",
    "digits_baseline:triplet method.memory_after=5",
    "digits_baseline method.memory_after=5 method.memory=64",  # has no effect itself
    "cars_baseline train.groups.backbone.freeze=true train.groups.backbone.learning_rate=0.1",
    "cars_baseline train.groups.backbone.freeze=true train.groups.backbone.weight_decay=0.1",
    "cars_baseline:proxy_anchor train.epochs=9 train.milestones=3,9",
    "cars_hist train.epochs=9 train.period=9",
]
MINE = """
from configs import digits_baseline


def get_config():
    config = digits_baseline.get_config()
    {}
    return config
"""


def path(name: str) -> str:
    name, colon, variant = name.partition(":")
    return f"{ROOT / 'configs' / name}.py{colon}{variant}"


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_on_the_command_line(case: str) -> None:
    config, *overrides = case.split()
    key = re.escape(overrides[-1].partition("=")[0])
    with pytest.raises(ConfigError, match=rf"^{key}=.*: .*; "):
        main.execute([f"--config={path(config)}", "--mode=show", *(f"--config.{text}" for text in overrides)])


def shown(name: str, **overrides: str) -> tuple[Config, list[str]]:
    """A configuration, and its warnings."""
    texts: list[str] = []
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return config_files.resolved(name, given, texts.append), texts


@pytest.mark.parametrize(
    ("statement", "warning"),
    [
        ("data.path = 'photos/'", "data.path='photos/': has no effect without a data.name other than"),
        ("train.milestones = (3,)", "train.milestones=(3,): has no effect without train.schedule='"),
        ("data.jitter, config.train.feature_views = 0.3, 1", "data.jitter=0.3: has no effect wit"),
        (
            "train.groups.backbone.update(freeze=True, weight_decay=0.0)",
            "train.groups.backbone.learning_rate=0.001: has no effect because the group is frozen",
        ),
        ("backbone.freeze_bn = True", "backbone.freeze_bn=True: the running statistics of a netw"),
    ],
)
def test_in_a_file(statement: str, warning: str, tmp_path: Path) -> None:
    """The user is warned, and the option takes its default if it has no effect and has one."""
    (tmp_path / "mine.py").write_text(MINE.format(f"config.{statement}"))
    made, texts = shown(str(tmp_path / "mine.py"))
    assert [text.startswith(warning) for text in texts] == [True]
    key = warning.partition("=")[0]
    default = flatten(asdict(shown(path("digits_baseline"))[0]))[key]
    assert flatten(asdict(made))[key] == (True if "freeze_bn" in key else default)


CARS = path("cars_baseline:proxy_anchor")


def test_what_no_warning_is_about() -> None:
    """Rates that a frozen part of a group has from it, or that change before the end."""
    assert shown(path("folder_vit:frozen"))[1] == []
    assert shown(CARS, train__epochs="9", train__milestones="3,8")[1] == []


def test_what_an_override_leaves_without_effect() -> None:
    """An override that makes another option of the file pointless is no error; changes of the rate
    after the end stay for a longer run."""
    (made, texts), given = shown(CARS, train__epochs="3"), shown(CARS)[0].train
    assert (made.train.milestones, made.train.gamma) == (given.milestones, given.gamma)
    assert [text.partition("=")[0] for text in texts] == ["train.milestones"]
    made, texts = shown(CARS, train__schedule="cosine")
    assert (made.train.milestones, made.train.gamma) == ((), 0.1)
    assert [text.partition("=")[0] for text in texts] == ["train.milestones", "train.gamma"]
    made, texts = shown(path("digits_baseline:arcface"), method__loss="cosface")
    assert (made.method.losses, made.method.cosface.margin, texts) == (("cosface",), 0.35, [])


ROOT = Path(__file__).parents[2]


def test_show_marks_what_differs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    changes = ("--config.method.proxy_anchor.alpha=20", "--config.train.steps=60")
    monkeypatch.setattr(
        sys, "argv", ["dml_jax.main", "--config=configs/cars_baseline.py:proxy_anchor", "--mode=show", *changes]
    )
    assert main.main() == 0
    out = capsys.readouterr().out
    lines = [line.partition("  #")[0] for line in out.splitlines()]
    assert "* method.proxy_anchor.alpha = 20  (default 32)  # float > 0; Steepness; greater than 0" in out
    assert {
        "  seed = 0",
        "  method.proxy_anchor.margin = 0.1",
        "* train.groups.backbone.warmup = freeze  (default train)",
        "* train.steps = 60  (default 0)",
        "  train.epochs = 0",  # replaced by the steps
        "  paper = {}",  # it is not the paper's experiment any more
    } <= {*lines}
