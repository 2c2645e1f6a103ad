"""The checks of `dml-jax check`: a plug-in by itself, then its training on the digits."""

import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
from jax.test_util import check_grads

from dml_jax import run as main
from dml_jax.backbones import functional, resnet
from dml_jax.config import Config, Data, Evaluation, Group, Train, modules, resolve
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.data import arrays, formats, relations
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError, UserError, require
from dml_jax.evaluation import metric_table, user_distances
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.export import programs
from dml_jax.identity import Versions
from dml_jax.inference import graphs
from dml_jax.lab import plugins, runner
from dml_jax.lab.plan import Trial
from dml_jax.losses import signature
from dml_jax.methods import baseline
from dml_jax.methods.contract import TrainingSet, input_shape, zeros

ROWS, CLASSES, WIDTH = 16, 4, 6  # size of the batches on which functions are examined
STEP = 1e-7  # length of a finite difference: short, because hinges of losses are kinks
LARGEST = 1e-4  # largest relative error of a gradient
DESCENT = 100  # steps in which an optimizer must get lower
GRADIENT = "check custom_vjp, stop_gradient and integer casts"
LABELS = np.arange(ROWS, dtype=np.int32) % CLASSES
COUNT = "divide by jnp.maximum(count, 1), and mask before dividing"
ROOT = "square roots of distances: numerics.root"
Degenerate = tuple[Callable[[Any], Any], np.ndarray, str]  # change of the rows, labels, remedy
DEGENERATE: dict[str, Degenerate] = {
    "duplicates": (lambda x: jnp.repeat(x[::2], 2, axis=0), LABELS, ROOT),
    "single class": (lambda x: x, np.zeros_like(LABELS), COUNT),
    "every image its own class": (lambda x: x, np.arange(ROWS), "a row without positives adds 0"),
    "zero rows": (jnp.zeros_like, LABELS, "normalise with numerics.unit"),
}
SMALL_NETWORK = resnet.Config(block="basic", depths=(1,), widths=(8,), stem="small")
STEPS, CHECKPOINT = 30, 3  # length of the training, steps between its checkpoints
FEW = 3  # first steps whose losses must agree on 1 and 8 devices
ON_DEVICES, LOADED = 1e-3, 1e-4  # largest relative errors of losses and of embeddings


@dataclass
class Outcome:
    """One check."""

    check: str
    result: Literal["passed", "failed", "skipped"] = "passed"
    text: str = ""  # what failed or was found, or why it was skipped
    where: str = ""  # file and line of the plug-in where it failed
    remedy: str = ""


class Plugin:
    """A user's module or function, and the outcomes of its checks."""

    def __init__(self, path: str, kind: str, overrides: Mapping[str, str]) -> None:
        self.path, self.kind, self.overrides = path, kind, overrides
        modules.import_code(overrides)
        self.module: Any = sys.modules.get(path)  # None for a function
        self.function: Any = None if self.module else modules.function("MODULE", path)
        self.outcomes: list[Outcome] = []

    @contextlib.contextmanager
    def check(self, name: str, remedy: str) -> Iterator[Outcome]:
        """Context of one check, which an exception fails; `remedy` is how to fix it."""
        outcome = Outcome(name)
        self.outcomes.append(outcome)
        try:
            yield outcome
        except Exception as error:
            file = str((self.module or sys.modules[self.path.rpartition(".")[0]]).__file__)
            frames = traceback.extract_tb(error.__traceback__)
            lines = [f":{frame.lineno}" for frame in frames if frame.filename == file]
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            outcome.result, outcome.text = "failed", kind + " ".join(str(error).split())[:300]
            outcome.where, outcome.remedy = file + "".join(lines[-1:]), remedy


