"""Published configurations: every variant resolves and builds, with the values of the paper or the authors' code."""

import importlib
import json
import re
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from configs import papers, published
from configs.hist import search as hist_search
from dml_jax import config as configs
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.weights import store
from dml_jax.commands import convert
from dml_jax.config import Config, flatten
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError, WeightsError
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.train import experiment as experiments
from dml_jax.train import optimizers, step
from dml_jax.train.step import TrainState

ROOT = Path(__file__).parents[1]
CLASSES = {"cub": 100, "cars": 98, "sop": 11_318, "inshop": 3_997}  # in training
NAMES = [f"{data}_{method}" for data in CLASSES for method in ("mpn", "hist", "crt", "diva", "baseline")]
NAMES += [f"{data}_{method}" for data in ("cub", "cars") for method in ("student", "group_loss")]
VIT = ["cub_vit", "cars_vit"]  # without published results
SAME = ("normalized_softmax",)  # variants that repeat the main configuration
PAIRS = {  # without parameters of their own
    "contrastive", "triplet", "n_pair", "lifted_structure", "multi_similarity", "sup_con", "smooth_ap", "recall_at_k",
}  # fmt: skip
RELOADED = ("mpn", "student", "group_loss")  # whose code continues from the best epoch
every_file = pytest.mark.parametrize("name", NAMES)


def module(name: str) -> ModuleType:
    return importlib.import_module(f"configs.{name}")


@cache
def resolved(name: str, variant: str = "", protocol: str | None = None) -> Config:
    path = str(ROOT / "configs" / f"{name}.py") + (f":{variant}" if variant else "")
    return configs.resolve(config_files.load_config(path, {}, protocol))


def variants(name: str) -> tuple[str, ...]:
    return ("", *getattr(module(name), "VARIANTS", ()))


def test_every_configuration_and_variant_resolves_without_a_warning() -> None:
    """The number is a lower bound, so that none is lost unnoticed."""
    files = [path.stem for path in (ROOT / "configs").glob("*.py") if "get_config" in path.read_text()]
    assert set(NAMES) < set(files)
    configurations = [(name, variant) for name in files for variant in variants(name)]
    assert len(set(configurations)) == len(configurations) >= 270
    for name, variant in configurations:
        path = f"{ROOT / 'configs' / name}.py{':' if variant else ''}{variant}"
        for protocol in config_files.PROTOCOLS:
            config_files.resolved(path, {}, lambda text, path=path: pytest.fail(f"{path}: {text}"), protocol)


def test_the_batch_size_for_which_rates_are_given(tmp_path: Path) -> None:
    """The file's own, whatever the command line and the `config.json` of a run say later."""
    typed = {"data.batch_size": "256", "train.scale_rates": "linear"}
    config = config_files.resolved(str(ROOT / "configs/digits_hist.py"), typed)
    own = resolved("digits_hist").data.batch_size
    assert (own, config.data.batch_size, config.train.rates_for_batch) == (64, 256, 64)
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps({"config": asdict(config)}))
    again = config_files.resolved(str(stored), {"data.batch_size": "512"})
    assert again.train == config.train


def test_the_rate_falls_throughout_the_longer_trials_of_the_search() -> None:
    """StepLR halves it every 5 epochs on CUB and every 10 on the others, in all 60; after one epoch of warm-up."""
    for variant in hist_search.VARIANTS:
        search = hist_search.get_study(variant).search
        assert search is not None
        lengths = search.overrides({"method.tau": 16.0})
        config = config_files.resolved(search.config, {key: str(value) for key, value in lengths.items()})
        if variant == "omniglot":
            continue
        assert (config.train.epochs, config.train.milestones) == (60, ())
        assert config.train.period == (5 if variant.startswith("cub") else 10)


def test_a_batch_that_the_devices_do_not_divide() -> None:
    """With the eight devices of the tests."""
    config = config_files.resolved("digits_hist", {"data.batch_size": "54", "data.images_per_class": "1"})
    with pytest.raises(ConfigError, match=r"batch_size=54: must be .* 8 devices; the nearest that fits is 56$"):
        experiments.build(config)


