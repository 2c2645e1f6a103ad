"""Published configurations: every variant resolves and builds, with the values of the paper or the authors' code."""

import importlib
import json
import re
import shlex
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from configs.recipes.published import without_protocol

from configs.recipes import baseline as baseline_recipe
from configs.recipes import crt as crt_recipe
from configs.recipes import diva as diva_recipe
from configs.recipes import group_loss as group_loss_recipe
from configs.recipes import hist as hist_recipe
from configs.recipes import mpn as mpn_recipe
from dml_jax import config as configs
from dml_jax import main
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.weights import pretrained
from dml_jax.commands import convert
from dml_jax.config import Config, flatten
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError, WeightsError
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.train import optimizers, step
from dml_jax.train.state import TrainState

ROOT = Path(__file__).parents[1]
CLASSES = {"cub": 100, "cars": 98, "sop": 11_318, "inshop": 3_997}  # in training
NAMES = [f"{data}_{method}" for data in CLASSES for method in ("mpn", "hist", "crt", "diva", "baseline")]
NAMES += [f"{data}_{method}" for data in ("cub", "cars") for method in ("student", "group_loss")]
SAME = ("normalized_softmax", "retuned-tau32_lambda1.0")  # variants that repeat the main configuration
PAIRS = {  # without parameters of their own
    "contrastive", "triplet", "n_pair", "lifted_structure", "multi_similarity", "sup_con", "smooth_ap", "recall_at_k",
}  # fmt: skip
RELOADED = ("mpn", "student", "group_loss")  # whose code continues from the best epoch
LARGE = {"", "normalized_softmax", "proxy_anchor", "proxy_nca_pp"}  # baselines with 512 dimensions
every_file = pytest.mark.parametrize("name", NAMES)


def module(name: str) -> ModuleType:
    return importlib.import_module(f"configs.{name}")


@cache
def resolved(name: str, variant: str = "") -> Config:
    path = str(ROOT / "configs" / f"{name}.py") + (f":{variant}" if variant else "")
    return configs.resolve(config_files.load_config(path, {}))


@pytest.mark.parametrize(
    ("optimizer", "then"),
    [
        ("sgd", {"momentum": 0.9, "nesterov": True}),
        ("rmsprop", {"momentum": 0.9, "alpha": 0.9}),
        ("adam", {"momentum": 0.0, "nesterov": False, "alpha": 0.99, "betas": ()}),
    ],
)
def test_a_stored_configuration_without_momentum_means_that_of_its_version(
    optimizer: str, then: dict[str, Any], tmp_path: Path
) -> None:
    values = asdict(resolved("digits_hist"))
    for key in ("momentum", "nesterov", "alpha", "betas"):
        del values["train"][key]
    values["train"]["optimizer"] = optimizer
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps({"config": values}))
    train = config_files.resolved(str(stored), {})[0].train
    assert {key: getattr(train, key) for key in then} == then
    another = config_files.resolved(str(stored), {"train.optimizer": "lion"})[0].train  # without momentum
    assert another == replace(train, optimizer="lion", momentum=0.0, nesterov=False, alpha=0.99)


def test_every_configuration_and_variant_resolves() -> None:
    """Also those of small data sets; the number is a lower bound, so that none is lost unnoticed."""
    files = [path.stem for path in (ROOT / "configs").glob("*.py") if "get_config" in path.read_text()]
    assert set(NAMES) < set(files)
    configurations = [(name, variant) for name in files for variant in ("", *getattr(module(name), "VARIANTS", ()))]
    assert len(set(configurations)) == len(configurations) >= 672
    for name, variant in configurations:
        resolved(name, variant)


def test_every_configuration_fits_its_weights() -> None:
    """Also in what the shapes do not show; the directories are named after the published networks."""
    named, found = convert.named_configs(), set()
    for path in (ROOT / "configs").glob("*.py"):
        for variant in ("", *getattr(module(path.stem), "VARIANTS", ())) if "get_config" in path.read_text() else ():
            options = asdict(resolved(path.stem, variant).backbone)
            weights = Path(options["pretrained"]).name
            if weights != "none":
                unseen = pretrained.UNSEEN.get(options["name"], ())  # of transformers; the papers change others' pixels
                keys = (*unseen, "pixels") if unseen else ()
                assert not pretrained.differences(asdict(named[weights]), options, keys), (path, variant)
                found.add(weights)
    assert {"deit_small", "dino_vits16", "dinov2_vits14", "googlenet", "mit_b2", "vit_small"} <= found