def check(
    path: str, kind: str, overrides: Mapping[str, str], directory: Path | None
) -> list[Outcome]:
    """All checks of a plug-in; with a directory, also of its training, if the others pass."""
    plugin = Plugin(path, kind, overrides)
    EXAMINATIONS[kind](plugin)
    if directory is None:
        return plugin.outcomes
    if any(outcome.result == "failed" for outcome in plugin.outcomes):
        plugin.outcomes.append(Outcome("training", "skipped", "until the checks above pass"))
    else:
        check_training(plugin, directory)
    return plugin.outcomes


def compare_gradient(value: Callable[[Any], jax.Array], x: Any) -> None:
    """Raises ConfigError unless a directional derivative, in float64, equals finite differences."""
    tolerance = {"atol": 1e-3 * LARGEST, "rtol": LARGEST, "eps": STEP}
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), x)
        try:
            check_grads(jax.jit(value), (exact,), 1, ["rev"], **tolerance)
        except AssertionError as error:
            message = "the derivative differs from finite differences in float64"
            raise ConfigError(message) from error


def require_finite(value: Callable[[Any], jax.Array], x: Any, what: str) -> None:
    """Raises ConfigError unless value and gradient are finite."""
    found, gradient = jax.jit(jax.value_and_grad(value))(x)
    require(found.shape == (), f"{what}: returns shape {list(found.shape)}; a loss is a scalar")
    require(np.isfinite(found), f"{what}: the value is {found}")
    leaves = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(gradient)]
    require(all(map(all_finite, leaves)), f"{what}: the gradient is not finite")


def all_finite(x: np.ndarray | jax.Array) -> bool:
    return bool(np.isfinite(x).all())


def check_degenerate(plugin: Plugin, value: Callable[[Any, np.ndarray], jax.Array], x: Any) -> None:
    """Checks the value and gradient of a loss of rows (a tree of arrays) and labels."""
    for name, (change, labels, remedy) in DEGENERATE.items():
        with plugin.check(name, remedy):
            require_finite(lambda rows: value(rows, labels), jax.tree.map(change, x), name)  # noqa: B023 used at once


def check_name(plugin: Plugin) -> None:
    with plugin.check("name", "the first field of Config is its import path"):
        name = plugin.module.Config.name
        wanted = f"it must be the import path {plugin.path!r}"
        require(name == plugin.path, f"Config.name is {name!r}; {wanted}")


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, WIDTH)).astype(np.float32)


def of_loss(plugin: Plugin) -> None:
    options = signature.options(plugin.function)()
    criterion = baseline.Criterion({plugin.path: options}, ROWS, WIDTH)
    params, _ = functional.init(criterion, jax.random.key(0), functional.struct(1, WIDTH))
    whole = {"params": params, "rows": jnp.asarray(rows())}

    def value(x: Any, labels: Any = LABELS) -> Any:
        given = x["rows"], jnp.asarray(labels), jax.random.key(1)
        found: Any = criterion.apply({"params": x["params"]}, *given, method="values")
        return found[plugin.path]

    with plugin.check("scalar, finite", "return a scalar; see the losses in docs/api"):
        require_finite(value, whole, "a batch")
    with plugin.check("gradient", GRADIENT):
        compare_gradient(value, whole)
    exact = rows().astype(np.float64)
    if not baseline.takes(plugin.function, "key"):  # random losses depend on the order
        remedy = "compare labels, not positions"
        with plugin.check("order of the rows", remedy), jax.enable_x64(True):
            orders = np.arange(ROWS), np.random.default_rng(0).permutation(ROWS)
            one, other = (
                float(jax.jit(value)({"params": params, "rows": exact[order]}, LABELS[order]))
                for order in orders
            )
            same = np.isclose(one, other, rtol=1e-9)
            require(same, f"the value changes from {one} to {other} with the order")
    check_degenerate(plugin, lambda x, labels: value({"params": params, "rows": x}, labels), rows())
    with plugin.check("bfloat16", "numerics.at_least_float32(embeddings)"):
        small = whole | {"rows": jnp.asarray(rows(), jnp.bfloat16)}
        require_finite(value, small, "bfloat16 embeddings")
        kind = value(small).dtype
        message = f"bfloat16 embeddings: the value is {kind}; compute in float32"
        require(kind == jnp.float32, message)
    if importlib.util.find_spec("pytorch_metric_learning") and not params:
        context = plugin.check("pytorch-metric-learning", "compare the defaults of both")
        with context as outcome, jax.enable_x64(True):
            found = float(value({"params": {}, "rows": exact}))
            outcome.text = compare_pml(plugin.path, exact, found)


