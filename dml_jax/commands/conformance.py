"""The checks of `dml-jax check` of a plug-in by itself; those of its training are in `conformance_training`."""

import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dml_jax.backbones import functional, resnet
from dml_jax.config import Data, modules
from dml_jax.data import formats
from dml_jax.evaluation import own_distances
from dml_jax.losses import signature
from dml_jax.methods import baseline
from dml_jax.methods.contract import TrainingSet, zeros

ROWS, CLASSES, WIDTH = 16, 4, 6  # of the batches by which functions are examined
DIRECTIONS = 4  # of finite differences
STEP = 1e-7  # length of a finite difference: short, as hinges of losses are kinks
LARGEST = 1e-4  # largest relative error of a gradient
GRADIENT = "check custom_vjp, stop_gradient and integer casts"


class Outcome(NamedTuple):
    """One check."""

    check: str
    problem: str = ""  # empty if it passed
    where: str = ""  # file and line of the plug-in
    remedy: str = ""
    note: str = ""
    skipped: str = ""  # why


class Failed(Exception):
    """A check that does not hold."""


class Skipped(Exception):
    """A check that does not apply."""


def require(holds: Any, problem: str) -> None:
    """Raises `Failed` unless a condition holds."""
    if not holds:
        raise Failed(problem)


Check = tuple[str, str, Callable[[], str | None]]  # name, how to fix it, and the check, which returns a note


def check(path: str, kind: str, overrides: Mapping[str, str], directory: Path | None) -> list[Outcome]:
    """All checks of a plug-in; checks of its training, with its runs in the directory, follow if the others passed."""
    file = _file(path)
    examined = [_outcome(*one, file) for one in EXAMINATIONS[kind](path, overrides)]
    if directory is None:
        return examined
    if any(outcome.problem for outcome in examined):
        return [*examined, Outcome("training", skipped="until the checks above pass")]
    from dml_jax.commands import conformance_training

    outcomes = []
    for one in conformance_training.checks(path, kind, overrides, directory):
        outcomes.append(_outcome(*one, file))
        if outcomes[-1].problem and outcomes[-1].check == "train":
            return [*examined, *outcomes, Outcome("everything after training", skipped="until it trains")]
    return examined + outcomes


def _outcome(name: str, remedy: str, body: Callable[[], str | None], file: str) -> Outcome:
    try:
        return Outcome(name, note=body() or "")
    except Skipped as reason:
        return Outcome(name, skipped=str(reason))
    except Failed as problem:
        return Outcome(name, str(problem), file, remedy)
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        where = f"{file}:{frames[-1].lineno}" if frames else file
        return Outcome(name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", where, remedy)


def _file(path: str) -> str:
    module = sys.modules.get(path) or sys.modules[path.rpartition(".")[0]]
    return str(module.__file__)


def _function(path: str) -> Callable[..., Any]:
    return modules.function("MODULE", path)


# Gradients.


def compare_gradient(value: Callable[[Any], jax.Array], x: Any) -> None:
    """Raises `Failed` unless derivatives along random directions equal finite differences, in float64.

    A kink between the two points may spoil one direction.
    """
    with jax.enable_x64(True):
        x = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), x)
        run = jax.jit(jax.value_and_grad(value))
        _, gradient = run(x)
        errors = []
        for seed in range(DIRECTIONS):
            random = np.random.default_rng(seed)
            along = jax.tree.map(lambda leaf, random=random: random.normal(size=leaf.shape), x)
            moved = [jax.tree.map(lambda a, b, s=s: a + s * STEP * b, x, along) for s in (1, -1)]
            difference = float(run(moved[0])[0] - run(moved[1])[0]) / (2 * STEP)
            products = jax.tree.map(lambda g, b: float(np.sum(np.asarray(g) * b)), gradient, along)
            derivative = float(sum(jax.tree.leaves(products)))
            errors.append(abs(derivative - difference) / max(abs(difference), abs(derivative), 1e-3))
    require(
        sum(not error <= LARGEST for error in errors) <= 1,
        f"the derivative differs from finite differences by {max(errors):.1e} of its value, in float64",
    )


