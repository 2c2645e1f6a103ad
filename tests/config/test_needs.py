"""Options that need others: errors where a given value misleads, warnings where it is only unused, else dropped."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dml_jax import config as configs
from dml_jax import main
from dml_jax.config import files as config_files
from dml_jax.config import needs
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline
from dml_jax.train import experiment as experiments
from dml_jax.train import run_rules
from dml_jax.train.records import workdir
from dml_jax.train.start import head_first
from tests.train.experiments import values

ROOT = Path(__file__).parents[2]
AVERAGE, ALONE = "method.transform=average", "method.losses=auxiliary"
# Configuration, overrides, and the key of the last one, which misleads or is only unused.
MISLEADING = [
    "digits_hist data.path=photos/",
    "digits_hist data.image_size=32",
    "digits_hist data.decode_scaled=true",
    "digits_hist data.training_size=16",
    "folder_vit data.training_size=160",
    "cub_hist data.images_per_class=2",
    "digits_hist train.momentum=0.9",
    "digits_hist train.optimizer=sgd train.alpha=0.9",
    *(f"folder_baseline head.{option}" for option in ("momentum=0.9", "gamma=0.5")),
    "digits_hist train.schedule=step",
    "digits_hist train.milestones=3,",
    "digits_hist train.gamma=0.5",
    "digits_hist train.layer_decay=0.8",
    "digits_hist train.reload_best_epochs=3,",
    "digits_hist train.groups.backbone.warmup=freeze",
    "digits_hist evaluation.refine_clusters=10",
    "digits_hist evaluation.refine_eps=0.5",
    "cub_mpn evaluation.refine=reciprocal evaluation.refine_min_samples=3",
    "digits_hist backbone.freeze_bn=true",
    "folder_vit train.groups.backbone.freeze=true backbone.drop_path=0.1",
    "digits_hist train.precision=bfloat16 backbone.dtype=float32",
    "digits_baseline method.memory=64",
    "digits_baseline:triplet method.memory_weight=0.5",
    "digits_baseline:triplet method.memory_after=5",
    "digits_baseline:triplet method.margin.beta=1.0",
    "cub_group_loss method.weight=0",
    "cub_group_loss method.iterations=0",
    "cub_group_loss method.anchors=9",
    "cub_crt method.lambda1=1.0,0.0 method.tested_branch=branch2",
]
UNUSED = [
    "digits_hist data.interpolation=bicubic",
    *(f"folder_baseline:frozen data.{o}" for o in ("training_size=160", "jitter=0.3", "greyscale=0.3", "erasing=0.3")),
    "digits_hist data.crop_scale=0.5,1.0",
    "cub_baseline data.crop_ratio=1.0,1.0",  # normalised softmax: random crops
    "cub_baseline data.resize_first=true",
    "digits_hist data.workers=1 data.threads=3",
    "digits_hist evaluation.cluster=false evaluation.nmi_average=geometric",
    "cub_mpn method.k=10",
    "cub_mpn method.k_r=3",
    *(f"cub_mpn {ALONE} method.{o}" for o in ("layers=3", "heads=8", "concatenate=true", "dropout=0.5")),
    *(f"cub_crt {AVERAGE} method.{o}" for o in ("prototypes=8,8", "hidden_dim=8", "gamma=single", "sharing=separate")),
    f"cub_crt {AVERAGE} method.w_div=2",
    "cub_crt method.lambda2=0 method.consistency=sum",
    "cub_student:imitation method.soft_temperature=3",
    "cub_student method.label_weight=0 method.smoothing=0.5",
    "cub_student method.label_weight=0 method.temperature=0.5",
    *(
        f"cub_diva method.tasks=discriminative method.{o}"
        for o in ("alpha_selfsimilarity=0.7", "alpha_shared=0.7", "alpha_intra=0.7", "shared=full", "dance=off",
                  "selfsimilarity=spread", "temperature=0.5", "learn_temperature=true", "queue_batches=7",
                  "momentum=0.5", "rho=7,", "psi_dim=7", "upper_cutoff=1.3")
    ),
    *(f"cub_diva method.{o}" for o in ("instance_temperature=0.7", "memory_momentum=0.7", "clusters=7")),
    "cub_diva method.cluster_epochs=7",
    "cub_diva method.dance_lambda=7",
    "cub_diva method.base=triplet method.beta=1",
]  # fmt: skip
DIGITS = str(ROOT / "configs" / "digits_hist.py")


def arguments(case: str) -> tuple[list[str], str]:
    """The arguments of the main command, and the key of the last override."""
    config, *overrides = case.split()
    name, colon, variant = config.partition(":")
    path = f"--config={ROOT / 'configs' / name}.py{colon}{variant}"
    return [path, "--mode=show", *(f"--config.{text}" for text in overrides)], overrides[-1].partition("=")[0]


@pytest.mark.parametrize("case", MISLEADING)
def test_misleading(case: str) -> None:
    given, key = arguments(case)
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)}=.*: .*; "):
        main.execute(given)


@pytest.mark.parametrize("case", UNUSED)
def test_unused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    given, key = arguments(case)
    main.execute(given)
    out = capsys.readouterr().out
    assert len(re.findall(rf"^warning: {re.escape(key)}=.*: has no effect without ", out, re.MULTILINE)) == 1
    assert re.search(rf"^  {re.escape(key)} = ", out, re.MULTILINE), "it has its default"


def test_weight_that_another_override_takes_away() -> None:
    """It is an error, too, that the tested branch or all images that are not anchors lose their loss."""
    for config, overrides, key in (
        ("cub_crt", {"method.lambda1": "0.0,1.0"}, "method.tested_branch"),
        ("cub_group_loss", {"data.images_per_class": "2"}, "method.anchors"),
    ):
        with pytest.raises(ConfigError, match=f"^{key}="):
            config_files.resolved(str(ROOT / "configs" / f"{config}.py"), overrides)


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        ("cars_hist", {"train.schedule": "cosine"}, {"train.milestones": (), "train.gamma": 0.1}),
        ("cars_hist", {"train.milestones": "()"}, {"train.schedule": "constant", "train.gamma": 0.1}),
        ("cars_hist", {"data.crop": "none"}, {"data.image_size": 0, "data.resize": 0}),
        ("cub_baseline", {"train.optimizer": "adam"}, {"train.momentum": 0.0}),
        ("cub_baseline", {"train.optimizer": "rmsprop"}, {"train.momentum": 0.9}),
        ("folder_baseline", {}, {"data.training_size": 160}),  # without effect on the head only
        ("cars_hist", {"train.warmup_epochs": "0"}, {"train.groups.backbone.warmup": "train"}),
        ("omniglot_hist", {"data.name": "digits"}, {"data.path": ""}),
        ("digits_baseline:triplet-memory", {"method.loss": "proxy_anchor"}, {"method.memory": 0}),
        ("digits_baseline:arcface", {"method.loss": "cosface"}, {"method.cosface.margin": 0.35}),
        ("inshop_mpn", {}, {"method.k_r": 7}),
        ("inshop_mpn", {"evaluation.refine": "reciprocal"}, {"method.k_r": 4}),
    ],
)
def test_inherited_values_are_dropped(config: str, overrides: dict[str, str], expected: dict[str, Any]) -> None:
    name, colon, variant = config.partition(":")
    shown: list[str] = []
    made, _ = config_files.resolved(f"{ROOT / 'configs' / name}.py{colon}{variant}", overrides, shown.append)
    found = configs.flatten(asdict(made))
    assert {key: found[key] for key in expected} == {
        key: list(value) if isinstance(value, tuple) else value for key, value in expected.items()
    }
    assert shown == []


def test_inherited_values_with_an_effect_are_kept() -> None:
    """A frozen batch norm without weights: the user is told, and an interrupted run can be continued."""
    shown: list[str] = []
    made, _ = config_files.resolved(
        str(ROOT / "configs" / "cub_hist.py"), {"backbone.pretrained": "none"}, shown.append
    )
    assert made.backbone.freeze_bn
    assert [text.partition(":")[0] for text in shown] == ["backbone.freeze_bn=True"]


def test_files_of_the_user(tmp_path: Path) -> None:
    """What the file itself names is given; what a recipe has set, or an override makes pointless, is not."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from configs import cars_hist\n\ndef get_config():\n    config = cars_hist.get_config()\n"
        "    config.train.schedule = 'cosine'\n    config.train.linear_warmup = 9\n    return config\n"
    )
    made, given = config_files.resolved(str(file), {})
    assert made.train.milestones == ()
    assert {"train.schedule", "train.linear_warmup"} <= given
    assert not {"train.milestones", "train.gamma"} & given
    assert "train.linear_warmup" not in config_files.resolved(str(file), {"train.steps": "30"})[1]
    file.write_text(file.read_text().replace("'cosine'", "'cosine'\n    config.train.milestones = (3,)"))
    with pytest.raises(ConfigError, match=r"^train\.milestones=\(3,\): has no effect without train\.schedule='step'"):
        config_files.resolved(str(file), {})
    config_files.resolved(str(file), {"train.schedule": "step"})