def compare_pml(path: str, x: np.ndarray, value: float) -> str:
    """Compares a loss of `LABELS` with that of the same name in pytorch-metric-learning."""
    import torch
    from pytorch_metric_learning import losses as theirs

    wanted = path.rpartition(".")[2].replace("_", "").lower() + "loss"
    named = next((name for name in dir(theirs) if name.lower() == wanted), None)
    if named is None:
        return f"it has no {wanted}"
    other = float(getattr(theirs, named)()(torch.tensor(x), torch.tensor(LABELS)))
    message = f"{value:.9g}, and {named} with its defaults gives {other:.9g}"
    require(np.isclose(value, other, rtol=1e-6), message)
    return f"equals {named} to {abs(value - other) / max(abs(other), 1e-30):.0e}"


def of_distance(plugin: Plugin) -> None:
    distance = plugin.function
    a, b = rows(), rows(1)
    with plugin.check("pairs of rows", "use a[:, None] and b[None]; no statistics of a block"):
        ((_, found),) = user_distances.blocks(distance, a, b)
        for i in (0, 3):
            ((_, alone),) = user_distances.blocks(distance, a[i : i + 1], b[i : i + 1])
            same = np.isclose(found[i, i], alone[0, 0], rtol=1e-4, atol=1e-6)
            require(same, f"the distance of rows {i} depends on the other rows of the blocks")
    with plugin.check("finite, symmetric", "raise small values before logarithms and divisions"):
        for x in (a, np.repeat(a[::2], 2, axis=0), np.zeros_like(a)):
            list(user_distances.blocks(distance, x, x))
    with plugin.check("gradient", "square roots have an infinite slope at 0: numerics.root"):
        compare_gradient(lambda x: jnp.sum(distance(x["a"], x["b"])), {"a": a, "b": b})
        for name, (change, _, _) in DEGENERATE.items():
            require_finite(lambda x: jnp.sum(distance(x, x)), change(a), name)


def splits(plugin: Plugin) -> dict[str, Split]:
    """The splits of the data set that the options name; of the digits by default."""
    name, path = (plugin.overrides.get(f"data.{key}", "") for key in ("name", "path"))
    return formats.load(Data(name=name or "digits", path=path))


def of_relation(plugin: Plugin) -> None:
    names = [str(name) for name in splits(plugin)["train"].classes]
    remedy = "return one weight for each pair, of names of the data set (--config.data.name)"
    with plugin.check("weights", remedy) as outcome:
        weights = relations.between_classes(plugin.path, names)
        assert weights is not None
        some = np.array(names[1:3]), np.array(names[:3])
        same = np.array_equal(np.float32(plugin.function(*some)), weights[1:3, :3], equal_nan=True)
        require(same, "the weight of two names depends on the other names")
        related = (weights > 0).sum() - (np.diag(weights) > 0).sum()
        outcome.text = f"{related:,} of {weights.size - len(names):,} pairs of classes are related"


