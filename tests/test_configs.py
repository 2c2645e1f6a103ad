"""Published configurations: every variant resolves and builds, with the values of the paper or the authors' code."""

import importlib
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
from dml_jax import cli, convert, main
from dml_jax import config as configs
from dml_jax.backbones.contract import Backbone
from dml_jax.config import Config, flatten
from dml_jax.errors import ConfigError, WeightsError
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.train import optimizers, step
from dml_jax.train.state import TrainState

ROOT = Path(__file__).parents[1]
CLASSES = {"cub": 100, "cars": 98, "sop": 11_318, "inshop": 3_997}  # in training
NAMES = [f"{data}_{method}" for data in CLASSES for method in ("mpn", "hist", "crt", "diva", "baseline")]
PAIRS = {"contrastive", "triplet", "n_pair", "lifted_structure", "multi_similarity"}  # without parameters of their own
LARGE = {"", "normalized_softmax", "proxy_anchor", "proxy_nca_pp"}  # baselines with 512 dimensions
every_file = pytest.mark.parametrize("name", NAMES)


def module(name: str) -> ModuleType:
    return importlib.import_module(f"configs.{name}")


def resolved(name: str, variant: str = "") -> Config:
    path = str(ROOT / "configs" / f"{name}.py") + (f":{variant}" if variant else "")
    return configs.resolve(cli.load_config(path, {}))


@every_file
def test_variants_follow_their_protocol(name: str) -> None:
    data, method = name.split("_")
    variants = module(name).VARIANTS
    assert "paper" in variants
    seen: list[dict[str, Any]] = []
    for variant in ("", *variants):
        config = resolved(name, variant)
        settings = flatten(asdict(replace(config, name="", paper={})))
        assert settings not in seen or without_protocol(variant) == "normalized_softmax", f"{variant} changes nothing"
        seen.append(settings)
        assert config.name == "-".join(filter(None, (name, variant)))
        assert (config.data.name, config.data.path, config.method.name) == (data, f"data/{data}", method)
        paper = variant.endswith("paper")
        assert config.train.select == ("test" if paper else "last")
        assert config.evaluation.protocol == ("paper" if paper else "clean")
        assert config.train.reload_best_epochs == ((30, 50) if paper and method == "mpn" else ())
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
                "beta": config.method.base == "margin",
                "classifier": config.method.selfsimilarity in ("rotnet", "deepcluster"),
            }
            return {"model"} | {group for group, present in conditional.items() if present}
        case name:
            raise ValueError(name)


