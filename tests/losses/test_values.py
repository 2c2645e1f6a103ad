"""Values of every public loss against NumPy in float64 and pytorch-metric-learning 2.9; special
batches, options and their defaults."""

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.config import modules
from dml_jax.config.fields import parse_entries
from dml_jax.errors import ConfigError
from dml_jax.losses import classification, pair_losses, ranking, signature
from dml_jax.losses import similarity_losses as ms
from dml_jax.methods.baseline import LOSSES, takes
from tests.losses import references as ref
from tests.losses.references import CASES, LABELS, NEGATIVE, POSITIVE, X, by_default, compiled, manhattan

FOLDER = Path(__file__).parent


def test_every_public_loss_is_known() -> None:
    assert set(CASES) == set(losses.__all__) - {"Candidates", "per_anchor"}


@pytest.mark.parametrize("name", CASES)
def test_value(name: str, x64: None) -> None:
    value = compiled(name)(X, LABELS)
    assert value.shape == ()
    np.testing.assert_allclose(value, CASES[name][2](), rtol=1e-9)


@pytest.mark.parametrize("name", ref.OF_CLASSES)
def test_unknown_labels(name: str, x64: None) -> None:
    """Labels outside 0..5 would otherwise be taken for another class, or for none."""
    for label in (-1, 6, 9):
        assert np.isnan(compiled(name)(X, np.where(LABELS == 2, label, LABELS))), label
    unsigned = jnp.asarray(np.where(LABELS == 0, 2**32 - 1, LABELS), jnp.uint32)
    assert np.isnan(compiled(name)(X, unsigned))


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_nan_is_not_hidden(name: str, x64: None) -> None:
    """As a zero row, or as a value that does not count, it would let a training run on."""
    x = X.copy()
    x[2] = np.nan
    assert np.isnan(compiled(name)(x, LABELS))


def test_options_and_their_defaults() -> None:
    """Values of the papers or of their code; of the contrastive loss and lifted structure, those of
    common implementations."""
    defaults = json.loads((FOLDER / "defaults.json").read_text())
    found = {name: asdict(modules.options(loss)()) for name, loss in LOSSES.items()}
    assert json.loads(json.dumps(found)) == defaults


def test_every_option_has_its_rule() -> None:
    wrong = {"str": "no such word", "bool": 1, "int": -1, "float": -1.0, "tuple": (-1,)}
    for name, loss in LOSSES.items():
        for option, default in vars(modules.options(loss)()).items():
            learned = option in signature.learned_arrays(loss)
            if takes(loss, option) and not learned and (name, option) != ("multi_similarity", "base"):
                with pytest.raises(ConfigError, match=rf"^\w+: {option}(\[0\])?=.*: must be"):
                    by_default(name, **{option: wrong[type(default).__name__]})(X)


def test_options_of_other_types_and_traced_ones() -> None:
    arrays = (0.5, np.float32(0.5), np.array(0.5), jnp.float32(0.5))
    found = jax.jit(lambda traced: [losses.nt_xent(X, LABELS, temperature=t) for t in (*arrays, traced)])(0.5)
    np.testing.assert_allclose(found[1:], found[0], rtol=1e-5)
    recall = jax.jit(partial(losses.recall_at_k, ks=[1, 2], k_temperatures=[1.0, 2.0]))
    assert recall(X, LABELS) >= 0