def of_sampler(plugin: Plugin) -> None:
    labels = np.repeat(np.arange(CLASSES), ROWS)

    def batches(seed: int, steps: Iterable[int]) -> list[np.ndarray]:
        sampler = plugin.function(labels, 8, images_per_class=2, seed=seed)
        return [np.asarray(sampler.batch(step)) for step in steps]

    with plugin.check("batches", "return int [batch_size], indices into labels"):
        for step, batch in enumerate(batches(0, range(20))):
            shape = list(batch.shape)
            require(shape == [8], f"step {step}: gives shape {shape} for batches of 8")
            inside = batch.dtype.kind == "i" and 0 <= batch.min() <= batch.max() < len(labels)
            what = f"{batch.dtype} from {batch.min()} to {batch.max()}"
            require(inside, f"step {step}: holds {what}; give rows 0..{len(labels) - 1}")
    remedy = "np.random.default_rng((seed, step)), no state"
    with plugin.check("a function of seed and step", remedy):
        found, backwards = batches(0, range(10)), batches(0, reversed(range(10)))[::-1]
        require(np.array_equal(found, backwards), "a batch depends on the batches drawn before it")
        same = np.array_equal(found, batches(1, range(10)))
        require(not same, "the batches do not depend on the seed")


def of_optimizer(plugin: Plugin) -> None:
    remedy = "return the direction before the learning rate, with the sign of the gradient"
    with plugin.check("descends", remedy):
        start: Any = {"kernel": jnp.asarray(rows()), "bias": jnp.ones(3)}
        first = optax.tree.norm(start, squared=True)
        # A usual rate, and the rate 1 of optimizers that find their own and begin far below it.
        last = min(_sum_of_squares_after(plugin.function(0.0), rate, start) for rate in (0.01, 1.0))
        change = f"from {first:.4g} to {last:.4g}"
        require(last < first, f"{DESCENT} steps against it take a sum of squares {change}")
    with plugin.check("weight decay", "optax.add_decayed_weights(weight_decay)"):
        made, params = plugin.function(0.1), {"kernel": jnp.ones((2, 2))}
        updates, _ = made.update(jax.tree.map(jnp.zeros_like, params), made.init(params), params)
        pulled = bool(jnp.all(updates["kernel"] > 0))
        require(pulled, "weight_decay does not pull parameters to zero")


def _sum_of_squares_after(direction: Any, rate: float, params: Any) -> float:
    """The squared norm after DESCENT steps against it; infinite if they diverge."""
    made = optax.chain(direction, optax.scale(-rate))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        params, state = carry
        gradient = jax.tree.map(lambda leaf: 2 * leaf, params)
        updates, state = made.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, made.init(params)), length=DESCENT)
    return float(jnp.nan_to_num(optax.tree.norm(params, squared=True), nan=jnp.inf))


def of_metric(plugin: Plugin) -> None:
    with plugin.check("finite numbers", "rows without a relevant row are left out before"):
        for hits in ([True], [True, False, False], [False, False, True], [True] * 4):
            found = plugin.function(np.array(hits))
            number = np.ndim(found) == 0 and np.isfinite(found)
            require(number, f"is {found!r} for hits {hits}; give a finite number")


def of_refinement(plugin: Plugin) -> None:
    unit = unit_rows(rows())
    remedy = "return the refined queries [Q, D]; gallery is None if they search each other"
    with plugin.check("queries", remedy):
        for gallery in (None, unit[::-1].copy()):
            given = unit.copy()
            found = np.asarray(plugin.function(given, gallery))
            right = found.ndim == 2 and len(found) == ROWS
            require(right, f"gives shape {list(found.shape)} for {ROWS} queries")
            same = gallery is None or found.shape[1] == WIDTH
            require(same, "queries and gallery must have equally many columns")
            require(all_finite(found), "the queries are not finite")
            require(np.array_equal(given, unit), "it changes the array that it is given")


