"""Arguments that are wrong end in one clear error, and those of other types in the same loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.config import modules
from dml_jax.errors import ConfigError, DataError
from dml_jax.losses import mining, pair_losses, pairwise, signature
from dml_jax.methods.baseline import LOSSES, takes
from tests.losses.test_public import BETA, CENTERS, KEY, LABELS, NEGATIVE, POSITIVE, PROXIES, D, X

ROWS = len(LABELS)
TABLES = {name: signature.learned(loss) for name, loss in LOSSES.items()}
WRONG: dict[str, Any] = {  # a value that breaks the rule of an option, by the default
    "str": "no such word", "bool": 1, "int": -1, "float": -1.0, "tuple": (-1,)
}  # fmt: skip


def table(axes: str) -> np.ndarray:
    return np.ones([{"C": 6, "D": X.shape[1], "K": 3}[axis] for axis in axes])


def called(name: str, **options: Any) -> Callable[..., jax.Array]:
    """The loss with ones in place of learned parameters: (embeddings, labels, …) -> scalar."""
    tables = [table(parameter.axes) for parameter in TABLES[name].values()]
    if takes(LOSSES[name], "key"):
        options.setdefault("key", KEY)
    return lambda x=X, labels=LABELS, **given: LOSSES[name](x, labels, *tables, **options, **given)


# All losses have one decorator, which the tests of shapes and types call for each of them; what it
# does with arrays differs between these: with tables, with one and mining, on pairs, drawn.
KINDS = ("cross_entropy", "margin", "contrastive", "n_pair")
OPTIONS = [
    (name, option)
    for name, loss in LOSSES.items()
    for option in vars(modules.options(loss)())
    if takes(loss, option)
    and option not in TABLES[name]
    and (name, option) != ("multi_similarity", "base")
]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_has_its_rule_in_direct_calls(name: str, option: str) -> None:
    default = getattr(modules.options(LOSSES[name])(), option)
    with pytest.raises(ConfigError, match=rf"^\w+: {option}(\[0\])?=.*: must be"):
        called(name, **{option: WRONG[type(default).__name__]})()


def test_options_of_other_types_and_traced_ones() -> None:
    arrays = (np.float32(0.5), np.array(0.5), jnp.float32(0.5))

    @jax.jit
    def all_at_once(traced: float) -> tuple[jax.Array, list[jax.Array]]:
        expected, *found = (
            losses.nt_xent(X, LABELS, temperature=t) for t in (0.5, *arrays, traced)
        )
        return expected, found

    expected, found = all_at_once(0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    recall = jax.jit(partial(losses.recall_at_k, ks=[1, 2], k_temperatures=[1.0, 2.0]))
    assert recall(X, LABELS) >= 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: losses.nt_xent(X, LABELS, temperature=0),
            "nt_xent: temperature=0: must be greater than 0",
        ),
        (
            lambda: losses.triplet(X, LABELS, mining="hardest", key=KEY),
            "triplet: mining='hardest': must be 'random'",
        ),
        (
            lambda: losses.triplet(X, LABELS),
            "key=None: mining='semi_hard' draws at random; give key=",
        ),
        (lambda: losses.triplet(X, LABELS, key=0), r"key=0: give a random key, jax\.random\.key"),
        (
            lambda: losses.triplet(X, LABELS, distance="euclidean", mining="hard"),
            "distance='euclidean': give a func",
        ),
        (lambda: losses.contrastive(X, LABELS, reduce="sum"), "reduce='sum': must be 'mean', or"),
        (
            lambda: losses.recall_at_k(X, LABELS, ks=(1, 2)),
            r"k_temperatures=.*: give one for each of ks=\(1, 2\)",
        ),
    ],
)
def test_messages(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_given_triplets_have_no_unknown_choices_either() -> None:
    x, d, beta = map(jnp.float32, (X, D, BETA))

    def mined(mining_of: Any) -> Any:
        return mining.mine(mining_of, None, d, POSITIVE, NEGATIVE, dim=5)

    def loss(divisor: Any) -> jax.Array:
        return pair_losses.margin_loss(x, LABELS, mined("hard"), beta, divisor=divisor)

    assert jax.eval_shape(lambda: loss("active")).shape == ()
    with pytest.raises(AssertionError, match="pair"):
        loss("pair")
    with pytest.raises(AssertionError, match="hardest"):
        mined("hardest")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.nan, "hold nan in row 3"),
        (np.inf, "hold inf in row 3"),
        (-1.0, r"hold -1.0 in row 3; give .* >= 0"),
    ],
)
def test_weights_that_are_no_weights(name: str, weight: float, message: str) -> None:
    weights = np.ones(ROWS)
    weights[3] = weight
    for call in (called(name), jax.jit(lambda x, **_: called(name)(x, weights=weights))):
        with pytest.raises(DataError, match=message):
            call(X, weights=weights)


@pytest.mark.parametrize("name", LOSSES)
def test_weights_of_other_shapes_and_types(name: str) -> None:
    for weights, message in (
        (np.ones(5), r"weights: have shape \[5\]; give \[12\]"),
        (list("a" * 12), "hold <U1"),
    ):
        with pytest.raises(DataError, match=message):
            called(name)(weights=weights)
    with pytest.raises(DataError, match=r"weights: have shape \[12, 12\]"):
        jax.jit(lambda w: called(name)(weights=w))(np.eye(12))


@pytest.mark.parametrize("name", LOSSES)
def test_without_any_weight_a_loss_is_zero(name: str) -> None:
    options = {"spread": 0.0} if name == "soft_triple" else {}
    call = jax.value_and_grad(lambda x: called(name, **options)(x, weights=np.zeros(ROWS)))
    value, gradient = jax.jit(call)(X)
    assert float(value) == 0
    assert not np.asarray(gradient).any()


def test_values_that_are_not_known_before_they_are_used_are_not_hidden() -> None:
    """A traced weight that is NaN gives NaN; a negative one counts as it is."""
    for name in ("nt_xent", "proxy_anchor", "margin"):
        assert np.isnan(
            jax.jit(lambda w, name=name: called(name)(weights=w))(np.full(ROWS, np.nan))
        )
    weights = np.linspace(-1, 3, ROWS)
    logits = X @ np.ones((5, 6))
    each = np.log(np.exp(logits).sum(1)) - logits[:, 0]
    found = jax.jit(lambda w: losses.softmax(X, LABELS, np.ones((5, 6)), np.zeros(6), weights=w))(
        weights
    )
    np.testing.assert_allclose(found, np.average(each, weights=weights), rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_arrays_of_numpy_and_lists_are_arguments_of_traced_calls(name: str) -> None:
    weights = np.arange(ROWS)
    kinds = (
        (LABELS, weights),
        (LABELS.astype(np.uint8), weights.astype(np.float16)),
        (LABELS.tolist(), weights.tolist()),
    )

    @jax.jit
    def both(
        x: jax.Array, labels: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        return called(name)(x, labels, weights=weights), [
            called(name)(x, y, weights=w) for y, w in kinds
        ]

    expected, found = both(X, LABELS, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_large_labels(name: str) -> None:
    """Equal in the lower 32 bits: classes of their own, or no class of a table."""
    numbers = LABELS.astype(np.int64)
    kinds = numbers * 2**32, numbers.astype(np.uint64) * 2**61, -numbers * 2**40
    if TABLES[name]:
        for large in kinds:
            with pytest.raises(
                DataError, match=r"labels: hold -?\d+; give the number of each label's class in"
            ):
                called(name)(X, large)
    else:
        expected, *found = jax.jit(
            lambda x: [called(name)(x, large) for large in (LABELS, *kinds)]
        )(X)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_unsigned_indices_of_no_class() -> None:
    labels = jnp.asarray(np.where(LABELS == 0, 2**32 - 1, LABELS), jnp.uint32)
    found = jax.jit(
        lambda: (
            losses.margin(X, labels, BETA, mining="hard"),
            losses.arcface(X, labels, PROXIES),
        )
    )()
    assert np.isnan(found).all()


@pytest.mark.parametrize("name", LOSSES)
def test_labels_that_are_no_classes(name: str) -> None:
    for labels in (
        LABELS.astype(float),
        LABELS > 1,
        np.array([object()] * ROWS),
        LABELS.astype(complex),
    ):
        with pytest.raises(
            DataError, match=r"labels: hold .*; give one class per row, an integer or text"
        ):
            called(name)(labels=labels)
    with pytest.raises(DataError, match="labels: hold float32"):
        jax.jit(called(name))(X, LABELS.astype(np.float32))


def test_tables_that_do_not_fit_each_other() -> None:
    for kernel, bias in ((np.ones((5, 6)), np.ones(4)), (np.ones((5, 4)), np.ones(6))):
        with pytest.raises(
            DataError, match=r"(kernel|bias): has shape \[.*\] for embeddings \[12, 5\]; give \["
        ):
            losses.softmax(X, LABELS, kernel, bias)
    with pytest.raises(DataError, match="proxies: hold <U1; give real numbers"):
        losses.arcface(X, LABELS, np.full((6, 5), "a"))
    with pytest.raises(DataError, match="embeddings: hold complex"):
        losses.sup_con(X + 1j, LABELS)
    beta = partial(losses.margin, X, LABELS, mining="hard")
    by_name, by_place, *fitting = jax.jit(
        lambda: (
            beta(beta=BETA),
            beta(BETA),
            losses.subcenter_arcface(X, LABELS, CENTERS),
            losses.arcface(X, LABELS, PROXIES),
        )
    )()
    assert float(by_name) == float(by_place)
    assert np.all(np.array(fitting) > 0)


@pytest.mark.parametrize(
    ("positive", "message"),
    [
        (np.where(POSITIVE, -1.0, 0.0), r"positive: hold -1.0 in row \d+"),
        (np.where(POSITIVE, np.nan, 0.0), r"positive: hold nan in row \d+"),
        (POSITIVE | NEGATIVE, r"positive, negative: pair \(\d+, \d+\) is in both"),
    ],
)
def test_weights_of_pairs_that_are_no_weights(positive: np.ndarray, message: str) -> None:
    for given in (
        {"positive": positive, "negative": NEGATIVE},
        {"candidates": losses.Candidates(X, positive, NEGATIVE)},
    ):
        with pytest.raises(DataError, match=message):
            losses.sup_con(X, LABELS, **given)  # type: ignore[arg-type]
    candidates = losses.Candidates(X, POSITIVE.astype(float), NEGATIVE)
    with pytest.raises(DataError, match="positive: holds float64; smooth_ap takes no weights"):
        losses.smooth_ap(X, LABELS, candidates=candidates)


def test_weights_of_pairs_are_declared_by_the_annotation() -> None:
    @signature.loss
    def attraction(
        embeddings: Any, labels: Any, *, candidates: pairwise.WeightedCandidates = None
    ) -> Any:
        assert candidates is not None
        return jnp.sum(candidates.positive)

    given: Any = attraction
    weights = np.where(POSITIVE, 0.5, 0.0)
    found = given(X, positive=weights, negative=NEGATIVE)
    np.testing.assert_allclose(found, 0.5 * POSITIVE.sum(), rtol=1e-6)