def require_finite(value: Callable[[Any], jax.Array], x: Any, what: str) -> None:
    """Raises `Failed` unless value and gradient are finite."""
    found, gradient = jax.jit(jax.value_and_grad(value))(x)
    require(found.shape == (), f"{what}: returns shape {list(found.shape)}; a loss is a scalar")
    require(np.isfinite(found), f"{what}: the value is {found}")
    finite = all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(gradient))
    require(finite, f"{what}: the gradient is not finite")


def rows(seed: int = 0) -> np.ndarray:
    """Random embeddings."""
    return np.random.default_rng(seed).normal(size=(ROWS, WIDTH)).astype(np.float32)


LABELS = np.arange(ROWS, dtype=np.int32) % CLASSES
DEGENERATE: dict[str, tuple[Callable[[Any], Any], np.ndarray, str]] = {  # what becomes of rows, labels, remedy
    "duplicates": (lambda x: jnp.repeat(x[::2], 2, axis=0), LABELS, "square roots of distances: numerics.root"),
    "single class": (lambda x: x, np.zeros_like(LABELS), "divide by jnp.maximum(count, 1), and mask before dividing"),
    "every image its own class": (lambda x: x, np.arange(ROWS), "a row without positives adds 0"),
    "zero rows": (jnp.zeros_like, LABELS, "normalise with numerics.unit"),
}


def degenerate_batches(value: Callable[[Any, np.ndarray], jax.Array], x: Callable[[], Any]) -> Iterator[Check]:
    """Checks of the value and gradient of a loss of rows (a tree of arrays) and labels."""
    for name, (change, labels, remedy) in DEGENERATE.items():

        def finite(name: str = name, change: Any = change, labels: np.ndarray = labels) -> None:
            require_finite(lambda rows: value(rows, labels), jax.tree.map(change, x()), name)

        yield name, remedy, finite


# Plug-ins by themselves.