# Copied from the papers' tables and the authors' commands, independently of `configs/`: keys, and values by file.
SETTINGS: list[tuple[tuple[str, ...], dict[str, tuple[Any, ...]]]] = [
    (  # HIST: tables 2 and 8 of the reproduction
        ("method.tau", "method.alpha", "method.lambda_s", "train.groups.distributions.learning_rate"),
        {
            "cub_hist": (32.0, 1.1, 1.0, 0.1), "cub_hist:retuned": (24.0, 1.15, 1.0, 0.1),
            "cub_hist:bn_inception": (16.0, 1.0, 1.0, 0.05), "cub_hist:bn_inception-retuned": (20.0, 0.95, 1.2, 0.05),
            "cars_hist": (32.0, 0.9, 1.0, 0.1), "cars_hist:retuned": (32.0, 0.9, 0.8, 0.1),
            "cars_hist:bn_inception": (24.0, 0.9, 1.0, 0.1), "cars_hist:bn_inception-retuned": (22.0, 1.0, 1.5, 0.1),
            "sop_hist": (16.0, 2.0, 1.0, 0.01), "sop_hist:retuned": (20.0, 2.1, 0.5, 0.01),
            "sop_hist:bn_inception": (16.0, 1.6, 1.0, 0.01), "sop_hist:bn_inception-retuned": (12.0, 1.55, 1.5, 0.01),
        },
    ),
    (  # HIST: StepLR of the authors' commands, and table 8 of the reproduction
        ("train.epochs", "train.period", "train.gamma"),
        {
            "cub_hist": (40, 5, 0.5), "cars_hist": (50, 10, 0.5), "sop_hist": (60, 10, 0.5),
            "cub_hist:bn_inception": (30, 5, 0.5), "cars_hist:bn_inception": (60, 10, 0.5),
            "sop_hist:bn_inception": (60, 10, 0.5),
        },
    ),
    (  # MPN: the authors' configuration files
        (
            "train.groups.mpn.learning_rate", "train.groups.mpn.weight_decay", "data.batch_size", "method.temperature",
            "method.layers", "method.heads", "train.epochs", "train.milestones",
        ),
        {
            "cub_mpn": (0.0001563663718906821, 6.059722614369727e-06, 54, 0.2, 1, 2, 70, [30]),
            "cars_mpn": (0.00036683239911604993, 2.551918610962277e-09, 70, 0.1111111111111, 2, 8, 70, [30]),
            "sop_mpn": (0.0002472471515853406, 2.7650277063275255e-13, 90, 0.6046908988578005, 1, 8, 70, [30]),
            "inshop_mpn": (0.00011265974954242144, 1.0554824926510768e-07, 56, 0.18591347176280537, 1, 4, 70, [30]),
        },
    ),
    (  # the Group Loss: the authors' code
        ("train.groups.classifier.learning_rate", "data.batch_size", "method.anchors", "method.temperature"),
        {"cub_group_loss": (0.0001563663718906821, 54, 2, 24.0), "cars_group_loss": (0.0002, 35, 3, 79.0)},
    ),
    (  # CRT: section 4.1
        ("data.batch_size", "method.lambda1", "method.embedding_dims", "train.groups.prototypes.learning_rate"),
        {
            "cub_crt": (80, [1.0, 0.1], [128, 1024], 3e-5), "cars_crt": (80, [1.0, 0.1], [128, 1024], 3e-5),
            "sop_crt": (180, [1.0, 0.9], [128, 1024], 3e-5), "inshop_crt": (180, [1.0, 0.9], [128, 1024], 3e-5),
        },
    ),
    (  # DiVA: the authors' commands
        ("method.rho", "method.alpha_intra", "train.epochs", "train.milestones", "train.gamma", "method.queue_batches"),
        {
            "cub_diva": ([1500.0], 0.3, 350, [55], 0.2, 30),
            "cub_diva:bn_inception": ([300.0], 0.1, 350, [70], 0.3, 30),
            "cars_diva": ([100.0], 0.15, 350, [70], 0.2, 30), "sop_diva": ([150.0], 0.2, 150, [70], 0.3, 70),
            "cars_diva:bn_inception": ([100.0], 0.15, 350, [160], 0.3, 30),
            "sop_diva:bn_inception": ([150.0], 0.1, 150, [80], 0.3, 70),
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "expected"), SETTINGS)
def test_settings_of_the_papers(keys: tuple[str, ...], expected: dict[str, tuple[Any, ...]]) -> None:
    for name, values in expected.items():
        file, _, variant = name.partition(":")
        found = flatten(asdict(resolved(file, variant)))
        assert tuple(found[key] for key in keys) == values, name


def test_every_configuration_fits_its_weights() -> None:
    """Also in what the shapes do not show; the directories are named after the published networks."""
    named, found = convert.published(), set()
    for path in (ROOT / "configs").glob("*.py"):
        for variant in variants(path.stem) if "get_config" in path.read_text() else ():
            options = asdict(resolved(path.stem, variant).backbone)
            weights = Path(options["pretrained"]).name
            if weights != "none":
                unseen = getattr(configs.module("backbone", options["name"]), "UNSEEN", ())
                keys = (*unseen, "pixels") if unseen else ()  # the papers change the pixels of convolutional networks
                assert not store.differences(asdict(named[weights]), options, keys), (path, variant)
                found.add(weights)
    assert {"deit_small", "dino_vits16", "dinov2_vits14", "googlenet", "mit_b2", "vit_small"} <= found


@every_file
def test_variants_and_protocols(name: str) -> None:
    data, method = name.split("_", 1)
    seen: list[dict[str, Any]] = []
    for variant in variants(name):
        config = resolved(name, variant)
        settings = flatten(asdict(replace(config, name="", paper={})))
        assert settings not in seen or variant in SAME, f"{variant} changes nothing"
        seen.append(settings)
        assert config.name == "-".join(filter(None, (name, variant)))
        assert (config.data.name, config.data.path, config.method.name) == (data, f"data/{data}", method)
        assert (config.train.select, config.evaluation.protocol) == ("last", "clean")
        assert (config.train.reload_best_epochs, config.evaluation.nmi_average) == ((), "arithmetic")
        assert config.evaluation.clustering == {}
        for result in (result for sources in config.paper.values() for result in sources.values()):
            reported = [result[key] for k in config.evaluation.ks if (key := f"recall@{k}") in result]
            assert reported == sorted(reported)

        paper = resolved(name, variant, "paper")
        assert paper.name == f"{config.name}-paper"
        assert (paper.train.select, paper.evaluation.protocol) == ("test", "paper")
        assert paper.train.reload_best_epochs == ((30, 50) if method in RELOADED else ())
        clustered = config.evaluation.cluster
        assert paper.evaluation.nmi_average == ("geometric" if method == "hist" and clustered else "arithmetic")
        # scikit-learn's k-means in HIST's code and faiss' in DiVA's, also on SOP.
        authors = {"hist": ("k-means++", 10, 300), "diva": ("random", 1, 20)} if clustered else {}
        assert tuple(paper.evaluation.clustering.values()) == authors.get(method, ())
        assert paper.paper == config.paper


def test_the_protocol_of_a_stored_run(tmp_path: Path) -> None:
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps({"config": asdict(resolved("digits_hist"))}))
    found = config_files.load_config(str(stored), {}, "paper")
    assert (found["train"]["select"], found["evaluation"]["protocol"]) == ("test", "paper")
    stored.write_text(json.dumps({"config": found.to_dict()}))
    assert config_files.load_config(str(stored), {}, "paper") == config_files.load_config(str(stored), {})
    with pytest.raises(ConfigError, match=r"--protocol=clean: .*config\.json is of a run under the paper protocol"):
        config_files.load_config(str(stored), {}, "clean")


