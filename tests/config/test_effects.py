"""What another value of an option changes: declared by its owner, also in the code of another package."""

import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest

from dml_jax.config import choices, decisive, flatten, plugin_module, resolve
from dml_jax.config import files as config_files
from dml_jax.config.fields import Effect, Mark, NonNegativeInt, PositiveInt, section
from dml_jax.config.resolve import same_experiment
from dml_jax.errors import CheckpointError
from dml_jax.train import model
from dml_jax.train.records import workdir
from tests.config.cases import of_papers
from tests.train.experiments import values

ROOT = Path(__file__).parents[2]
OWN = "mypaper.own_method"


@section
class Neighbours:
    """A section in a section."""

    k: PositiveInt = 10  # of a trained graph
    shown: Annotated[PositiveInt, Effect.NONE] = 5  # in figures


@section
class Own:
    """Names that other methods use for something else."""

    name: str = OWN
    k: PositiveInt = 1  # of a trained graph
    k_r: NonNegativeInt = 0  # trained
    ensemble: bool = False  # trained
    tested_branch: PositiveInt = 1  # trained
    workers: Annotated[PositiveInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 2  # read ahead
    temperature: Annotated[PositiveInt, Effect.EMBEDDING] = 1  # at test time
    neighbours: Neighbours = Neighbours()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Values of a configuration with a method of another package."""
    module = ModuleType(OWN)
    module.Config, module.build = Own, lambda *_: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, OWN, module)
    return values(steps=4) | {"method": {"name": OWN}}


def check_same(stored: dict[str, Any], here: dict[str, Any], *, selecting: bool = True) -> None:
    """Compares a run with another configuration, before it is resumed."""
    facts = [{"config": asdict(resolve(given))} for given in (stored, here)]
    workdir.check_same_facts(Path("run"), *facts, selecting=selecting)


@pytest.mark.parametrize("key", ["k", "k_r", "ensemble", "tested_branch", "neighbours.k"])
def test_a_trained_option_is_decisive_whatever_it_is_called(own: dict[str, Any], key: str) -> None:
    *outer, last = key.split(".")
    value: Any = {last: True if last == "ensemble" else 7}
    other = own | {"method": {"name": OWN} | ({outer[0]: value} if outer else value)}
    with pytest.raises(CheckpointError, match=rf"a different configuration: method\.{re.escape(key)} \(.* there, "):
        check_same(own, other)


@pytest.mark.parametrize("option", [{"workers": 9}, {"temperature": 9}, {"neighbours": {"shown": 9}}])
def test_what_an_owner_declares_to_change_no_model(own: dict[str, Any], option: dict[str, Any]) -> None:
    check_same(own, own | {"method": {"name": OWN} | option})


def test_an_option_of_the_embedding_matters_while_models_are_selected(own: dict[str, Any]) -> None:
    own["train"] |= {"select": "test"}
    other = own | {"method": {"name": OWN, "temperature": 9, "workers": 9}}
    with pytest.raises(
        CheckpointError, match=r"a different configuration: method\.temperature \(1 there, 9 here\); give"
    ):
        check_same(own, other)
    check_same(own, other, selecting=False)
    own["evaluation"] = {"test_variants": {"warm": {"temperature": 3}}}
    assert model.with_test_variant(resolve(own), "warm").method == Own(temperature=3)


def test_published_numbers(own: dict[str, Any]) -> None:
    assert same_experiment(
        own, ["method.workers", "seed", "backbone.pretrained", "evaluation.test_variants.a.temperature"]
    )
    assert not same_experiment(own, ["method.temperature"])
    assert not same_experiment(own, ["data.sampler"])


@pytest.mark.parametrize(
    ("file", "select", "free"),
    [("digits_baseline:triplet", "last", set()), *(case for facts in of_papers().values() for case in facts.free)],
)
def test_options_that_may_change_during_a_run(file: str, select: str, free: set[str]) -> None:
    name, colon, variant = file.partition(":")
    given = asdict(config_files.resolved(f"{ROOT / 'configs' / name}.py{colon}{variant}", {}))
    given["train"]["select"] = select
    counted = decisive(given).keys()
    missing = {key for key in flatten(given) if key not in counted}
    assert {key for key in missing if key.startswith("method.")} == {f"method.{option}" for option in free}
    of_train = {"steps", "epochs", "features", "log_every", "checkpoint_every", "keep_every"}
    assert {key for key in missing if key.startswith("train.")} == {
        f"train.{option}" for option in of_train | ({"evaluate_every"} if select == "last" else set())
    }
    assert {"data.path", "data.threads", "data.workers"} <= missing
    assert ("evaluation.protocol" in counted) == (select == "test")


def test_the_configuration_names_no_option_of_a_method() -> None:
    options = {option for name in choices("method") for option in vars(plugin_module("method", name).Config)}
    for file in (ROOT / "dml_jax" / "config").glob("*.py"):
        named = set(re.findall(r"\bmethod\.(\w+)", re.sub(r"#.*", "", file.read_text()))) - {"name"}
        assert not named & options, file