# All losses have one decorator. What it does with arrays differs between these: with tables, with one and mining, on
# pairs, drawn.
@pytest.mark.parametrize("name", ["cross_entropy", "margin", "contrastive", "n_pair"])
def test_labels_and_weights_of_other_types(name: str) -> None:
    """Lists, narrow types, text (also in arrays of objects, as pandas has it), and integers that are equal in the lower
    32 bits; the latter two are classes of no table."""
    text, wide, weights = list("cccddfffpppm"), LABELS.astype(np.int64), np.arange(12)
    kinds = [(LABELS, weights), (LABELS.astype(np.uint8), weights.astype(np.float16))]
    kinds += [(LABELS.tolist(), weights.tolist())]
    if name in ("contrastive", "n_pair"):
        ends = np.array([2**31, -(2**31), 7, 8, 9])[LABELS]  # int32 holds the second, but not the first
        large = (wide * 2**32, wide.astype(np.uint64) * 2**61, -wide * 2**40, ends)
        kinds += [(labels, weights) for labels in (text, np.array(text, object), *large)]

    @jax.jit
    def every(x: jax.Array, labels: jax.Array, weights: jax.Array) -> list[jax.Array]:
        return [by_default(name)(x, y, weights=w) for y, w in ((labels, weights), *kinds)]

    expected, *found = every(X, LABELS, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


ALL = partial(losses.triplet, mining="all", squared=False)
# Values of pytorch-metric-learning for X and LABELS, in float64; `active` is its AvgNonZeroReducer.
PML: dict[str, tuple[Callable[..., Any], float]] = {
    "TripletMarginLoss()": (partial(ALL, margin=0.05, divisor="active"), 0.4750438253415208),
    "swap, MeanReducer()": (partial(ALL, swap=True), 0.6725504294766047),
    "swap, smooth": (partial(ALL, swap=True, smooth=True, divisor="active"), 1.0968505447403505),
    "TripletMarginMiner(all)": (partial(ALL, divisor="active"), 0.5737761840176601),
    "BatchHardMiner()": (partial(ALL, mining="hard", divisor="active"), 1.1367266141327654),
    "NTXentLoss(0.5, LpDistance(p=1))": (
        partial(losses.nt_xent, temperature=0.5, distance=manhattan),
        6.498662071665341,
    ),
    "SupConLoss(0.5, LpDistance(p=1))": (
        partial(losses.sup_con, temperature=0.5, distance=manhattan),
        6.805023416305278,
    ),
    "SupConLoss(0.2)": (partial(losses.sup_con, temperature=0.2, divisor="active"), 5.714176332601617),
    "ContrastiveLoss(MeanReducer())": (partial(losses.contrastive, divisor="all"), 1.5988288933365638),
    "ContrastiveLoss(LpDistance(p=1))": (
        partial(losses.contrastive, negative_margin=9.0, distance=manhattan),
        9.781438616611087,
    ),
    "CircleLoss()": (losses.circle, 203.54603882318315),
    "DoNothingReducer(), positive": (
        lambda x, y: jnp.sum(losses.contrastive(x, y, reduce=None), where=POSITIVE),
        31.34773827998758,
    ),
    "DoNothingReducer(), negative": (
        lambda x, y: jnp.sum(losses.contrastive(x, y, reduce=None), where=NEGATIVE),
        3.521501685764697,
    ),
}


def test_values_of_pytorch_metric_learning(x64: None) -> None:
    found = jax.jit(lambda x: {name: loss(x, LABELS) for name, (loss, _) in PML.items()})(X)
    for name, (_, expected) in PML.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-8, err_msg=name)


def test_subcenter_arcface_of_pytorch_metric_learning(x64: None) -> None:
    """Ten random batches, one class, equal rows, far centers."""
    function = jax.jit(
        jax.value_and_grad(lambda x, p, y, m, s: losses.subcenter_arcface(x, y, p, margin=m, scale=s), (0, 1))
    )
    with np.load(FOLDER / "subcenter_arcface_pml.npz") as z:
        for i in range(13):
            keys = ("x", "centers", "labels", "margin", "scale")
            value, gradients = function(*(jnp.asarray(z[f"{i}_{key}"]) for key in keys))
            np.testing.assert_allclose(value, z[f"{i}_value"], rtol=1e-10)
            for key, gradient in zip(("x", "centers"), gradients, strict=True):
                np.testing.assert_allclose(gradient, z[f"{i}_grad_{key}"], rtol=1e-7, atol=1e-9)