def of_backbone(plugin: Plugin) -> None:
    check_name(plugin)
    remedy = "see Backbone in docs/api/extending.md; one for other arrays than images needs "
    with plugin.check("features", f"{remedy}--config.data.name, a data set of them") as outcome:
        row = np.asarray(splits(plugin)["train"].read(0, None))
        shape = (16, 16) if arrays.is_image(arrays.shape_of(row)) else arrays.shape_of(row)
        outcome.text = f"of {arrays.described(shape)}"
        made = plugin.module.build(plugin.module.Config())
        params, stats = made.init(jax.random.key(0), input_shape(zeros(1, shape)))
        inputs = made.preprocess(jnp.asarray(arrays.random(shape, 4)))
        for train in (False, True):
            found, after = made.apply(params, stats, inputs, train=train, key=jax.random.key(1))
            given, wanted = list(found.shape), f"[B, h, w, {made.channels}]"
            right = found.ndim == 4 and given[::3] == [4, made.channels]
            require(right, f"train={train}: features have shape {given}; give {wanted}")
            require(all_finite(found), f"train={train}: features are not finite")
            same = bool(jax.tree.structure(after) == jax.tree.structure(stats))  # type: ignore[operator]
            require(same, f"train={train}: returns other statistics than init")
        first, _ = made.apply(params, stats, inputs[:2], train=False)
        whole, _ = made.apply(params, stats, inputs, train=False)
        close = np.allclose(first, whole[:2], rtol=1e-4, atol=1e-5)
        require(close, "train=False: the features of a row depend on the other rows")


def of_method(plugin: Plugin) -> None:
    check_name(plugin)
    with plugin.check("contract", "see Method in docs/api/extending.md") as outcome:
        module, backbone = plugin.module, resnet.build(SMALL_NETWORK)
        made = module.build(module.Config(), backbone, TrainingSet(ROWS, ROWS, np.arange(ROWS)))
        images = arrays.random((8, 8), made.hooks.views * ROWS)
        given: Any = {"images": images.reshape(made.hooks.views, ROWS, 8, 8, 3)}
        given |= {"labels": LABELS, "index": np.arange(ROWS, dtype=np.int32)}
        batch = zeros(ROWS, (8, 8), made.hooks.views)._replace(**given)
        params, model_state = made.init(jax.random.key(0), batch)
        for name, tree in (("params", params), ("model_state", model_state)):
            require("backbone" in tree, f'init: {name} has no "backbone"')
        same = set(made.groups) == set(module.GROUPS)
        require(same, f"groups are {made.groups}, GROUPS of the module {module.GROUPS}")
        paths = jax.tree_util.tree_leaves_with_path(params)
        groups = {made.group(tuple(part.key for part in path)) for path, _ in paths}
        unknown = sorted(groups - set(made.groups))
        require(not unknown, f"group: gives {unknown}, which groups does not have")
        rows = made.embed(params, model_state, batch.images[0])
        right = rows.ndim == 2 and len(rows) == ROWS
        require(right, f"embed: gives shape {list(rows.shape)}; give [B, D]")
        alone = made.embed(params, model_state, batch.images[0][:3])
        same = np.allclose(alone, rows[:3], rtol=1e-3, atol=1e-4)
        require(same, "embed: depends on the other images of the batch")
        key = jax.random.key(2)
        encoded = made.encode(params, model_state, batch.images, train=True, key=key)[0]
    if outcome.result == "failed":
        return

    def loss(encoded: Any, labels: Any = LABELS) -> Any:
        labelled = batch._replace(labels=jnp.asarray(labels))
        step, key = jnp.zeros((), jnp.int32), jax.random.key(1)
        return made.loss(params, model_state, encoded, labelled, step, key)[0]

    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(encoded)):
        plugin.outcomes.append(Outcome("gradient", "skipped", "what it encodes holds integers"))
        return
    with plugin.check("gradient", GRADIENT) as outcome:
        compare_gradient(loss, encoded)
    if "finite differences" in outcome.text:
        program = str(jax.make_jaxpr(loss)(encoded))
        if used := [name for name in ("stop_gradient", "custom_vjp") if name in program]:
            text = f"{outcome.text}; right if the {' and '.join(used)} of its loss mean this"
            plugin.outcomes[-1] = Outcome("gradient", "skipped", text)
    check_degenerate(plugin, loss, encoded)


