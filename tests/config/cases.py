"""What the tests of configurations check beside their values, which are on the cards (`tests/test_cards.py`). `P.py`
beside this file has it for paper P, numbers copied from its tables independently of `configs/`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tests.papers import ROOT, modules


class Facts(NamedTuple):
    """Facts about the configurations of a paper.

    Attributes:
      files: those for the data sets on which papers report results.
      number: of all configurations and variants, a lower bound, so that none is lost unnoticed.
      weights: the directories of published weights that they name, perhaps among others.
      printed: (configuration or row of a study, source, paper, numbers as copied from the paper).
      without_effect: configuration and overrides, of which the last one has no effect, or not the
        one that its name promises.
      late: configurations whose learning rate would only change after the end.
      free: (configuration, train.select, the options of the method with other values of which, and
        of no others, a run is continued).
      unused: configuration of a method -> the parameter groups that it leaves without parameters.
      beside: (configuration, protocol, what is published beside its runs: sources with some of their numbers).
      as_baseline: configurations that differ from the baseline of their data by the method alone.
      photos: configuration and variant with which one step on photographs is traced.
      of_students: whether their methods can only be built with a teacher.
    """

    files: list[str]
    number: int
    weights: set[str]
    printed: Collection[tuple[str, str, str, Mapping[str, str]]] = ()
    without_effect: Collection[str] = ()
    late: Collection[str] = ()
    free: Collection[tuple[str, str, set[str]]] = ()
    unused: Callable[[Any], set[str]] = lambda method: set()
    beside: Collection[tuple[str, str, Mapping[str, Mapping[str, float]]]] = ()
    as_baseline: Collection[str] = ()
    photos: tuple[str, str] | None = None
    of_students: bool = False


def of_papers() -> dict[str, Facts]:
    """The facts of all papers, by name."""
    found = modules(ROOT / "tests" / "config")
    return {module.__name__.rpartition(".")[2]: module.FACTS for module in found}