@pytest.mark.parametrize("values", [{"a.b": 1}, {"train": {"groups": {"x.y": {}}}}, {"__class__": 5}, {"train": [1]}])
def test_a_damaged_stored_configuration(values: dict[str, Any], tmp_path: Path) -> None:
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps({"config": {"train": {}, "paper": [1]} | values}))
    for overrides in ({}, {"train.steps": "3"}, {"method.loss": "triplet"}, {"backbone.name": "vit"}):
        with pytest.raises(ConfigError):
            config_files.resolved(str(stored), overrides)


@pytest.mark.parametrize(("text", "message"), [("{", "truncated or damaged"), ('{"config": {}}', "no configuration")])
def test_a_file_that_stores_no_configuration(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        config_files.load_config(str(tmp_path / "config.json"), {})


HIST, RE_HIST, MPN = "Lim et al., CVPR 2022", "Yuan et al., MLRC 2022", "Seidenschwarz et al., ICML 2021"
RE_MPN = "[Re] Learning Intra-Batch Connections, MLRC"
CRT, DIVA = "Kan et al., NeurIPS 2022", "Milbich et al., ECCV 2020"
PRINTED = [  # copied from the papers, independently of `published.csv`
    ("cars_hist", "paper", HIST, {"recall@1": "89.8", "recall@2": "94.0", "nmi": "75.5"}),
    ("cub_hist:bn_inception", "reproduction", RE_HIST, {"recall@1": "68.7", "nmi": "70.3"}),
    ("cub_mpn", "paper", MPN, {"recall@8": "92.7", "nmi": "74.0"}),
    ("cars_mpn", "authors' weights", RE_MPN, {"recall@2": "92.7", "nmi": "70.9"}),
    ("mpn:ensembles-inshop/5 networks", "paper", MPN, {"recall@1": "93.4"}),
    ("sop_crt", "paper", CRT, {"recall@1": "83.41", "recall@1000": "99.31"}),
    ("cub_diva:bn_inception", "paper", DIVA, {"recall@1": "66.8", "nmi": "70.0"}),
    ("diva:separate-cub/separate models", "paper", DIVA, {"recall@1": "48.7"}),
    ("hist:sizes-cars/embedding_dim=1024 hidden_dim=1024", "reproduction", RE_HIST, {"recall@1": "89.97"}),
]


@pytest.mark.parametrize(("of", "source", "paper", "printed"), PRINTED)
def test_published_numbers_as_printed(of: str, source: str, paper: str, printed: dict[str, str]) -> None:
    found = [result for result in published.results(of) if (result[0].source, result[0].paper) == (source, paper)]
    assert printed.items() <= {entry.metric: entry.printed for entry in found[0]}.items()


def test_published_results_beside_runs() -> None:
    """Beside a run is the result of its own protocol and settings, or else what differs is said."""
    softmax = "paper (selected on test)"
    assert published.beside_runs("cub_mpn")["clean"]["paper"] == {"recall@1": 0.671, "recall@1_stderr": 0.0069}
    assert published.beside_runs("cub_mpn")["paper"]["paper"]["recall@1"] == 0.703
    assert published.beside_runs("cub_hist:retuned")["paper"].keys() == {"reproduction"}
    assert published.beside_runs("cub_baseline")["clean"].keys() == {softmax}
    other = "paper (227 x 227 pixels, another recipe; selection not stated)"
    assert published.beside_runs("cub_baseline:multi_similarity")["paper"].keys() == {other}
    assert published.beside_runs("cub_mpn:refined")["paper"].keys() == {"paper (after refinement, reciprocal)"}
    assert published.beside_runs("inshop_hist") == {}


def test_every_published_number_belongs_to_something() -> None:
    """A configuration with its variant, or the row of a study."""
    for of in {of for entry in published.entries() for of in entry.of}:
        experiment, _, row = of.partition("/")
        name, _, variant = experiment.partition(":")
        if not row:
            assert variant in variants(name) or not papers.installed(name.partition("_")[2]), of
            continue
        study_file = config_files.run_file("--study", name)
        if variant not in study_file.VARIANTS:  # beside another paper's method
            assert not all(map(papers.installed, ("group_loss", "student"))), of
            continue
        study = study_file.get_study(*filter(None, [variant]))
        assert row in [row.name for row in study.rows], of


@cache
def shapes_only(config: Any, side: int) -> Backbone:
    """A backbone with the shapes of the real one, but for repeated blocks, that returns zeros; traced once."""
    shallow = {"depths": (1,) * len(config.depths)} if hasattr(config, "depths") else {}
    real = configs.module("backbone", config.name).build(replace(config, pretrained="none", **shallow))
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
    """The parameter groups that hold parameters: those of the configuration, except where a variant leaves one out."""
    method = config.method
    unused = {
        "loss": getattr(method, "loss", "") in PAIRS,
        "mpn": getattr(method, "losses", "") == "auxiliary",
        "beta": getattr(method, "base", "") == "triplet",
        "embedding": method.name == "group_loss",
    }
    return {group for group in config.train.groups if not unused.get(group)}


SLOW = ("hist", "mpn", "crt", "diva", "vit", "group_loss")


@pytest.mark.parametrize("method", ["baseline", *(pytest.param(m, marks=pytest.mark.slow) for m in SLOW)])
def test_variants_build(method: str) -> None:
    """Shapes of parameters, loss and embedding; variants that differ only in numbers are traced once."""
    traced = set()
    for name, variant in ((n, v) for n in NAMES + VIT if n.endswith(method) for v in variants(n)):
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
        batch = Batch(jax.ShapeDtypeStruct((made.hooks.views, size, side, side, 3), jnp.uint8), rows, rows)

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
        assert embeddings.shape[0] == size


def test_missing_weights_name_the_command() -> None:
    backbone = configs.module("backbone", "mit").build(resolved("cub_crt").backbone)
    wanted = "dml-jax convert --weights=FILE --output=weights/mit_b2"
    with pytest.raises(WeightsError, match=re.escape(wanted)):
        backbone.init(jax.random.key(0), (227, 227))


@pytest.mark.parametrize("protocol", [None, "paper"])
def test_published_results_are_dropped_with_the_experiment(protocol: str | None) -> None:
    path = str(ROOT / "configs" / "cars_hist.py")
    assert config_files.load_config(path, {}, protocol)["paper"]["paper"]["paper"]["recall@1"] == 0.898
    elsewhere = {"seed": "3", "data.path": "elsewhere"}
    assert config_files.load_config(path, elsewhere, protocol)["paper"]["paper"]["paper"]["recall@1"] == 0.898
    for key, value in (("method.tau", "16"), ("train.epochs", "2"), ("data.image_size", "128"), ("seed", "1")):
        kept = config_files.load_config(path, {key: value}, protocol)["paper"]
        assert bool(kept) == (key == "seed"), key
