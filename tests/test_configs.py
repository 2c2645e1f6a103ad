"""Published configurations: every variant resolves and builds. Their values: `test_cards.py`."""

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from configs import published
from configs.recipes import small_baseline
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.weights import converted, known_networks
from dml_jax.config import files as config_files
from dml_jax.config import flatten, plugin_module
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.train import optimizers, step
from dml_jax.train.step import TrainState
from tests import configurations as every
from tests.config.cases import of_papers
from tests.configurations import CLASSES, FACTS, configurations, names, resolved, variants
from tests.papers import PAPERS, ROOT, absent

VIT = ["cub_vit", "cars_vit"]  # without published results
SAME = ("normalized_softmax",)  # variants that repeat the main configuration


@pytest.mark.parametrize("paper", FACTS)
def test_every_configuration_and_variant_resolves_without_a_warning(paper: str | None) -> None:
    found = configurations(paper)
    assert FACTS[paper].files == names(paper or "baseline")
    assert len(set(found)) == len(found) >= FACTS[paper].number
    for name, variant in found:
        for protocol in (None, "paper"):
            resolved(name, variant, protocol)


def test_the_batch_size_for_which_rates_are_given(tmp_path: Path) -> None:
    """The file's own, whatever the command line and the `config.json` of a run say later."""
    typed = {"data.batch_size": "256", "train.scale_rates": "linear"}
    config = config_files.resolved(str(ROOT / "configs/digits_baseline.py"), typed)
    own = resolved("digits_baseline").data.batch_size
    assert (own, config.data.batch_size, config.train.rates_for_batch) == (64, 256, 64)
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps({"config": asdict(config)}))
    again = config_files.resolved(str(stored), {"data.batch_size": "512"})
    assert again.train == config.train


@pytest.mark.parametrize("paper", FACTS)
def test_every_configuration_fits_its_weights(paper: str | None) -> None:
    """Also in what the shapes do not show; the directories are named after the networks."""
    named, found = known_networks.published(), set()
    for name, variant in configurations(paper):
        options = asdict(resolved(name, variant).backbone)
        directory = Path(options["pretrained"]).name
        if directory != "none":
            unseen = getattr(plugin_module("backbone", options["name"]), "UNSEEN", ())
            # The papers change the pixels of convolutional networks.
            keys = (*unseen, "pixels") if unseen else ()
            different = converted.differences(asdict(named[directory]), options, keys)
            assert not different, (name, variant)
            found.add(directory)
    assert FACTS[paper].weights <= found


@pytest.mark.parametrize("name", [name for facts in FACTS.values() for name in facts.files])
def test_variants_and_protocols(name: str) -> None:
    """What the variants of a configuration share beside the values on their card."""
    seen: list[dict[str, Any]] = []
    for variant in variants(name):
        config = resolved(name, variant)
        settings = flatten(asdict(replace(config, name="", paper={})))
        assert settings not in seen or variant in SAME, f"{variant} changes nothing"
        seen.append(settings)
        assert config.name == "-".join(filter(None, (name, variant)))
        assert config.data.path == f"data/{name.partition('_')[0]}"
        for result in (result for sources in config.paper.values() for result in sources.values()):
            reported = [result[key] for k in config.evaluation.ks if (key := f"recall@{k}") in result]
            assert reported == sorted(reported)
        theirs = resolved(name, variant, "paper")
        assert (theirs.name, theirs.paper) == (f"{config.name}-paper", config.paper)


def test_the_protocol_of_a_stored_run(tmp_path: Path) -> None:
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps({"config": asdict(resolved("digits_baseline"))}))
    found = config_files.load_config(str(stored), {}, "paper")
    assert (found["train"]["select"], found["evaluation"]["protocol"]) == ("test", "paper")
    stored.write_text(json.dumps({"config": found}))
    assert config_files.load_config(str(stored), {}, "paper") == config_files.load_config(str(stored), {})


@pytest.mark.parametrize("values", [{"a.b": 1}, {"train": {"groups": {"x.y": {}}}}, {"__class__": 5}, {"train": [1]}])
def test_a_damaged_stored_configuration(values: dict[str, Any], tmp_path: Path) -> None:
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps({"config": {"train": {}, "paper": [1]} | values}))
    for overrides in ({}, {"train.steps": "3"}, {"backbone.name": "vit"}):
        with pytest.raises(ConfigError):
            config_files.resolved(str(stored), overrides)


def test_published_numbers_as_printed() -> None:
    for of, source, paper, printed in (case for facts in FACTS.values() for case in facts.printed):
        found = next(
            result for result in published.results(of) if (result[0].source, result[0].paper) == (source, paper)
        )
        assert printed.items() <= {entry.metric: entry.printed for entry in found}.items(), of


OTHERS = "227 x 227 pixels, another recipe"
# paper, place, data, of, refined, source, protocol, settings, metric, printed, spread
ENTRIES = tuple(
    published.Entry("A paper", "Table 1", "cars", (of,), *rest)
    for of, *rest in (
        ("cars_baseline", "", "paper", "paper", "", "recall@1", "84.2", "0.5"),
        ("cars_baseline", "", "paper", "paper", "", "nmi", "74.0", ""),
        ("cars_baseline:triplet", "", "paper", "not stated", OTHERS, "recall@1", "50", ""),
        ("cars_baseline:margin", "reciprocal", "paper", "clean", "", "recall@1", "60", ""),
    )
)