def of_data(plugin: Plugin) -> None:
    with plugin.check("splits", "see Split in docs/api/extending.md") as outcome:
        found = formats.load(Data(name=plugin.path, path=plugin.overrides.get("data.path", "")))
        for name in ("train", "test"):
            require(name in found, f"load: has no split {name!r}")
            split = found[name]
            count = len(split.labels)
            require(len(split.ids) == count, f"{name}: {len(split.ids)} ids for {count} labels")
            classes = len(split.classes)
            known = np.array_equal(np.unique(split.labels), np.arange(classes))
            require(known, f"{name}: labels must be 0..{classes - 1}, each class with images")
            one, again = (np.asarray(split.read(0, None)) for _ in range(2))
            arrays.shape_of(one)
            require(np.array_equal(one, again), f"{name}: read(0, None) differs between two calls")
        outcome.text = ", ".join(f"{len(split.labels):,} {name}" for name, split in found.items())


EXAMINATIONS: dict[str, Callable[[Plugin], None]] = {
    "loss": of_loss,
    "relation": of_relation,
    "distance": of_distance,
    "sampler": of_sampler,
    "optimizer": of_optimizer,
    "metric": of_metric,
    "refine": of_refinement,
    "method": of_method,
    "backbone": of_backbone,
    "data": of_data,
}


def configuration(plugin: Plugin) -> Config:
    loss = plugin.path if plugin.kind == "loss" else "contrastive"
    method: Any = baseline.make_config(loss, embedding_dim=8)
    groups: tuple[str, ...] = baseline.GROUPS
    if plugin.kind == "method":
        method, groups = plugin.module.Config(), plugin.module.GROUPS
    backbone: Any = plugin.module.Config() if plugin.kind == "backbone" else SMALL_NETWORK
    if name := plugin.overrides.get("backbone.name"):
        backbone = modules.plugin_module("backbone", name).Config()
    length: Any = {"steps": STEPS, "log_every": 1, "checkpoint_every": CHECKPOINT}
    config = Config(
        "check",
        Data(name="digits", batch_size=32, images_per_class=4, threads=1),
        backbone,
        method,
        Train({name: Group(1e-3) for name in groups}, optimizer="sgd", **length),
        evaluation=Evaluation(cluster=False, ks=(1, 2)),
    )
    values = asdict(config)
    overrides: dict[str, Any] = dict(plugin.overrides)
    if plugin.kind not in ("loss", "method", "backbone"):  # their options are in `config` already
        key = plugins.KEYS[plugin.kind]
        overrides = {key: [plugin.path] if key in plugins.LISTS else plugin.path} | overrides
    for key, value in overrides.items():
        config_files.apply_override(values, key, value)
    return resolve(values)


def cpu(devices: int) -> runner.Slot:
    """An environment with emulated devices, in which the same modules can be imported as here."""
    package = str(Path(__file__).parents[2])
    folders = [os.getcwd(), package, os.environ.get("PYTHONPATH", "")]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(folders)}
    return runner.Slot(frozenset(), variables)


def run(directory: Path, name: str, config: Config, devices: int = 1) -> Path:
    """Trains to the end in another process: the work directory; ConfigError with the reason."""
    trial = Trial(name, name, 0, directory / name, config)
    done = runner.execute(directory, trial, cpu(devices), threading.Event())
    require(done, runner.failure(directory, name))
    return trial.directory


def kill(directory: Path, name: str, config: Config) -> int:
    """Starts a training, kills it after its first checkpoint and returns this checkpoint's step."""
    trial = Trial(name, name, 0, directory / name, config)
    log = runner.file_of(directory, name, "log")
    steps: list[int] = []
    with cpu(1).start(runner.command(directory, trial), log) as process:
        while not steps and process.poll() is None:
            time.sleep(0.02)
            names = [path.name for path in trial.directory.glob("checkpoints/latest/*")]
            steps = [int(name) for name in names if name.isdecimal()]
        process.kill()
    require(steps and process.returncode < 0, "ends before it writes a checkpoint")
    return max(steps)


def embeddings(run: Path) -> np.ndarray:
    return np.asarray(np.load(run / "embeddings/test/embeddings.npy"))


