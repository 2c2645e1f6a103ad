"""Rules at fields: every kind of invalid value becomes one sentence with the key, the value and the rule."""

from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any, Literal

import pytest

from dml_jax.backbones.contract import Pixels
from dml_jax.config import Config, Data, Evaluation, Group, Train, choices, fields, modules, plugin_module
from dml_jax.config.fields import AtLeastTwo, Fraction, Positive, PositiveInt, Probability, require, section, validate
from dml_jax.errors import ConfigError
from dml_jax.methods.baseline import LOSSES


@section
class Inner:
    """A section in a section.

    Attributes:
      rate: Of something.
    """

    rate: Positive = 1.0


@section
class Outer:
    """All kinds of fields.

    Attributes:
      tau: Scale: of the distances.
      count: Explained in two lines.
    """

    tau: Positive = 32.0
    count: PositiveInt = 3
    kind: Literal["mean", "sum"] = "mean"
    pair: tuple[PositiveInt, PositiveInt] = (1, 2)
    many: tuple[PositiveInt, ...] = (1, 2)
    share: Fraction = 0.5
    chance: Probability = 1.0
    two: AtLeastTwo = 2
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        require(self.count < 10, "count", self.count, "must be below ten")


def test_valid_values() -> None:
    made = validate(Outer, {"tau": 3, "pair": [4, 5], "many": [], "inner": {"rate": 2}})
    assert made == Outer(tau=3.0, pair=(4, 5), many=(), inner=Inner(2.0))
    assert isinstance(made.tau, float)
    assert isinstance(made.pair, tuple)
    assert hash(made) == hash(replace(Outer(), tau=3.0, pair=(4, 5), many=(), inner=Inner(2.0)))


def test_sections_are_also_validated_when_constructed() -> None:
    for make in (lambda: Outer(tau=-1), lambda: replace(Outer(), count=11)):
        with pytest.raises(ConfigError):
            make()


def test_meanings_are_those_of_the_docstring() -> None:
    assert fields.meanings(Outer) == {"tau": "Scale: of the distances.", "count": "Explained in two lines."}
    assert list(fields.keys(Inner, "a")) == ["a.rate"]

    class Derived(Inner):
        """A section with the options of its base.

        Attributes:
          rate: Of something else.
        """

    assert fields.meanings(Derived) == {"rate": "Of something else."}


def test_every_option_has_a_meaning() -> None:
    sections: list[Any] = [Config, Data, Train, Evaluation, Group, Pixels]
    sections += [modules.options(loss) for loss in LOSSES.values()]
    for kind in ("backbone", "method"):
        sections += [plugin_module(kind, name).Config for name in choices(kind)]
    for kind in sections:
        names = {field.name for field in fields_of(kind)}
        assert names <= set(fields.meanings(kind)), kind