@every_file
def test_variants_follow_their_protocol(name: str) -> None:
    data, method = name.split("_", 1)
    variants = module(name).VARIANTS
    assert "paper" in variants
    seen: list[dict[str, Any]] = []
    for variant in ("", *variants):
        config = resolved(name, variant)
        settings = flatten(asdict(replace(config, name="", paper={})))
        assert settings not in seen or without_protocol(variant) in SAME, f"{variant} changes nothing"
        seen.append(settings)
        assert config.name == "-".join(filter(None, (name, variant)))
        assert (config.data.name, config.data.path, config.method.name) == (data, f"data/{data}", method)
        paper = variant.endswith("paper")
        assert config.train.select == ("test" if paper else "last")
        assert config.evaluation.protocol == ("paper" if paper else "clean")
        assert config.train.reload_best_epochs == ((30, 50) if paper and method in RELOADED else ())
        geometric = paper and method == "hist" and config.evaluation.cluster
        assert config.evaluation.nmi_average == ("geometric" if geometric else "arithmetic")
        recalls = [f"recall@{k}" for k in config.evaluation.ks]
        assert set(config.paper) <= {*recalls, "nmi"}
        assert all(0.5 < value < 1 for value in config.paper.values())
        reported = [config.paper[key] for key in recalls if key in config.paper]
        assert reported == sorted(reported)


@cache
def shapes_only(config: Any, side: int) -> Backbone:
    """A backbone with the shapes of the real one that returns zeros; the real one is traced once for all variants."""
    real = configs.module("backbone", config.name).build(replace(config, pretrained="none"))
    params, stats = jax.eval_shape(lambda: real.init(jax.random.key(0), (side, side)))
    images = jax.ShapeDtypeStruct((2, side, side, 3), jnp.uint8)
    features = jax.eval_shape(
        lambda p, s, x: real.apply(p, s, real.preprocess(x), train=False, key=None)[0], params, stats, images
    )

    def init(key: jax.Array, shape: tuple[int, int]) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (params, stats))

    def apply(params: Any, stats: Any, inputs: jax.Array, **_: Any) -> Any:
        return jnp.zeros((len(inputs), *features.shape[1:]), features.dtype), stats

    return real._replace(init=init, apply=apply)


def trained(config: Config) -> set[str]:
    """The parameter groups that hold parameters."""
    match config.method.name:
        case "mpn":
            both = {"auxiliary", "mpn"}
            return {"backbone", "embedding"} | {"both": both}.get(config.method.losses, {config.method.losses})
        case "hist":
            return {"backbone", "embedding", "distributions", "hgnn"}
        case "baseline":
            return {"backbone", "embedding"} | ({"loss"} if config.method.loss not in PAIRS else set())
        case "crt":
            return {"backbone", "embedding"} | ({"prototypes"} if config.method.transform == "residual" else set())
        case "diva":
            conditional = {
                "psi": bool(config.method.directions),
                "beta": config.method.base == "margin" and config.method.tasks != ("selfsimilarity",),
                "classifier": config.method.selfsimilarity in ("rotnet", "deepcluster"),
            }
            return {"model"} | {group for group, present in conditional.items() if present}
        case "group_loss":
            return {"backbone", "classifier"}
        case name:
            raise ValueError(name)


def dimensions(name: str, variant: str) -> int:
    """Of the tested embedding."""
    dims = re.findall(r"dim(\d+)", variant)
    if dims:
        return int(dims[0])
    match name.partition("_")[2]:
        case "crt":
            return 1024 if "branch2" in variant else 128
        case "baseline" if without_protocol(variant) not in LARGE:
            return 128
        case "group_loss":
            return 1024
        case "diva" if "separate" in variant:
            return 128
        case "diva" if re.search("dance_intra|shared_intra|dance_shared", variant):
            return 510
    return 512


SLOW = ("hist", "mpn", "crt", "diva", "group_loss", "hist-ablations")