def of_loss(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    options = signature.options(_function(path))()
    criterion = baseline.Criterion({path: options}, ROWS, WIDTH, np.ones(ROWS, int))
    params, _ = functional.init(criterion, jax.random.key(0), functional.struct(1, WIDTH))

    def value(x: Any, labels: Any = LABELS) -> jax.Array:
        given = x["rows"], jnp.asarray(labels), jax.random.key(1)
        found: Any = criterion.apply({"params": x["params"]}, *given, method="values")
        value: jax.Array = found[path]
        return value

    def start(x: np.ndarray) -> dict[str, Any]:
        return {"params": params, "rows": jnp.asarray(x)}

    def bfloat16() -> None:
        x = start(rows()) | {"rows": jnp.asarray(rows(), jnp.bfloat16)}
        require_finite(value, x, "bfloat16 embeddings")
        kind = value(x).dtype
        require(kind == jnp.float32, f"bfloat16 embeddings: the value is {kind}; compute in float32")

    def order() -> None:
        shuffled = np.random.default_rng(0).permutation(ROWS)
        x = rows().astype(np.float64)
        with jax.enable_x64(True):
            one, other = (float(jax.jit(value)(start(x[i]), LABELS[i])) for i in (np.arange(ROWS), shuffled))
        require(np.isclose(one, other, rtol=1e-9), f"the value changes from {one} to {other} with the order")

    whole = functools.partial(require_finite, value, start(rows()), "a batch")
    yield "scalar, finite", "return a scalar; see the losses in docs/api", whole
    yield "gradient", GRADIENT, functools.partial(compare_gradient, value, start(rows()))
    if not baseline.takes(_function(path), "key"):  # which draws at random
        yield "order of the rows", "compare labels, not positions", order
    yield from degenerate_batches(lambda x, labels: value({"params": params, "rows": x}, labels), lambda: rows())
    yield "bfloat16", "numerics.at_least_float32(embeddings)", bfloat16
    if importlib.util.find_spec("pytorch_metric_learning") and not params:
        yield "pytorch-metric-learning", "compare the defaults of both", lambda: _as_pml(path, value, start(rows()))


def _as_pml(path: str, value: Callable[..., jax.Array], x: dict[str, Any]) -> str:
    """Compares with the loss of the same name, with the defaults of both."""
    import torch
    from pytorch_metric_learning import losses as theirs

    wanted = path.rpartition(".")[2].replace("_", "").lower() + "loss"
    named = next((name for name in dir(theirs) if name.lower() == wanted), None)
    if named is None:
        return f"it has no {wanted}"
    with jax.enable_x64(True):
        mine = float(value({"params": {}, "rows": np.asarray(x["rows"], np.float64)}))
    other = float(getattr(theirs, named)()(torch.tensor(np.asarray(x["rows"], np.float64)), torch.tensor(LABELS)))
    require(np.isclose(mine, other, rtol=1e-6), f"{mine:.9g}, and {named} with its defaults gives {other:.9g}")
    return f"equals {named} to {abs(mine - other) / max(abs(other), 1e-30):.0e}"


def of_distance(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    distance = _function(path)

    def single(i: int, j: int) -> float:
        return float(np.asarray(distance(jnp.asarray(rows()[i : i + 1]), jnp.asarray(rows(1)[j : j + 1])))[0, 0])

    def pairs() -> None:
        found = np.asarray(distance(jnp.asarray(rows()), jnp.asarray(rows(1)[:5])))
        require(found.shape == (ROWS, 5), f"returns {list(found.shape)} for {ROWS} and 5 rows; give [N, M]")
        wrong = [(i, j) for i, j in ((0, 0), (3, 4)) if not np.isclose(found[i, j], single(i, j), rtol=1e-4, atol=1e-6)]
        require(not wrong, f"the distance of rows {wrong} depends on the other rows of the blocks")

    def finite() -> None:
        for x in (rows(), np.repeat(rows()[::2], 2, axis=0), np.zeros_like(rows())):
            list(own_distances.blocks(distance, x, x))

    def gradient() -> None:
        value = lambda x: jnp.sum(distance(x, x))  # noqa: E731
        compare_gradient(lambda x: jnp.sum(distance(x["a"], x["b"])), {"a": rows(), "b": rows(1)})
        for name, (change, _, _) in DEGENERATE.items():
            require_finite(value, change(jnp.asarray(rows())), name)

    yield "pairs of rows", "use a[:, None] and b[None]; no statistics of a block", pairs
    yield "finite, symmetric", "raise small values before logarithms and divisions", finite
    yield "gradient", "square roots have an infinite slope at 0: numerics.root", gradient


def of_sampler(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    labels = np.repeat(np.arange(CLASSES), ROWS)

    def made(seed: int = 0) -> Any:
        return _function(path)(labels, 8, images_per_class=2, seed=seed)

    def batches() -> None:
        for step in range(20):
            batch = np.asarray(made().batch(step))
            require(batch.shape == (8,), f"step {step}: gives shape {list(batch.shape)} for batches of 8")
            inside = batch.dtype.kind == "i" and 0 <= batch.min() <= batch.max() < len(labels)
            what = f"{batch.dtype} from {batch.min()} to {batch.max()}"
            require(inside, f"step {step}: holds {what}; give rows 0..{len(labels) - 1}")

    def pure() -> None:
        sampler = made()
        forwards = [np.asarray(sampler.batch(step)) for step in range(10)]
        backwards = [np.asarray(made().batch(step)) for step in reversed(range(10))][::-1]
        require(np.array_equal(forwards, backwards), "a batch depends on the batches drawn before it")
        others = [np.asarray(made(1).batch(step)) for step in range(10)]
        require(not np.array_equal(forwards, others), "the batches do not depend on the seed")

    def epochs() -> None:
        sampler = made()
        for epoch in range(3):
            first, after = sampler.first_step(epoch), sampler.first_step(epoch + 1)
            require(after > first, f"epoch {epoch} has {after - first} steps")
            of = [sampler.epoch(first), sampler.epoch(after - 1)]
            require(of == [epoch, epoch], f"first and last step of epoch {epoch} belong to epochs {of}")

    yield "batches", "return int [batch_size], indices into labels", batches
    yield "a function of seed and step", "np.random.default_rng((seed, step)), no state", pure
    yield "epochs", "samplers.from_batches(batch, steps)", epochs


def of_optimizer(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    def descends() -> None:
        made = optax.chain(_function(path)(0.0), optax.scale(-1e-2))
        params = {"kernel": jnp.asarray(rows()), "bias": jnp.ones(3)}
        value = lambda p: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))  # noqa: E731
        state, first = made.init(params), float(value(params))

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            updates, state = made.update(jax.grad(value)(params), state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(10):
            params, state = step(params, state)
        last = float(value(params))
        require(np.isfinite(last), "the parameters are not finite after ten steps")
        require(
            last < first, f"a sum of squares rises from {first:.4g} to {last:.4g} in ten steps against the direction"
        )

    def decay() -> None:
        made, params = _function(path)(0.1), {"kernel": jnp.ones((2, 2))}
        updates, _ = made.update(jax.tree.map(jnp.zeros_like, params), made.init(params), params)
        require(bool(jnp.all(updates["kernel"] > 0)), "weight_decay does not pull parameters to zero")

    yield "descends", "return the direction before the learning rate, with the sign of the gradient", descends
    yield "weight decay", "optax.add_decayed_weights(weight_decay)", decay


def of_metric(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    def numbers() -> None:
        for hits in ([True], [True, False, False], [False, False, True], [True] * 4):
            found = _function(path)(np.array(hits))
            require(np.ndim(found) == 0 and np.isfinite(found), f"is {found!r} for hits {hits}; give a finite number")

    yield "finite numbers", "rows without a relevant row are left out before", numbers


def of_step(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    unit = rows() / np.linalg.norm(rows(), axis=1, keepdims=True)

    def shapes() -> None:
        for gallery in (None, unit[::-1].copy()):
            given = unit.copy()
            found = np.asarray(_function(path)(given, gallery))
            require(found.ndim == 2 and len(found) == ROWS, f"gives shape {list(found.shape)} for {ROWS} queries")
            require(gallery is None or found.shape[1] == WIDTH, "queries and gallery must have equally many columns")
            require(np.isfinite(found).all(), "the queries are not finite")
            require(np.array_equal(given, unit), "it changes the array that it is given")

    yield "queries", "return the refined queries [Q, D]; gallery is None if they search each other", shapes


def of_backbone(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    def built() -> Any:
        module = sys.modules[path]
        made = module.build(module.Config())
        return made, *made.init(jax.random.key(0), (16, 16))

    def features() -> None:
        made, params, stats = built()
        images = made.preprocess(jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)), jnp.uint8))
        for train in (False, True):
            found, after = made.apply(params, stats, images, train=train, key=jax.random.key(1))
            require(
                found.ndim == 4 and found.shape[::3] == (4, made.channels),
                f"train={train}: features have shape {list(found.shape)}; give [B, h, w, {made.channels}]",
            )
            require(bool(jnp.isfinite(found).all()), f"train={train}: features are not finite")
            same = bool(jax.tree.structure(after) == jax.tree.structure(stats))  # type: ignore[operator]
            require(same, f"train={train}: returns other statistics than init")
        first, _ = made.apply(params, stats, images[:2], train=False)
        whole, _ = made.apply(params, stats, images, train=False)
        close = np.allclose(first, whole[:2], rtol=1e-4, atol=1e-5)
        require(close, "train=False: the features of an image depend on the other images")

    yield "name", "the first field of Config is its import path", functools.partial(_named, path)
    yield "features", "see Backbone in docs/api/extending.md", features


def _named(path: str) -> None:
    name = sys.modules[path].Config.name
    require(name == path, f"Config.name is {name!r}; it must be the import path {path!r}")


def small_network() -> resnet.Config:
    """The network in which methods and other parts are checked."""
    return resnet.Config(block="basic", depths=(1,), widths=(8,), stem="small")


def of_method(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    module = sys.modules[path]
    data = TrainingSet(ROWS, ROWS, np.arange(ROWS))
    images = np.random.default_rng(0).integers(0, 256, (8, ROWS, 8, 8, 3)).astype(np.uint8)

    @functools.cache
    def built() -> Any:
        made = module.build(module.Config(), resnet.build(small_network()), data)
        batch = zeros(ROWS, (8, 8), made.hooks.views)
        own: Any = {"images": images[: made.hooks.views], "labels": LABELS, "index": np.arange(ROWS, dtype=np.int32)}
        batch = batch._replace(**own)
        return made, batch, *made.init(jax.random.key(0), batch)

    def contract() -> None:
        made, batch, params, model_state = built()
        for name, tree in (("params", params), ("model_state", model_state)):
            require("backbone" in tree, f'init: {name} has no "backbone"')
        require(
            set(made.groups) == set(module.GROUPS), f"groups are {made.groups}, GROUPS of the module {module.GROUPS}"
        )
        paths = jax.tree_util.tree_leaves_with_path(params)
        of = {made.group(tuple(part.key for part in p)) for p, _ in paths}
        require(of <= set(made.groups), f"group: gives {sorted(of - set(made.groups))}, which groups does not have")
        rows = made.embed(params, model_state, batch.images[0])
        require(rows.ndim == 2 and len(rows) == ROWS, f"embed: gives shape {list(rows.shape)}; give [B, D]")
        alone = made.embed(params, model_state, batch.images[0][:3])
        require(np.allclose(alone, rows[:3], rtol=1e-3, atol=1e-4), "embed: depends on the other images of the batch")

    def loss(encoded: Any, labels: Any = LABELS) -> jax.Array:
        made, batch, params, model_state = built()
        whole = batch._replace(labels=jnp.asarray(labels))
        step, new_key = jnp.zeros((), jnp.int32), jax.random.key(1)
        value: jax.Array = made.loss(params, model_state, encoded, whole, step, new_key)[0]
        return value

    def encoded() -> Any:
        made, batch, params, model_state = built()
        found = made.encode(params, model_state, batch.images, train=True, key=jax.random.key(2))[0]
        if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(found)):
            raise Skipped("what it encodes holds integers")
        return found

    def gradient() -> None:
        x = encoded()
        try:
            compare_gradient(loss, x)
        except Failed as problem:
            program = str(jax.make_jaxpr(loss)(x))
            used = [name for name in ("stop_gradient", "custom_vjp") if name in program]
            if not used:
                raise
            raise Skipped(f"{problem}; right if the {' and '.join(used)} of its loss mean this") from problem

    yield "name", "the first field of Config is its import path", functools.partial(_named, path)
    yield "contract", "see Method in docs/api/extending.md", contract
    yield "gradient", GRADIENT, gradient
    yield from degenerate_batches(loss, encoded)


def of_data(path: str, overrides: Mapping[str, str]) -> Iterator[Check]:
    options = {key.removeprefix("data."): value for key, value in overrides.items() if key in ("data.path",)}

    def splits() -> str:
        found = formats.load(Data(name=path, **options))  # type: ignore[arg-type]
        for name in ("train", "test"):
            require(name in found, f"load: has no split {name!r}")
            split = found[name]
            count = len(split.labels)
            require(len(split.ids) == count, f"{name}: {len(split.ids)} ids for {count} labels")
            known = np.array_equal(np.unique(split.labels), np.arange(len(split.classes)))
            require(known, f"{name}: labels must be 0..{len(split.classes) - 1}, each class with images")
            one, again = (np.asarray(split.read(0, None)) for _ in range(2))
            shape = one.dtype == np.uint8 and one.ndim == 3 and one.shape[2] == 3
            require(shape, f"{name}: an image is {one.dtype} {list(one.shape)}; give uint8 [H, W, 3]")
            require(np.array_equal(one, again), f"{name}: read(0, None) differs between two calls")
        return ", ".join(f"{len(split.labels):,} {name}" for name, split in found.items())

    yield "splits", "see Split in docs/api/extending.md", splits


EXAMINATIONS: dict[str, Callable[[str, Mapping[str, str]], Iterator[Check]]] = {
    "loss": of_loss, "distance": of_distance, "sampler": of_sampler, "optimizer": of_optimizer, "metric": of_metric,
    "step": of_step, "method": of_method, "backbone": of_backbone, "data": of_data,
}  # fmt: skip