def test_angular_margin_is_monotonic_with_finite_gradients() -> None:
    cosines = np.repeat(np.linspace(-1, 1, 201, dtype=np.float32)[:, None], 2, axis=1)
    shifted = partial(classification.angular_margin, labels=jnp.zeros(201, jnp.int32), margin=0.5)
    assert np.all(np.diff(jax.jit(shifted)(cosines)[:, 0]) > 0)
    assert np.isfinite(jax.jit(jax.grad(lambda z: shifted(z).sum()))(cosines)).all()


@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_logits_of_narrow_types_are_not_narrow(dtype: str) -> None:
    """Products of them would overflow."""
    x, kernel = (np.arange(12).reshape(3, 4) * 20 % 251, np.arange(12).reshape(4, 3) * 30 % 247)
    logits, labels = (x @ kernel + np.arange(3)) / 1.0, np.array([2, 0, 1])
    logits -= logits.max(axis=1, keepdims=True)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(3), labels]
    found = losses.softmax(x.astype(dtype), labels, kernel.astype(dtype), np.arange(3.0))
    assert float(found) == pytest.approx(expected.mean(), rel=1e-6)


def test_contrastive_margins(x64: None) -> None:
    """Both margins; a pair whose hinge is as small as rounding errors of distances does not count."""
    x = X.copy()
    x[1] = x[0] * 1.5
    d = ref.between(x, x)
    for margin in (0.0, 0.5):
        hinges = np.maximum(d[POSITIVE] - margin, 0), np.maximum(0.8 - d[NEGATIVE], 0)
        expected = sum(values[values > pair_losses.ROUNDING].mean() for values in hinges)
        loss = partial(losses.contrastive, positive_margin=margin, negative_margin=0.8)
        np.testing.assert_allclose(jax.jit(loss)(x, LABELS), expected, rtol=1e-10)


def test_n_pair_with_the_length_itself(x64: None) -> None:
    ours = jax.jit(ref.call("n_pair", squared=False))(X)
    assert float(ours) == pytest.approx(ref.n_pair(power=1), rel=1e-9)


def test_large_exponents_do_not_overflow() -> None:
    similarity = np.array([[0, -1, 1]], np.float32)
    options: dict[str, Any] = {"alpha": 200.0, "beta": 200.0, "base": 0.0, "epsilon": 0.0}
    options |= {"divisor": "all", "mining": False, "copies": "drop"}
    loss = jax.jit(partial(ms.multi_similarity_terms, **options))
    terms, *_ = loss(similarity, similarity < 0, similarity > 0)
    np.testing.assert_allclose(terms.values, [2.0], rtol=1e-6)


def test_ranks(x64: None) -> None:
    """With candidates that are neither wanted nor counted; at a low temperature those of NumPy."""
    rng = np.random.default_rng(0)
    s, wanted, among = (rng.normal(size=(4, 40)), rng.random((4, 40)) < 0.4, rng.random((4, 40)) < 0.7)
    wanted[0] = True  # more than in any other row
    found = jax.jit(lambda s: ranking.soft_ranks(s, wanted, among, 1e-9))(s)
    above = (s[:, None] > s[:, :, None]) & among[:, None]
    np.testing.assert_allclose(found, np.where(wanted, 1.0 + above.sum(axis=2), 0))


def test_memory_of_ranks_grows_with_the_number_of_pairs() -> None:
    """No array of value and gradient has more than a few times N^2 elements; the naive form has N^3."""
    x, labels = np.zeros((256, 8), np.float32), np.repeat(np.arange(64), 4)
    program = jax.jit(jax.grad(lambda x: losses.smooth_ap(x, labels))).lower(x).compile()
    assert program.memory_analysis().temp_size_in_bytes < 256**3  # a quarter of N^3 float32


@pytest.mark.parametrize("name", LOSSES)
def test_the_help_describes_all_arguments(name: str) -> None:
    """Every loss has the decorator that checks its arguments, and the written signature."""
    parameters = inspect.signature(LOSSES[name]).parameters
    code = LOSSES[name].__wrapped__.__code__  # type: ignore[attr-defined]
    assert (*parameters,) == code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    text = inspect.getdoc(LOSSES[name]) or ""
    assert parameters.keys() <= parse_entries(text).keys()
    assert "Raises:" in text