@pytest.mark.parametrize("method", ["baseline", *(pytest.param(m, marks=pytest.mark.slow) for m in SLOW)])
def test_variants_build(method: str) -> None:
    """Shapes of parameters, loss and embedding; variants that differ only in numbers are traced once."""
    traced = set()
    method, _, ablations = method.partition("-")
    for name, variant in ((n, v) for n in NAMES if n.endswith(method) for v in ("", *module(n).VARIANTS)):
        if ("retuned-" in without_protocol(variant)) != bool(ablations):
            continue
        config = resolved(name, variant)
        kinds = {key: value for key, value in flatten(asdict(config.method)).items() if not isinstance(value, float)}
        kinds["memory"] = bool(kinds.get("memory"))
        key = (config.backbone, config.data.image_size, config.train.optimizer, repr(kinds))
        if key in traced:
            continue
        traced.add(key)
        side, size = config.data.image_size, config.data.batch_size
        build = configs.module("method", config.method.name).build
        made = build(config.method, shapes_only(config.backbone, side), TrainingSet(CLASSES[config.data.name], 5_000))
        optimizer = optimizers.build(config.train, made, lambda step: 1.0, warmup_steps=5)
        rows = jax.ShapeDtypeStruct((size,), jnp.int32)
        batch = Batch(jax.ShapeDtypeStruct((made.views, size, side, side, 3), jnp.uint8), rows, rows)

        def outputs(
            batch: Batch, made: Method = made, optimizer: optax.GradientTransformation = optimizer
        ) -> tuple[TrainState, jax.Array, jax.Array]:
            random = jax.random.key(0)
            state = step.initial(made, optimizer, random, batch)
            embeddings = made.embed(state.params, state.model_state, batch.images[0])
            loss, _ = step.loss(made, state.params, state.model_state, batch, state.step, random)
            return state, embeddings, loss

        state, embeddings, loss = jax.eval_shape(outputs, batch)
        leaves, _ = jax.tree_util.tree_flatten_with_path(state.params)
        assert {made.group(tuple(part.key for part in path)) for path, _ in leaves} == trained(config)
        assert loss.shape == ()
        assert embeddings.shape == (size, dimensions(name, variant))


@pytest.mark.parametrize("variant", ["", "multi_similarity-vit_small", "hist-dino_vits16-paper"])
def test_vision_transformers(variant: str) -> None:
    """The variants of losses on ViT-S start from weights of that network, on its class token, and build."""
    config = resolved("cub_vit", variant)
    loss, _, weights = (without_protocol(variant) or "proxy_anchor-dinov2_vits14").partition("-")
    assert replace(config.backbone, pretrained="none") == convert.named_configs()[weights]
    assert config.backbone.pretrained == f"weights/{weights}"
    assert loss in (config.method.name, getattr(config.method, "loss", ""))
    assert (config.name, config.paper) == ("-".join(filter(None, ("cub_vit", variant))), {})
    backbone = shapes_only(config.backbone, 224)
    made = configs.module("method", config.method.name).build(config.method, backbone, TrainingSet(100, 5_864))
    optimizers.build(config.train, made, lambda step: 1.0)
    rows = jax.ShapeDtypeStruct((90,), jnp.int32)
    batch = Batch(jax.ShapeDtypeStruct((1, 90, 224, 224, 3), jnp.uint8), rows, rows)
    params, state = jax.eval_shape(made.init, jax.random.key(0), batch)
    images = jax.ShapeDtypeStruct((90, 224, 224, 3), jnp.uint8)
    assert jax.eval_shape(made.embed, params, state, images).shape == (90, 384)


@every_file
def test_weights_are_directories_that_convert_writes(name: str) -> None:
    made = convert.named_configs()
    for variant in ("", *module(name).VARIANTS):
        backbone = resolved(name, variant).backbone
        folder, known = backbone.pretrained.split("/")
        assert folder == "weights"
        same = {key: getattr(backbone, key) for key in ("name", "depths", "distilled") if hasattr(backbone, key)}
        assert {key: getattr(made[known], key) for key in same} == same


def test_missing_weights_name_the_command() -> None:
    backbone = configs.module("backbone", "mit").build(resolved("cub_crt").backbone)
    wanted = "dml-jax convert --weights=hf://nvidia/mit-b2 --output=weights/mit_b2"
    with pytest.raises(WeightsError, match=re.escape(wanted)):
        backbone.init(jax.random.key(0), (227, 227))