def test_published_results_beside_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a run is the result of its own protocol and settings, or else what differs is said."""
    monkeypatch.setattr(published, "entries", lambda: ENTRIES)
    found = published.beside_runs("cars_baseline")
    assert found["paper"] == {"paper": {"recall@1": 0.842, "recall@1_stderr": 0.005, "nmi": 0.74}}
    assert found["clean"] == {"paper (selected on test)": found["paper"]["paper"]}
    other = f"paper ({OTHERS}; selection not stated)"
    assert published.beside_runs("cars_baseline:triplet")["paper"] == {other: {"recall@1": 0.5}}
    refined, number = "paper (after refinement, reciprocal", {"recall@1": 0.6}
    assert published.beside_runs("cars_baseline:margin") == {
        "clean": {f"{refined})": number},
        "paper": {f"{refined}; not selected on test)": number},
    }
    assert published.beside_runs("cars_vit") == {}


def test_every_published_number_belongs_to_something() -> None:
    """A configuration with its variant, or the row of a study; papers compare with others, which may be deleted."""
    missing = [paper for paper in PAPERS if absent(paper)]
    for of in {of for entry in published.entries() for of in entry.of}:
        if any(paper in of.lower().replace(" ", "_") for paper in missing):
            continue
        experiment, _, row = of.partition("/")
        name, _, variant = experiment.partition(":")
        if not row:
            assert variant in variants(name), of
            continue
        study_file = config_files.run_file("--study", name)
        assert variant in study_file.VARIANTS, of
        study = study_file.get_study(*filter(None, [variant]))
        assert row in [row.name for row in study.rows], of


@cache
def shapes_only(config: Any, side: int) -> Backbone:
    """A backbone with the parameters of the real one, but for repeated blocks, that returns zeros; traced once."""
    shallow = {"depths": (1,) * len(config.depths)} if hasattr(config, "depths") else {}
    real = plugin_module("backbone", config.name).build(replace(config, pretrained="none", **shallow))
    params, stats = jax.eval_shape(lambda: real.init(jax.random.key(0), (side, side)))

    def init(key: jax.Array, shape: tuple[int, int]) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (params, stats))

    def apply(params: Any, stats: Any, inputs: jax.Array, **_: Any) -> Any:
        return jnp.zeros((len(inputs), 7, 7, real.channels)), stats

    return real._replace(init=init, apply=apply)


@pytest.mark.parametrize(
    ("paper", "names"),
    [
        (None, FACTS[None].files),
        pytest.param(None, VIT, marks=pytest.mark.slow),
        *(
            pytest.param(paper, facts.files, marks=pytest.mark.slow)
            for paper, facts in of_papers().items()
            if not facts.of_students
        ),
    ],
)
def test_variants_build(paper: str | None, names: list[str]) -> None:
    """Shapes of parameters, loss and embedding; variants that differ only in numbers are traced once."""
    traced = set()
    for name, variant in ((n, v) for n in names for v in variants(n)):
        config = resolved(name, variant)
        kinds = {key: value for key, value in flatten(asdict(config.method)).items() if not isinstance(value, float)}
        kinds["memory"] = bool(kinds.get("memory"))
        key = (config.backbone, config.data.image_size, config.train.optimizer, repr(kinds))
        if key in traced:
            continue
        traced.add(key)
        side, size = config.data.image_size, config.data.batch_size
        build = plugin_module("method", config.method.name).build
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
        assert {made.group(tuple(part.key for part in path)) for path, _ in leaves} == (
            {*config.train.groups} - FACTS[paper].unused(config.method)
        )
        assert loss.shape == ()
        assert embeddings.shape[0] == size


@pytest.mark.parametrize("protocol", [None, "paper"])
def test_published_results_are_dropped_with_the_experiment(
    protocol: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "entries", lambda: ENTRIES)
    path = str(ROOT / "configs" / "cars_baseline.py")
    for same in ({}, {"seed": "3", "data.path": "elsewhere"}):
        kept = config_files.load_config(path, same, protocol)["paper"]
        assert kept["paper"]["paper"]["recall@1"] == 0.842
    for change in ({"method.pooling": "max"}, {"train.epochs": "2"}, {"data.image_size": "128"}):
        assert not config_files.load_config(path, change, protocol)["paper"], change


@pytest.mark.parametrize("data", ["omniglot", "digits"])
def test_every_loss_is_a_variant_that_changes_only_the_loss(data: str) -> None:
    found = {v: flatten(every.values(f"{data}_baseline", v)) for v in ("", *small_baseline.VARIANTS)}
    losses = {loss for settings in found.values() for loss in settings["method.loss"].split("+")}
    assert losses == set(baseline.LOSSES)
    for variant, settings in found.items():
        assert (settings["method.memory"] > 0) == variant.endswith("-memory")
        assert every.kept(settings) == every.kept(found[""])
    same = [variant for variant, settings in found.items() if settings | {"name": ""} == found[""] | {"name": ""}]
    assert same == ["", "normalized_softmax"]


def test_one_step_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    every.check_one_step_on_photos("omniglot_baseline", "margin-memory", tmp_path)