def test_stored_runs_stay_readable(tmp_path: Path) -> None:
    """Configurations of earlier versions, with values that would be errors today; runs can be continued."""
    stored = values(steps=5)
    stored["data"] |= {"path": "photos/", "crop_scale": [0.5, 1.0]}
    stored["train"] |= {"gamma": 0.5}
    stored["backbone"]["freeze_bn"] = True
    with pytest.raises(ConfigError, match=r"data\.path='photos/'"):
        configs.resolve(stored)
    made = configs.resolve(stored, given=())
    assert (made.data.path, made.train.gamma, made.backbone.freeze_bn) == ("", 0.1, True)
    facts = {"config": stored, "data_hash": "x", "classes": 40, "images": 7208, "shape": [16, 16]}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    workdir.check_same_run(tmp_path, made)
    workdir.check_same_facts(tmp_path, facts, facts)
    assert config_files.resolved(str(tmp_path / "config.json"), {})[0] == made
    with pytest.raises(ConfigError, match=r"data\.path='elsewhere/'"):
        config_files.resolved(str(tmp_path / "config.json"), {"data.path": "elsewhere/"})


RUN = needs.Run(steps=10, epoch_end=lambda epoch: 4 * epoch, first_evaluation=4, candidates=20, tables=False)


@pytest.mark.parametrize(
    ("train", "run", "broken"),
    [
        ({"linear_warmup": 10, "keep_every": 10}, {}, set()),
        ({"linear_warmup": 11, "keep_every": 11}, {}, {"train.linear_warmup", "train.keep_every"}),
        ({"schedule": "step", "milestones": (1, 2)}, {}, set()),
        ({"schedule": "step", "milestones": (2, 3)}, {}, {"train.milestones"}),
        ({"select": "validation", "reload_best_epochs": (1, 2)}, {}, set()),
        ({"select": "test", "reload_best_epochs": (0,)}, {}, {"train.reload_best_epochs"}),
        ({"select": "test", "reload_best_epochs": (3,)}, {}, {"train.reload_best_epochs"}),
        (
            {"select": "validation", "reload_best_epochs": (1,)},
            {"first_evaluation": 0},
            {"train.select", "train.reload_best_epochs"},
        ),
        ({"shard_classes": True}, {}, {"train.shard_classes"}),
        ({"shard_classes": True}, {"tables": True}, set()),
        ({}, {"candidates": 1}, set()),
        ({}, {"candidates": 0}, {"evaluation.ks"}),
    ],
)
def test_rules_of_a_run(train: dict[str, Any], run: dict[str, Any], broken: set[str]) -> None:
    config = configs.resolve(values(steps=10, **train))
    found = needs.broken_by_run(config, RUN._replace(**run))
    assert {problem.key for problem in found} == broken
    for problem in found:
        assert re.match(r"\S+=.*: .*; ", problem.text)
        shown: list[str] = []
        needs.report([problem], ("seed",), shown.append)
        assert shown == [problem.text]
        if problem.key != "train.keep_every":  # which changes no result
            with pytest.raises(ConfigError, match=re.escape(problem.text)):
                needs.report([problem], (problem.key,))