@every_file
def test_docstrings(name: str) -> None:
    """They give the commands of both protocols, which must resolve, the reported Recall@1, settings and the cost."""
    text = module(name).__doc__ or ""
    data, train = resolved(name).data, resolved(name).train
    crops = {"random_resized": "random resized crops", "random": "random crops"}[data.crop]
    warmup = f" after {train.warmup_epochs} of warm-up" if train.warmup_epochs else ""
    optimizer = {"adam": "Adam", "radam": "RAdam", "sgd": "SGD"}[train.optimizer]
    settings = (
        f"atch {data.batch_size}, {crops} of {data.image_size} pixels, {optimizer}, {train.epochs} epochs{warmup}."
    )
    assert settings in text
    commands = [shlex.split(line.split("    ")[0]) for line in re.findall(r"^    (python -m .*)$", text, re.MULTILINE)]
    chosen = []
    for program, _, target, *arguments in commands:
        assert (program, target) == ("python", "dml_jax.main")
        found, overrides = main.parser().read(arguments)
        configs.resolve(config_files.load_config(str(ROOT / found.config), overrides))
        chosen.append(found.config)
    assert f"configs/{name}.py" in chosen
    assert any(re.fullmatch(rf"configs/{name}\.py:(\w+-)*paper", path) for path in chosen)
    assert "\nCost: " in text
    reported = resolved(name).paper
    assert not reported or f" {100 * reported['recall@1']:.{2 if name.endswith('crt') else 1}f} " in text


@pytest.mark.parametrize("variant", ["", ":paper"])
def test_published_results_are_dropped_with_the_experiment(variant: str) -> None:
    path = str(ROOT / "configs" / "cars_hist.py") + variant
    assert config_files.load_config(path, {})["paper"]["recall@1"] == 0.898
    assert config_files.load_config(path, {"seed": "3", "data.path": "elsewhere"})["paper"]["recall@1"] == 0.898
    for key, value in (("method.tau", "16"), ("train.epochs", "2"), ("data.image_size", "128"), ("seed", "1")):
        kept = config_files.load_config(path, {key: value})["paper"]
        assert bool(kept) == (key == "seed"), key


@pytest.mark.parametrize("variant", ["", "paper"])
def test_recipes_accept_other_data_sets(variant: str) -> None:
    values = {"learning_rate": 1e-4, "weight_decay": 1e-4}
    batch = {"classes": 6, "images": 9, "temperature": 0.2}
    made = {
        "hist": hist_recipe.recipe(
            "flowers", variant, {}, tau=32.0, alpha=1.1, lambda_s=1.0, distributions=1e-1, hgnn=6e-4, epochs=40,
            halve_every=5, **values,
        ),
        "mpn": mpn_recipe.recipe("flowers", variant, {}, layers=1, heads=2, **values, **batch),
        "student": mpn_recipe.student_recipe("flowers", variant, {}, soft_temperature=1.0, **values, **batch),
        "group_loss": group_loss_recipe.recipe("flowers", variant, {}, anchors=2, **values, **batch),
        "crt": crt_recipe.recipe("flowers", variant, {}, classes=16, second_branch=0.1),
        "diva": diva_recipe.recipe(
            "flowers", variant, {}, rho=1500.0, alpha=0.3, milestone=55, gamma=0.2, epochs=350, queue_batches=30,
            auxiliary_weight=2.0,
        ),
    }  # fmt: skip
    for loss in baseline_recipe.NAMES:
        name = "-".join(filter(None, (loss, variant)))
        made[loss] = baseline_recipe.recipe("flowers", name, {})
    for method, values in made.items():
        config = configs.resolve(values.to_dict())
        assert (config.data.name, config.data.path) == ("folder", "data/flowers"), method
        assert config.evaluation.ks == (1, 2, 4, 8)
        assert config.paper == {}


def test_unknown_variants_are_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no variant 'retund'; did you mean retuned"):
        resolved("cub_hist", "retund")
    with pytest.raises(ConfigError, match=r"there is no variant 'paper-retuned'; did you mean"):
        resolved("cub_hist", "paper-retuned")
