"""Pairs come from exactly one source; what cannot be an array or a relation is named."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.config.fields import described
from dml_jax.errors import ConfigError, DataError
from dml_jax.methods.baseline import LOSSES, PAIR_LOSSES
from tests.losses.test_public import BETA, KEY, LABELS, NEGATIVE, POSITIVE, PROXIES, X

ROWS = np.random.default_rng(2).normal(size=(7, 5))
OTHERS = np.array([0, 1, 2, 3, 5, 0, 4])
SAME = LABELS[:, None] == OTHERS[None]
AMONG = losses.Candidates(ROWS, SAME, ~SAME)  # type: ignore[arg-type]


def equal(a: Any, b: Any) -> Any:
    return (np.asarray(a)[:, None] == np.asarray(b)[None]) * 1.0


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_labels_of_candidates(name: str) -> None:
    """Integers, text and large integers give the pairs of equal labels; so does a relation."""
    options: dict[str, Any] = {"key": KEY} if name in ("triplet", "margin", "n_pair") else {}
    table = (BETA,) if name == "margin" else ()
    kinds: list[tuple[Any, Any]] = [(LABELS, OTHERS), (LABELS.tolist(), jax.numpy.asarray(OTHERS))]
    if not table:
        kinds += [(LABELS.astype(str), [*map(str, OTHERS)]), (LABELS * 2**40, OTHERS * 2**40)]

    @jax.jit
    def values(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        call = lambda labels, **given: LOSSES[name](x, labels, *table, **options, **given)  # noqa: E731
        found = [call(a, candidates=y, candidate_labels=b) for a, b in kinds]
        relation = call(LABELS, candidates=y, candidate_labels=OTHERS, relation=equal)
        among = losses.Candidates(y, SAME, ~SAME)  # type: ignore[arg-type]
        return [call(LABELS, candidates=among), relation, *found]

    expected, *found = values(X, ROWS)
    assert expected > 0
    np.testing.assert_allclose(found, expected, rtol=1e-6)


MASKS = {"positive": POSITIVE, "negative": NEGATIVE}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (MASKS | {"relation": equal, "labels": LABELS}, "relation, positive: both give pairs"),
        (MASKS | {"labels": LABELS}, "positive, labels: both give pairs; remove one of them"),
        ({"candidates": AMONG, "relation": equal, "labels": LABELS}, "relation, candidates: both"),
        (
            {"candidates": ROWS, "candidate_labels": OTHERS, "labels": LABELS}
            | {"positive": SAME, "negative": ~SAME},
            "candidate_labels, positive: both give",
        ),
        ({"candidates": ROWS, "relation": equal, "labels": LABELS}, "candidates: have no pairs;"),
        ({"candidate_labels": LABELS, "labels": LABELS}, "candidate_labels: have no candidates"),
        ({"positive": POSITIVE}, "negative: is missing, but positive is given; give both"),
        ({"negative": NEGATIVE}, "positive: is missing, but negative is given; give both"),
        (
            {"candidates": ROWS, "candidate_labels": OTHERS.astype(str), "labels": LABELS},
            "candidate_labels: hold <U21, but labels hold int64; give the same kind",
        ),
        (
            {"candidates": ROWS, "candidate_labels": OTHERS[:3], "labels": LABELS},
            r"candidate_labels: have shape \[3\]; give \[7\]",
        ),
        (
            {"relation": lambda a, b: equal(a, b)[:3], "labels": LABELS},
            r"relation: returns \[3, 12\] for 12 and 12 labels; give \[N, M\]",
        ),
        ({"relation": POSITIVE, "labels": LABELS}, "relation: must be a function of labels"),
    ],
)
def test_one_source_of_pairs(given: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        losses.sup_con(X, given.pop("labels", None), **given)


def test_losses_of_classes_have_no_pairs() -> None:
    with pytest.raises(
        ConfigError, match="arcface: takes no relation, because it compares no pairs"
    ):
        losses.arcface(X, LABELS, PROXIES, relation=equal)  # type: ignore[call-arg]


class Tensor:
    """As one of torch that NumPy cannot convert."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.\nUse detach")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: losses.sup_con(Tensor(), LABELS), "embeddings"),
        (lambda: losses.sup_con([[1.0], [1.0, 2.0]], [0, 0]), "embeddings"),
        (lambda: losses.sup_con(X, Tensor()), "labels"),
        (lambda: losses.arcface(X, LABELS, Tensor()), "proxies"),
        (lambda: losses.sup_con(X, LABELS, weights=Tensor()), "weights"),
    ],
)
def test_what_is_no_array(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(DataError, match=rf"^{name}: cannot be converted to an array \(.*\); give"):
        call()


@pytest.mark.parametrize("name", LOSSES)
def test_help_shows_the_written_signature_and_all_arguments(name: str) -> None:
    loss = LOSSES[name]
    parameters = inspect.signature(loss).parameters
    code = loss.__wrapped__.__code__  # type: ignore[attr-defined]
    written = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    assert [*parameters] == [*written]
    assert "lambda" not in str(inspect.signature(loss))
    text = inspect.getdoc(loss) or ""
    assert parameters.keys() <= described(text).keys()
    assert "Raises:" in text