@pytest.mark.parametrize(
    "method", ["hist", "baseline", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mpn", "crt", "diva"))]
)
def test_variants_build(method: str) -> None:
    """Shapes of parameters, loss and embedding; variants that differ only in numbers are traced once."""
    traced = set()
    for name, variant in ((n, v) for n in NAMES if n.endswith(method) for v in ("", *module(n).VARIANTS)):
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
        dimensions = int((re.findall(r"dim(\d+)", variant) or [512])[0])
        if method == "crt" or (method == "baseline" and without_protocol(variant) not in LARGE):
            dimensions = 128
        assert embeddings.shape == (size, dimensions)


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
    wanted = "python -m dml_jax.convert --weights=hf://nvidia/mit-b2 --output=weights/mit_b2"
    with pytest.raises(WeightsError, match=re.escape(wanted)):
        backbone.init(jax.random.key(0), (227, 227))


@every_file
def test_docstrings(name: str) -> None:
    """They give the commands of both protocols, which must resolve, the reported Recall@1 and the cost."""
    text = module(name).__doc__ or ""
    commands = [shlex.split(line.split("    ")[0]) for line in re.findall(r"^    (python -m .*)$", text, re.MULTILINE)]
    chosen = []
    for program, _, target, *arguments in commands:
        assert (program, target) == ("python", "dml_jax.main")
        found, overrides = main.parser().read(arguments)
        configs.resolve(cli.load_config(str(ROOT / found.config), overrides))
        chosen.append(found.config)
    assert f"configs/{name}.py" in chosen
    assert any(re.fullmatch(rf"configs/{name}\.py:(\w+-)*paper", path) for path in chosen)
    assert "\nCost: " in text
    reported = resolved(name).paper
    assert not reported or f" {100 * reported['recall@1']:.{2 if name.endswith('crt') else 1}f} " in text


def test_unknown_variants_are_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no variant 'retund'; did you mean retuned"):
        resolved("cub_hist", "retund")
    with pytest.raises(ConfigError, match=r"there is no variant 'paper-retuned'; did you mean"):
        resolved("cub_hist", "paper-retuned")


# Copied from the papers' tables and the authors' configuration files and commands, independently of `configs/`.
MPN = {
    "data.crop": "random_resized", "data.crop_scale": [0.08, 1.0], "data.image_size": 227, "data.resize": 256,
    "data.flip": 0.5, "data.erasing": 0.5, "backbone.name": "resnet", "backbone.block": "bottleneck",
    "backbone.depths": [3, 4, 6, 3], "backbone.freeze_bn": False, "backbone.stage_bn_updates": 2,
    "backbone.pixels.mean": [0.485, 0.456, 0.406], "backbone.pixels.std": [0.299, 0.224, 0.225],
    "method.equations": "authors", "method.embedding_dim": 512, "method.smoothing": 0.1, "method.dropout": 0.1,
    "method.pooling": "max", "method.k": 30, "train.epochs": 70, "train.warmup_epochs": 0, "train.optimizer": "radam",
    "train.schedule": "step", "train.milestones": [30], "train.gamma": 0.1,
}  # fmt: skip
HIST = {
    "data.crop": "random_resized", "data.crop_scale": [0.08, 1.0], "data.image_size": 224, "data.resize": 256,
    "data.flip": 0.5, "data.erasing": 0.0, "data.sampler": "shuffled", "data.batch_size": 32,
    "method.embedding_dim": 512, "method.hidden_dim": 512, "method.hidden_layers": 1, "method.pooling": "avg+max",
    "method.layer_norm": True, "method.distance": "mahalanobis", "method.drop_underflow": True,
    "train.warmup_epochs": 1, "train.schedule": "step", "train.gamma": 0.5,
    "train.groups.backbone.warmup": "freeze", "train.groups.embedding.warmup": "train",
    "train.groups.distributions.warmup": "train", "train.groups.hgnn.warmup": "train",
}  # fmt: skip
CRT = {
    "data.sampler": "ms", "data.images_per_class": 5, "data.crop": "random_resized", "data.resize_first": True,
    "data.crop_scale": [0.16, 1.0], "data.image_size": 227, "data.resize": 256, "data.flip": 0.5,
    "method.embedding_dims": [128, 1024], "method.prototypes": [64, 64], "method.sharing": "shared",
    "method.gamma": "per_prototype", "method.lambda2": 0.9, "method.w_div": 1.0, "method.multi_similarity.alpha": 2.0,
    "method.multi_similarity.beta": 40.0, "method.multi_similarity.base": 0.5, "method.multi_similarity.epsilon": 0.1,
    "backbone.name": "mit", "backbone.depths": [3, 4, 6, 3], "backbone.widths": [64, 128, 320, 512],
    "train.optimizer": "adam", "train.groups.backbone.learning_rate": 3e-5,
    "train.groups.prototypes.learning_rate": 3e-5, "train.groups.embedding.learning_rate": 3e-5,
    "train.groups.backbone.weight_decay": 5e-4,
}  # fmt: skip
DIVA = {
    "data.sampler": "diva", "data.batch_size": 112, "data.images_per_class": 2, "data.crop": "random_resized",
    "data.crop_scale": [0.08, 1.0], "data.image_size": 224, "data.resize": 256, "data.flip": 0.5,
    "backbone.freeze_bn": True, "backbone.pixels.std": [0.229, 0.224, 0.225], "method.embedding_dim": 128,
    "method.tasks": ["discriminative", "selfsimilarity", "shared", "intra"], "method.base": "margin",
    "method.margin": 0.2, "method.beta": 1.2, "method.shared": "random", "method.dance": "original",
    "method.temperature": 0.01, "method.learn_temperature": False, "method.momentum": 0.9, "method.psi_dim": 512,
    "method.lower_cutoff": 0.5, "method.upper_cutoff": 1.4, "train.optimizer": "adam", "train.warmup_epochs": 0,
    "train.groups.model.learning_rate": 1e-5, "train.groups.model.weight_decay": 4e-4,
    "train.groups.beta.learning_rate": 5e-4, "train.groups.beta.weight_decay": 0.0,
    "train.groups.psi.learning_rate": 1e-5, "train.groups.psi.weight_decay": 0.0,
    "train.groups.temperature.learning_rate": 5e-4, "train.groups.temperature.weight_decay": 0.0,
    "train.schedule": "step",
}  # fmt: skip


def mpn(rate: float, decay: float, batch: tuple[int, int], t: float, layers: int, heads: int) -> dict[str, Any]:
    groups = {
        f"train.groups.{group}.{key}": value
        for group in ("backbone", "embedding", "auxiliary", "mpn")
        for key, value in (("learning_rate", rate), ("weight_decay", decay))
    }
    classes, images = batch
    return MPN | groups | {
        "data.batch_size": classes * images, "data.images_per_class": images, "method.temperature": t,
        "method.layers": layers, "method.heads": heads,
    }  # fmt: skip


def hist(
    tau: float, alpha: float, weight: float, rates: tuple[float, float, float], decay: float, epochs: int, every: int
) -> dict[str, Any]:
    backbone, distributions, hgnn = rates
    groups = {"backbone": backbone, "embedding": backbone, "distributions": distributions, "hgnn": hgnn}
    return (
        HIST
        | {"method.tau": tau, "method.alpha": alpha, "method.lambda_s": weight, "train.epochs": epochs}
        | {f"train.groups.{group}.learning_rate": rate for group, rate in groups.items()}
        | {f"train.groups.{group}.weight_decay": decay for group in groups}
        | {"train.milestones": [n * every for n in range(1, 13) if n * every < epochs]}
    )


def diva(rho: float, alpha: float, milestone: int, gamma: float, epochs: int, keys: int) -> dict[str, Any]:
    return DIVA | {
        "method.rho": [rho], "method.alpha_selfsimilarity": alpha, "method.alpha_shared": alpha,
        "method.alpha_intra": alpha, "train.milestones": [milestone], "train.gamma": gamma, "train.epochs": epochs,
        "method.queue_batches": keys,
    }  # fmt: skip


R50 = {"backbone.name": "resnet", "backbone.freeze_bn": True, "train.optimizer": "adam"}
THAWED = {"backbone.freeze_bn": False}
BNI = {
    "backbone.name": "bn_inception", "backbone.freeze_bn": True, "backbone.bn_momentum": 0.9,
    "backbone.pixels.mean": [104.0, 117.0, 128.0], "backbone.pixels.std": [1.0, 1.0, 1.0],
    "backbone.pixels.order": "bgr", "train.optimizer": "adamw",
}  # fmt: skip
IBN = {
    "backbone.name": "bn_inception", "backbone.freeze_bn": False, "backbone.bn_momentum": 0.1, "data.image_size": 227,
    "backbone.pixels.mean": [0.4078, 0.4588, 0.502], "backbone.pixels.std": [0.0039, 0.0039, 0.0039],
    "backbone.pixels.top": 1.0, "backbone.pixels.order": "bgr",
}  # fmt: skip
VALUES: dict[str, dict[str, Any]] = {
    "cub_mpn": mpn(0.0001563663718906821, 6.059722614369727e-06, (6, 9), 0.2, 1, 2)
    | {"data.sampler": "mpn_redraw", "method.concatenate": False, "method.losses": "both", "paper.recall@1": 0.703},
    "cars_mpn": mpn(0.00036683239911604993, 2.551918610962277e-09, (10, 7), 0.1111111111111, 2, 8)
    | {"data.sampler": "mpn", "method.concatenate": True, "method.k_r": 7, "paper.recall@8": 0.982, "paper.nmi": 0.748},
    "sop_mpn": mpn(0.0002472471515853406, 2.7650277063275255e-13, (15, 6), 0.6046908988578005, 1, 8)
    | {"data.sampler": "mpn", "method.losses": "both", "evaluation.ks": [1, 10, 100, 1000], "paper.recall@100": 0.959},
    "sop_mpn:auxiliary": {"method.losses": "auxiliary", "train.reload_best_epochs": []},
    "inshop_mpn": mpn(0.00011265974954242144, 1.0554824926510768e-07, (14, 4), 0.18591347176280537, 1, 4)
    | {"data.sampler": "mpn", "method.k_r": 4, "evaluation.ks": [1, 10, 20, 30, 40], "paper.recall@40": 0.992},
    "cub_mpn:large": {"data.resize": 288, "data.image_size": 256, "paper.recall@1": 0.717, "paper.nmi": 0.743},
    "cars_mpn:dim64": {"method.embedding_dim": 64, "paper.recall@1": 0.763},
    "sop_mpn:dim1024-paper": {"method.embedding_dim": 1024, "paper.nmi": 0.925, "train.reload_best_epochs": [30, 50]},
    "cub_mpn:mpn_only": {"method.losses": "mpn", "paper.recall@1": 0.681},
    "cars_mpn:refined": {"evaluation.refine": ["reciprocal"], "method.layers": 1, "method.heads": 4}
    | {"method.concatenate": False},
    "cub_hist": hist(32.0, 1.1, 1.0, (1.2e-4, 1e-1, 6e-4), 5e-5, 40, 5) | R50 | {"paper.nmi": 0.743},
    "cub_hist:retuned": hist(24.0, 1.15, 1.0, (1.2e-4, 1e-1, 6e-4), 5e-5, 40, 5) | R50 | {"paper.recall@1": 0.723},
    "cub_hist:bn_inception": hist(16.0, 1.0, 1.0, (1e-4, 5e-2, 5e-4), 1e-4, 30, 5) | BNI | {"paper.recall@1": 0.7},
    "cub_hist:bn_inception-retuned": hist(20.0, 0.95, 1.2, (1e-4, 5e-2, 5e-4), 1e-4, 30, 5) | BNI,
    "cars_hist": hist(32.0, 0.9, 1.0, (1e-4, 1e-1, 1e-3), 1e-4, 50, 10) | R50 | {"paper.recall@1": 0.898},
    "cars_hist:retuned": hist(32.0, 0.9, 0.8, (1e-4, 1e-1, 1e-3), 1e-4, 50, 10) | R50 | {"paper.recall@1": 0.902},
    "cars_hist:bn_inception": hist(24.0, 0.9, 1.0, (1e-4, 1e-1, 5e-4), 5e-5, 60, 10) | BNI,
    "cars_hist:bn_inception-retuned": hist(22.0, 1.0, 1.5, (1e-4, 1e-1, 5e-4), 5e-5, 60, 10) | BNI,
    "sop_hist": hist(16.0, 2.0, 1.0, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | R50 | THAWED | {"paper.recall@10": 0.922},
    "sop_hist:retuned": hist(20.0, 2.1, 0.5, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | R50 | THAWED,
    "sop_hist:bn_inception": hist(16.0, 1.6, 1.0, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | BNI | THAWED,
    "sop_hist:bn_inception-retuned": hist(12.0, 1.55, 1.5, (1e-4, 1e-2, 1e-3), 1e-4, 60, 10) | BNI | THAWED,
    "cub_crt": CRT | {"data.batch_size": 80, "method.lambda1": [1.0, 0.1], "paper.recall@1": 0.7898},
    "cars_crt": CRT | {"data.batch_size": 80, "method.lambda1": [1.0, 0.1], "paper.recall@8": 0.9803},
    "sop_crt": CRT | {"data.batch_size": 180, "method.lambda1": [1.0, 0.9], "paper.recall@1000": 0.9931},
    "inshop_crt": CRT | {"data.batch_size": 180, "method.lambda1": [1.0, 0.9], "paper.recall@30": 0.9975},
    "cub_crt:ms_printed": {"method.multi_similarity.beta": 50.0, "method.multi_similarity.base": 1.0},
    "cub_crt:mit_b1": {"backbone.depths": [2, 2, 2, 2], "paper.recall@1": 0.7595},
    "cub_crt:mit_b1-separate": {"method.sharing": "separate", "paper.recall@1": 0.7596},
    "cub_crt:mit_b1-single_gamma": {"method.gamma": "single", "backbone.depths": [2, 2, 2, 2]},
    "cub_crt:mit_b1-average": {"method.transform": "average", "method.lambda2": 0.9, "paper.recall@1": 0.7397},
    "inshop_crt:deit-ms": {
        "method.transform": "average", "method.lambda1": [1.0, 0.0], "method.lambda2": 0.0, "backbone.name": "deit",
        "backbone.distilled": False, "paper.recall@1": 0.9247,
    },
    "cars_crt:googlenet": {"backbone.name": "googlenet", "backbone.transform_input": True, "paper.recall@1": 0.785},
    "sop_crt:bn_inception": {"backbone.name": "bn_inception", "paper.recall@10": 0.8904},
    "cars_crt:resnet50": {"backbone.name": "resnet", "backbone.depths": [3, 4, 6, 3], "paper.recall@2": 0.8976},
    "cub_diva": diva(1500.0, 0.3, 55, 0.2, 350, 30) | {"method.ensemble": [1.0, 2.0, 2.0, 2.0], "paper.nmi": 0.714},
    "cub_diva:bn_inception": diva(300.0, 0.1, 70, 0.3, 350, 30) | IBN | {"paper.recall@1": 0.668},
    "cars_diva": diva(100.0, 0.15, 70, 0.2, 350, 30) | {"paper.recall@1": 0.876},
    "cars_diva:bn_inception": diva(100.0, 0.15, 160, 0.3, 350, 30) | IBN | {"paper.recall@2": 0.907},
    "sop_diva": diva(150.0, 0.2, 70, 0.3, 150, 70) | {"method.ensemble": [1.0, 1.0, 1.0, 1.0], "paper.nmi": 0.906},
    "sop_diva:bn_inception": diva(150.0, 0.1, 80, 0.3, 150, 70) | IBN | {"paper.recall@10": 0.906},
    "cub_baseline": {
        "method.loss": "normalized_softmax", "method.layer_norm": True, "method.normalized_softmax.temperature": 0.05,
        "data.batch_size": 75, "data.images_per_class": 25, "data.crop": "random", "data.resize": 256,
        "data.image_size": 224, "train.optimizer": "sgd", "train.groups.backbone.learning_rate": 1e-3,
        "train.groups.embedding.weight_decay": 1e-4, "train.groups.backbone.warmup": "freeze", "train.epochs": 30,
        "train.warmup_epochs": 1, "train.milestones": [15], "train.gamma": 0.1, "paper.recall@1": 0.613,
    },
    "sop_baseline:normalized_softmax": {"data.images_per_class": 5, "train.groups.backbone.learning_rate": 1e-2},
    "cub_baseline:proxy_anchor": {
        "method.pooling": "avg+max", "method.proxy_anchor.margin": 0.1, "method.proxy_anchor.alpha": 32.0,
        "data.sampler": "shuffled", "data.batch_size": 120, "backbone.freeze_bn": True, "train.optimizer": "adamw",
        "train.groups.embedding.learning_rate": 1e-4, "train.groups.loss.learning_rate": 1e-2,
        "train.groups.loss.weight_decay": 1e-4, "train.warmup_epochs": 5, "train.epochs": 55, "train.gamma": 0.5,
        "train.milestones": [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50], "paper.recall@8": 0.924,
    },
    "inshop_baseline:proxy_anchor-paper": {
        "data.batch_size": 180, "backbone.freeze_bn": False, "train.groups.backbone.learning_rate": 6e-4,
        "train.warmup_epochs": 1, "train.milestones": [19, 39], "train.gamma": 0.25, "paper.recall@40": 0.992,
    },
    "cars_baseline:proxy_nca_pp": {
        "method.pooling": "max", "method.layer_norm": True, "data.batch_size": 32, "data.images_per_class": 4,
        "data.image_size": 256, "data.resize": 288, "train.epochs": 40, "train.warmup_epochs": 5, "paper.nmi": 0.738,
    },
    "sop_baseline:margin": {
        "method.margin.beta": 1.2, "method.margin.margin": 0.2, "method.margin.mining": "distance_weighted",
        "data.sampler": "diva", "data.batch_size": 112, "data.images_per_class": 2, "backbone.freeze_bn": True,
        "train.optimizer": "adam", "train.epochs": 100, "train.groups.backbone.learning_rate": 1e-5,
        "train.groups.embedding.weight_decay": 4e-4, "train.groups.loss.learning_rate": 5e-4,
        "train.groups.loss.weight_decay": 0.0, "train.schedule": "constant",
    },
    "cub_baseline:soft_triple": {
        "method.soft_triple.centers": 2, "method.soft_triple.scale": 8.0, "method.soft_triple.gamma": 0.1,
        "method.soft_triple.margin": 0.01, "method.soft_triple.spread": 0.2, "train.epochs": 150,
    },
    "inshop_baseline:contrastive-memory": {
        "method.memory": 25_882, "method.memory_after": 1000, "method.memory_weight": 1.0, "data.batch_size": 64,
        "data.images_per_class": 4, "data.crop_scale": [0.2, 1.0], "train.steps": 35_000,
        "train.groups.backbone.learning_rate": 1e-4, "train.groups.backbone.weight_decay": 5e-4,
        "paper.recall@1": 0.913,
    },
    "cars_diva:triplet": diva(100.0, 0.15, 70, 0.2, 350, 30) | {"method.base": "triplet", "paper.recall@1": 0.873},
    "cub_diva:bn_inception-triplet-paper": {"method.base": "triplet", "paper.recall@1": 0.667} | IBN,
}  # fmt: skip


@pytest.mark.parametrize("path", VALUES)
def test_values(path: str) -> None:
    found = flatten(asdict(resolved(*path.split(":"))))
    assert {key: found[key] for key in VALUES[path]} == VALUES[path]