def losses(run: Path) -> np.ndarray:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return np.array([line["loss"] for line in lines if "loss" in line])


def check_training(plugin: Plugin, directory: Path) -> None:
    """The checks of a training on the digits."""
    directory = directory / plugin.path
    (directory / "trials").mkdir(parents=True, exist_ok=True)
    config = configuration(plugin)
    remedy = "keep the runs with --workdir; their logs are in trials/"
    with plugin.check("train", remedy) as outcome:
        whole = run(directory, "whole", config)
        found = losses(whole)
        require(np.isfinite(found).all(), f"the loss is {found[-1]} after {len(found)} steps")
        outcome.text = f"loss {found[0]:.4g} to {found[-1]:.4g} in {len(found)} steps"
    if outcome.result == "failed":
        plugin.outcomes.append(Outcome("everything after training", "skipped", "until it trains"))
        return
    remedy = "keep state in params, model_state or the step only"
    with plugin.check("kill and resume", remedy) as outcome:
        step = kill(directory, "killed", config)
        same = np.array_equal(embeddings(whole), embeddings(run(directory, "killed", config)))
        require(same, f"killed after step {step} and resumed, it ends with other embeddings")
        outcome.text = f"killed after step {step}: the same bits"
    results = json.loads((whole / "results.json").read_text())
    with plugin.check("evaluate", "embed must depend on parameters and image only") as outcome:
        again = main.evaluate(config, whole, "reported", Console(active=False))
        retrieval = [key for key in results if "@" in key]
        wrong = [
            key for key in retrieval if not np.isclose(results[key], again[key], equal_nan=True)
        ]
        require(not wrong, f"evaluated again, {', '.join(wrong)} differ")
        shown = [f"Recall@1 {results['recall@1']:.1%}"]
        for key in results:
            if key.startswith(metric_table.USER) and not key.endswith("_stderr"):
                shown.append(f"{key.removeprefix(metric_table.USER)} {results[key]:.4g}")
        outcome.text = ", ".join(shown)
    with plugin.check("refine", "return finite queries [Q, D]") as outcome:
        if not results.get("refined"):
            outcome.result, outcome.text = "skipped", "it has no test-time refinement"
        for name, metrics in results.get("refined", {}).items():
            require("problem" not in metrics, f"{name}: {metrics.get('problem')}")
            outcome.text = f"Recall@1 after {name} {metrics['recall@1']:.1%}"
    with plugin.check("load", "embed must depend on parameters and image only") as outcome:
        model: Any = graphs.load(whole, "reported", None, trust_code=True, versions=Versions())
        split = formats.load(model.config.data)["test"]
        rows = model.embed([split.read(i, None) for i in range(10)])
        close = np.allclose(rows, embeddings(whole)[:10], rtol=LOADED, atol=LOADED)
        require(close, "a loaded model gives other embeddings than the run")
        distance = model.distance_of_probe()
        outcome.text = f"{rows.shape[1]} dimensions; the row of the probe differs by {distance:.0e}"
    with plugin.check("export", "embed must be traceable: no NumPy on arrays, no Python on values"):
        (batch,) = jax.export.symbolic_shape("batch")
        one = arrays.blank(model.shape)
        images = jax.ShapeDtypeStruct((batch, *one.shape), one.dtype)
        jax.export.export(jax.jit(programs.function_of(model.trained)))(images)
    remedy = "compare rows of the whole batch, draw random numbers by the key"
    with plugin.check("8 devices", remedy) as outcome:
        one, other = found[:FEW], losses(run(directory, "eight", config, devices=8))[:FEW]
        error = float(np.max(np.abs(one - other) / np.maximum(np.abs(one), 1e-6)))
        difference = f"the loss of the first {FEW} steps differs by {error:.1e}"
        require(error < ON_DEVICES, f"on 8 devices, {difference}")
        outcome.text = f"losses differ by {error:.0e}"