def test_the_training_of_the_head() -> None:
    """Its options are checked in its own run; it does not record the augmentation that features do not have."""
    made, _ = config_files.resolved(str(ROOT / "configs" / "folder_baseline.py"), {"head.linear_warmup": "11"})
    found = needs.broken_by_run(made, RUN._replace(steps=300), RUN)
    assert [problem.key for problem in found] == ["head.linear_warmup"]
    assert head_first.head_config(made).data.training_size == 0
    with pytest.raises(ConfigError, match=r"^head\.milestones=\(3,\): has no effect without head\.schedule='step'; "):
        config_files.resolved(str(ROOT / "configs" / "folder_baseline.py"), {"head.milestones": "3,"})


@pytest.mark.parametrize(("after", "ramp", "broken"), [(9, 10, set()), (10, 11, {"memory_after", "ramp"})])
def test_rules_of_a_baseline(after: int, ramp: int, broken: set[str]) -> None:
    method = baseline.make_config("triplet", memory=8, memory_after=after, final_weights=(2.0,), ramp=(2, ramp))
    config = configs.resolve(values(steps=10) | {"method": asdict(method)})
    assert {problem.key for problem in needs.broken_by_run(config, RUN)} == {f"method.{name}" for name in broken}


def test_the_run_is_that_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Shortening a published run only warns; the same values on the command line are errors."""
    given = values(steps=30, evaluate_every=10, schedule="step", milestones=(2,), linear_warmup=40)
    given["evaluation"]["ks"] = (1, 895, 896)  # the 896 test images are compared with one another
    experiment = experiments.build(configs.resolve(given))
    with Console() as console:
        run_rules.check(experiment, ("train.steps",), console)
    shown = capsys.readouterr().out
    for key in ("train.linear_warmup=40", "train.milestones=(2,)", "evaluation.ks=(1, 895, 896)"):
        assert f"warning: {key}: " in shown
    for key in ("train.linear_warmup", "train.milestones", "evaluation.ks"):
        with Console() as console, pytest.raises(ConfigError, match=f"^{key}="):
            run_rules.check(experiment, (key,), console)
    with Console() as console:
        run_rules.check(experiment, ("train.linear_warmup",), console, of="evaluation.")
        options = replace(experiment.config.evaluation, prefixes=(1, 999))
        config = replace(experiment.config, evaluation=options)
        with pytest.raises(ConfigError, match=r"evaluation\.prefixes: 999, but the embeddings have \d+ dimensions"):
            run_rules.check(experiment._replace(config=config), (), console, of="evaluation.")


def test_the_checkpoint_of_a_training() -> None:
    with pytest.raises(ConfigError, match=r"^--checkpoint=best: only --mode=evaluate and export"):
        main.execute([f"--config={DIGITS}", "--checkpoint=best"])
