"""The checks of `dml-jax check`: rules for the results of a plug-in, then a training run.

Each function yields rules and whether they hold (None: unknown); an error of the plug-in ends it.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from dml_jax.backbones import functional, resnet
from dml_jax.config import Config, Data, Evaluation, Group, Train, fields, modules, resolve
from dml_jax.config import files as config_files
from dml_jax.config.modules import takes
from dml_jax.data import arrays, formats, relations, samplers
from dml_jax.errors import UserError, require
from dml_jax.evaluation import metrics, user_distances
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.files import write_json
from dml_jax.lab import plugins
from dml_jax.losses import signature
from dml_jax.losses.pairwise import Candidates, distances
from dml_jax.methods import baseline
from dml_jax.methods.contract import TrainingSet, input_shape, zeros

Rules = Iterator[tuple[str, Any]]
ROWS, MANY, CLASSES, WIDTH = 24, 150, 10, 6  # rows of small and of large batches; dimensions
LABELS, MORE = (np.arange(n, dtype=np.int32) % c for n, c in ((ROWS, 4), (MANY, CLASSES)))
SMALL_NETWORK = resnet.Config(block="basic", depths=(1,), widths=(8,), stem="small")
GRADIENT = "the gradient equals finite differences; see custom_vjp, stop_gradient, integer casts"
FINITE = "finite value and gradient for {}; see numerics.root, numerics.unit, jnp.maximum(count, 1)"
TWICE = "the same result when called twice: no Python state, random numbers only from arguments"
NAMED = "the first field of Config is the import path"


@dataclass
class Outcome:
    """A rule and its result ("passed", "failed" or "skipped"); an error and its location."""

    check: str
    result: str
    text: str = ""
    where: str = ""


class Plugin:
    """A user's module or function, with overrides from the command line."""

    def __init__(self, path: str, kind: str, overrides: Mapping[str, str]) -> None:
        self.path, self.kind, self.overrides = path, kind, overrides
        modules.import_code(overrides)
        self.module: Any = sys.modules.get(path)  # None for a function
        self.function: Any = None if self.module else modules.function("MODULE", path)
        self.file = str((self.module or sys.modules[path.rpartition(".")[0]]).__file__)

    def data(self) -> Any:
        """The splits of a data set: the plug-in itself, `data.name`, or the digits."""
        own = self.path if self.kind == "data" else self.overrides.get("data.name", "digits")
        return formats.load(Data(name=own, path=self.overrides.get("data.path", "")))


def check(
    path: str, kind: str, overrides: Mapping[str, str], directory: Path | None
) -> list[Outcome]:
    """Checks the rules for a plug-in; with a directory, and if they hold, those for training."""
    plugin, outcomes = Plugin(path, kind, overrides), dict[str, Outcome]()
    for rules in (
        globals()[f"{kind}_rules"](plugin),
        directory and training_rules(plugin, directory / path),
    ):
        if any(outcome.result == "failed" for outcome in outcomes.values()) or not rules:
            break
        try:
            for rule, holds in rules:
                result = "skipped" if holds is None else "passed" if holds else "failed"
                if rule not in outcomes or result == "failed":
                    outcomes[rule] = Outcome(rule, result, "", "" if holds else plugin.file)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [f":{frame.lineno}" for frame in frames if frame.filename == plugin.file]
            name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            text, where = " ".join(str(error).split())[:300], plugin.file + "".join(lines[-1:])
            outcomes["no error"] = Outcome("no error", "failed", name + text, where)
    return list(outcomes.values())


def rows(count: int = ROWS, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def close(first: Any, second: Any, rtol: float = 0.0) -> bool:
    return np.allclose(np.asarray(first), np.asarray(second), rtol, rtol, equal_nan=True)


def differentiates(value: Callable[[Any], jax.Array], x: Any) -> bool:
    """Whether 16 directional derivatives equal finite differences.

    Steps are short in float64, because of the kinks of hinges, and longer if a loss casts to
    float32. A `stop_gradient` may change the derivative but not its direction, as in circle loss.
    """
    with jax.enable_x64(True):
        flat, tree = ravel_pytree(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), x))
        function = jax.jit(lambda flat: value(tree(flat)))
        in_float64 = function(flat).dtype == jnp.float64
        step_size, tolerance = (1e-7, 1e-4) if in_float64 else (1e-2, 0.1)
        steps = step_size * np.random.default_rng(0).normal(size=(16, flat.size))
        derivatives = steps @ np.asarray(jax.grad(function)(flat))
        differences = np.array([float(function(flat + d) - function(flat - d)) / 2 for d in steps])
    largest = np.abs(differences).max() + 1e-3 * step_size
    equal = np.abs(derivatives - differences).max() <= tolerance * largest
    detached = not equal and "stop_gradient" in str(jax.make_jaxpr(value)(x))
    return bool(equal or (detached and np.corrcoef(derivatives, differences)[0, 1] > 0.9))


def finite_rules(value: Callable[[Any, Any], jax.Array], x: Any) -> Rules:
    """Rules for a loss of rows (a tree of arrays) and labels."""
    evaluate = jax.jit(jax.value_and_grad(value))
    duplicated = jax.tree.map(lambda x: jnp.repeat(x[::2], 2, axis=0), x)
    singletons = np.arange(ROWS)
    zero = jax.tree.map(jnp.zeros_like, x)
    for name, inputs, labels in (
        *(("a batch", x, LABELS), ("duplicates", duplicated, LABELS), ("zero rows", zero, LABELS)),
        *(("a single class", x, 0 * LABELS), ("a class for every row", x, singletons)),
    ):
        leaves = jax.tree.leaves(evaluate(inputs, jnp.asarray(labels, jnp.int32)))
        yield FINITE.format(name), all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)


def loss_rules(plugin: Plugin) -> Rules:
    kind = modules.options(plugin.function)
    options = fields.validate(kind, asdict(kind()), "default options")
    criterion = baseline.Criterion({plugin.path: options}, ROWS, WIDTH)
    params, _ = functional.init(criterion, jax.random.key(0), functional.struct(1, WIDTH))

    def value(x: Any, labels: Any, key: Any = None, others: Any = None, of: Any = None) -> Any:
        key = jax.random.key(1) if key is None else key
        arguments = {"params": x["params"]}, x["rows"], jnp.asarray(labels), key, others
        result: Any = (of or criterion).apply(*arguments, method="values")
        return result[plugin.path]

    def at(x: Any, labels: Any = MORE, **more: Any) -> float:
        return float(jax.jit(lambda x: value(x, labels, **more))(x))

    small, large = ({"params": params, "rows": jnp.asarray(rows(n))} for n in (ROWS, MANY))
    result = value(small, LABELS)
    yield "returns a scalar", np.shape(result) == () and result is not None
    yield TWICE, close(result, value(small, LABELS))
    yield from finite_rules(lambda x, labels: value({**small, "rows": x}, labels), small["rows"])
    yield GRADIENT, differentiates(lambda x: value(x, LABELS), small)
    result = value({**small, "rows": small["rows"].astype(jnp.bfloat16)}, LABELS)
    rule = "float32 for embeddings in bfloat16: numerics.at_least_float32(embeddings)"
    yield rule, result.dtype == jnp.float32 and jnp.isfinite(result)
    if not takes(plugin.function, "key"):  # random losses depend on the order of rows
        order = np.random.default_rng(1).permutation(MANY)
        first_value, permuted = at(large), at({**large, "rows": large["rows"][order]}, MORE[order])
        rule = "rows matter, their order does not: compare labels, not positions"
        yield rule, abs(first_value - permuted) <= 1e-4 * abs(first_value)
    yield "minimising it separates classes: check sign, labels", separates(value, large)
    for name, first, second in _argument_values(plugin.function, options, criterion):
        first_value, second_value = at(large, **first), at(large, **second)
        yield f"{name} has an effect", abs(first_value - second_value) > 1e-6 * abs(first_value)
    if takes(plugin.function, "weights"):
        arguments = {k: v for k, v in vars(options).items() if takes(plugin.function, k)} | params
        arguments |= {"key": jax.random.key(1)} if takes(plugin.function, "key") else {}
        anchors = np.linspace(1, 9, MANY, dtype=np.float32)
        first_value, second_value = (
            plugin.function(large["rows"], MORE, **arguments, weights=weights)
            for weights in (None, anchors)
        )
        yield "weights of anchors have an effect", not close(first_value, second_value, 1e-6)
    with jax.debug_key_reuse(True):  # raises an error
        yield "a key is used once", np.isfinite(jax.jit(value)(small, LABELS, jax.random.key(1)))


def _argument_values(loss: Any, options: Any, criterion: Any) -> Iterator[tuple[str, Any, Any]]:
    """(argument, value, different value) for each argument that a loss declares."""
    same = MORE[:, None] == np.arange(ROWS) % CLASSES
    one, two = ({"others": Candidates(jnp.asarray(rows(seed=n)), same, ~same)} for n in (1, 2))
    weights = np.random.default_rng(0).uniform(0.2, 1, same.shape).astype(np.float32)
    if takes(loss, "candidates"):
        yield "candidates", one, two
        yield "their relation", one, {"others": Candidates(one["others"][0], ~same, same)}
    if signature.takes_weights(loss):
        weighted = Candidates(one["others"][0], weights * same, weights * ~same)
        yield "weights of pairs", one, {"others": weighted}
    if takes(loss, "distance"):
        far = criterion.clone(distance=lambda a, b: 0.5 * distances(a, b) + 0.1)
        yield "distance", {}, {"of": far}
    if any(isinstance(option, str) for option in vars(options).values()):
        return  # a choice may not use the key or all options
    if takes(loss, "key"):
        yield "key", {}, {"key": jax.random.key(2)}
    for name, option in vars(options).items():
        if isinstance(option, int | float) and takes(loss, name):
            other = 0.9 * option or 0.1 if isinstance(option, float) else option + 1
            other = not option if isinstance(option, bool) else other
            changed = replace(options, **{name: other})
            yield (
                name,
                {},
                {"of": criterion.clone(options=dict.fromkeys(criterion.options, changed))},
            )


def separates(value: Callable[..., jax.Array], x: Any) -> bool:
    """Whether minimising a loss for 200 steps gives points a Recall@1 above 0.5."""
    optimizer = optax.adam(0.03)

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        updates, state = optimizer.update(jax.grad(value)(carry[0], MORE, key), carry[1])
        return (optax.apply_updates(carry[0], updates), state), None

    keys = jax.random.split(jax.random.key(0), 200)
    (x, _), _ = jax.jit(lambda x: jax.lax.scan(step, (x, optimizer.init(x)), keys))(x)
    results = [
        metrics.retrieval(np.nan_to_num(x["rows"]), MORE, ks=1, metric=m)
        for m in ("cosine", "euclidean")
    ]
    return bool(max(result["recall@1"] for result in results) > 0.5)


def distance_rules(plugin: Plugin) -> Rules:
    a, b, distance = rows(), rows(seed=1), plugin.function

    def matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return next(user_distances.blocks(distance, a, b))[1]  # an error unless finite, symmetric

    rule = "compares rows pairwise: a[:, None] and b[None], no statistics of a block"
    yield rule, close(matrix(a, b)[:2, :2], matrix(a[:2], b[:2]), 1e-4)
    yield TWICE, close(distance(a, b), distance(a, b))
    values, diagonal = matrix(a, a), np.diag(matrix(a, a))[:, None]
    nearest = np.all(diagonal <= values + 1e-3 * np.abs(values))
    yield "d(x, x) <= d(x, y): not a similarity", nearest
    yield "d(x, x) < d(x, y) for most: not constant", np.mean(diagonal < values) > 0.5
    yield GRADIENT, differentiates(lambda x: jnp.sum(distance(x["a"], x["b"])), {"a": a, "b": b})
    yield from finite_rules(lambda x, _: jnp.sum(distance(x, x)), a)


def relation_rules(plugin: Plugin) -> Rules:
    names = [str(name) for name in plugin.data()["train"].classes]
    weights: Any = relations.class_weights(plugin.path, names)
    subset = plugin.function(np.array(names[1:3]), np.array(names[:3]))
    yield f"independent of other names, and {TWICE}", close(subset, weights[1:3, :3], 1e-6)
    yield "each class is related to itself", np.all(np.diag(weights) > 0)
    related = np.sum(weights > 0) > len(names)
    yield "classes of the data (--config.data.name) are related to others", related


def sampler_rules(plugin: Plugin) -> Rules:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(CLASSES), ROWS))

    def batches(size: int = 8, seed: int = 0, order: int = 1, images: int = 2) -> list[np.ndarray]:
        options = Data(sampler=plugin.path, batch_size=size, images_per_class=images)
        sampler = samplers.build(options, labels, seed, np.ones((CLASSES, CLASSES)))
        steps = range(max(sampler.first_step(1), 2 * len(labels) // size))
        return [np.asarray(sampler.batch(step)) for step in steps[::order]][::order]

    for size in (12, 8):
        for batch in (drawn := batches(size)):
            valid = batch.shape == (size,) and batch.dtype.kind == "i"
            valid = valid and 0 <= batch.min() <= batch.max() < len(labels)
            description = f"{batch.dtype} {list(batch.shape)} in {batch.min()}..{batch.max()}"
            require(valid, f"batches are {description}; give int [{size}] in 0..{len(labels) - 1}")
    yield f"independent of earlier batches, and {TWICE}", close(drawn, batches(order=-1))
    yield "the seed has an effect", not close(drawn, batches(seed=1))
    yield "the step has an effect", not any(map(np.array_equal, drawn, drawn[1:]))
    if takes(plugin.function, "images_per_class"):
        with_four = batches(images=4)
        unchanged = len(with_four) == len(drawn) and close(drawn, with_four)
        yield "images_per_class has an effect", not unchanged
    mixed = [len(set(labels[batch])) > 1 for batch in drawn]
    yield "most batches have several classes", np.mean(mixed) > 0.5
    yield "an epoch contains all classes", len(set(labels[np.unique(drawn)])) == CLASSES
    yield "two epochs contain most images", 2 * len(np.unique(drawn)) > len(labels)


def optimizer_rules(plugin: Plugin) -> Rules:
    start, ratios = {"kernel": jnp.asarray(rows()), "bias": jnp.ones(3)}, [np.inf]
    for rate in (0.01, 1.0):  # a usual rate, and that of optimizers that set their own
        optimizer, x = optax.chain(plugin.function(0.0), optax.scale(-rate)), start
        state, update = optimizer.init(x), jax.jit(optimizer.update)
        for _ in range(100):
            updates, state = update(x, state, x)  # the gradient of half the sum of squares
            x = optax.apply_updates(x, updates)
        norms = ((jnp.linalg.norm(x[name]), jnp.linalg.norm(start[name])) for name in start)
        ratios.append(max(float(after / before) for after, before in norms))
    descends = np.nanmin(ratios) < 1  # each array
    yield "steps against the update descend: sign of the gradient, no learning rate", descends
    with_decay, ones = plugin.function(0.1), {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(3)}
    updates, _ = with_decay.update(jax.tree.map(jnp.zeros_like, ones), with_decay.init(ones), ones)
    yield "weight_decay shrinks weights: optax.add_decayed_weights", jnp.all(updates["kernel"] > 0)


def schedule_rules(plugin: Plugin) -> Rules:
    schedule, repeated = (jax.jit(jax.vmap(plugin.function(100))) for _ in range(2))
    factors = np.asarray(schedule(jnp.arange(200)))  # a longer run may continue
    valid = factors.shape == (200,) and np.isfinite(factors).all() and factors.min() >= 0
    yield "factors are finite scalars >= 0, also after the end", valid
    yield TWICE, close(factors, repeated(jnp.arange(200)))
    yield "some factors are above 0, none above 1000", 0 < factors[:100].max() <= 1000
    yield "the step has an effect", np.ptp(factors[:100]) > 0


def metric_rules(plugin: Plugin) -> Rules:
    values, misses = [], [False] * 199
    rankings = [([True], [1.0]), ([True, *misses], [1.0, *misses]), ([*misses, True],) * 2]
    rankings += [([True] * 4, [1.0, 2.0, 3.0, 4.0]), ([True] * 4, [4.0, 3.0, 2.0, 1.0])]
    graded = takes(plugin.function, "grades")
    for hits, grades in rankings:
        arguments = {"grades": np.array(grades, float)} if graded else {}
        value, repeated = (plugin.function(np.array(hits), **arguments) for _ in range(2))
        require(np.ndim(value) == 0 and np.isfinite(value), f"is {value!r} for hits {hits}")
        yield TWICE, value == repeated
        values.append(float(value))
    yield "hits at the first and at the last rank have different values", values[1] != values[2]
    if graded:
        yield "grades have an effect", values[3] != values[4]


def refine_rules(plugin: Plugin) -> Rules:
    labels = np.arange(ROWS) // 4
    points = unit_rows(rows()[labels] + 0.1 * rows(seed=1))
    for gallery, classes in ((None, labels), (points[::-1].copy(), labels[::-1])):
        queries = points.copy()
        refined, repeated = (np.asarray(plugin.function(queries, gallery)) for _ in range(2))
        valid = refined.shape[0] == ROWS and (gallery is None or refined.shape == points.shape)
        require(valid, f"gives {list(refined.shape)} for queries {list(points.shape)}")
        yield "returns finite queries, its arrays unchanged", np.isfinite(refined).all()
        yield TWICE, close(refined, repeated) and close(queries, points)
        cosines = unit_rows(refined) @ unit_rows(refined if gallery is None else gallery).T
        cosines -= 3 * np.eye(ROWS) if gallery is None else 0
        valid = np.mean(classes[cosines.argmax(axis=1)] == labels) > 0.9
        yield "queries of separated classes keep their order and find their class", valid


def backbone_rules(plugin: Plugin) -> Rules:
    network, split = plugin.module.build(plugin.module.Config()), plugin.data()["train"]
    yield NAMED, plugin.module.Config.name == plugin.path
    shape = arrays.shape_of(np.asarray(split.read(0, None)))  # for other data: --config.data.name
    shape = (16, 16) if arrays.is_image(shape) else shape
    params, stats = network.init(jax.random.key(0), input_shape(zeros(1, shape)))
    inputs, key = network.preprocess(jnp.asarray(arrays.random(shape, 4))), jax.random.key(1)
    for train in (True, False):
        features, new_stats = network.apply(params, stats, inputs, train=train, key=key)
        valid = features.ndim == 4 and (len(features), features.shape[3]) == (4, network.channels)
        yield "features are finite [B, h, w, channels]", valid and jnp.isfinite(features).all()
        structure: Any = jax.tree.structure(stats)
        yield "statistics have the structure of init", jax.tree.structure(new_stats) == structure
    alone, _ = network.apply(params, stats, inputs[:2], train=False)
    yield "in evaluation, rows do not depend on each other", close(alone, features[:2], 1e-4)


def method_rules(plugin: Plugin) -> Rules:
    module, data, key = plugin.module, TrainingSet(ROWS, ROWS, np.arange(ROWS)), jax.random.key(1)
    yield NAMED, module.Config.name == plugin.path
    method = module.build(module.Config(), resnet.build(SMALL_NETWORK), data)
    images = arrays.random((8, 8), method.hooks.views * ROWS).reshape(-1, ROWS, 8, 8, 3)
    fields_: Any = {"images": images, "labels": LABELS, "index": np.arange(ROWS, dtype=np.int32)}
    batch = zeros(ROWS, (8, 8), method.hooks.views)._replace(**fields_)
    params, state = method.init(jax.random.key(0), batch)
    yield 'params and model_state have a "backbone"', "backbone" in params and "backbone" in state
    paths = jax.tree_util.tree_leaves_with_path(params)
    groups = {method.group(tuple(part.key for part in path)) for path, _ in paths}
    rule = "group returns one of groups, which equal GROUPS"
    yield rule, groups <= set(method.groups) == set(module.GROUPS)
    embeddings, subset = (method.embed(params, state, batch.images[0][:n]) for n in (ROWS, 3))
    yield "embed returns [B, D]", embeddings.ndim == 2 and len(embeddings) == ROWS
    yield "embed does not depend on the other images", close(subset, embeddings[:3], 1e-3)
    encoded = method.encode(params, state, batch.images, train=True, key=key)[0]
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(encoded)):
        return

    def loss(encoded: Any, labels: Any = LABELS) -> Any:
        labelled = batch._replace(labels=jnp.asarray(labels))
        return method.loss(params, state, encoded, labelled, jnp.zeros((), int), key)[0]

    program = str(jax.make_jaxpr(loss)(encoded))
    custom = any(name in program for name in ("stop_gradient", "custom_"))
    yield GRADIENT, differentiates(loss, encoded) or (None if custom else False)
    yield from finite_rules(loss, encoded)


def data_rules(plugin: Plugin) -> Rules:
    splits = plugin.data()
    for split in (splits["train"], splits["test"]):
        counts = np.bincount(split.labels, minlength=len(split.classes))
        yield (
            "labels are 0..C-1, every class has images",
            len(counts) == len(split.classes) <= sum(counts > 0),
        )
        yield "one id per label", len(split.ids) == len(split.labels)
        yield f"read(0, None) is {TWICE}", close(split.read(0, None), split.read(0, None))


def configuration(plugin: Plugin) -> Config:
    method: Any = baseline.make_config(
        plugin.path if plugin.kind == "loss" else "contrastive", embedding_dim=8
    )
    groups, backbone = baseline.GROUPS, SMALL_NETWORK
    if plugin.kind == "method":
        method, groups = plugin.module.Config(), plugin.module.GROUPS
    if name := plugin.path if plugin.kind == "backbone" else plugin.overrides.get("backbone.name"):
        backbone = modules.plugin_module("backbone", name).Config()
    data = Data(name="digits", batch_size=32, images_per_class=4, threads=1)
    length: Any = {"steps": 30, "log_every": 1, "checkpoint_every": 3, "optimizer": "sgd"}
    train = Train({name: Group(1e-3) for name in groups}, **length)
    evaluation = Evaluation(cluster=False, ks=(1, 2))
    config = Config("check", data, backbone, method, train, evaluation=evaluation)
    values, key = asdict(config), plugins.KEYS[plugin.kind]
    plugin_option = {} if plugin.kind in ("loss", "method", "backbone") else {key: plugin.path}
    overrides = {**plugin_option, **plugin.overrides}
    as_lists = {key: [value] for key, value in overrides.items() if key in plugins.LISTS}
    config_files.override(values, overrides | as_lists)
    return resolve(values)


def training_rules(plugin: Plugin, directory: Path) -> Rules:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", {"config": asdict(configuration(plugin))})
    folders = [os.getcwd(), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]

    def train(name: str, devices: int = 1, kill: bool = False) -> tuple[np.ndarray, Any]:
        """Trains in another process, which `kill` ends at a checkpoint: losses, embeddings."""
        run, log = directory / name, directory / f"{name}.log"
        options = (f"--config={directory}/config.json", f"--workdir={run}", "--quiet")
        command = [sys.executable, "-m", "dml_jax.main", *options, "--trust_code"]
        flags = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        )
        variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        variables["PYTHONPATH"] = os.pathsep.join(folders)
        with log.open("wb") as output:
            environment = {**os.environ, **variables}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        while process.poll() is None:
            time.sleep(0.02)
            if kill and any(run.glob("checkpoints/latest/[0-9]*")):
                process.kill()
        last_line = log.read_text(errors="replace").splitlines()[-1:]
        require(process.returncode == 0 or (kill and process.returncode < 0), f"{log}: {last_line}")
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        losses = np.array([line["loss"] for line in records if "loss" in line])
        return losses, None if kill else np.load(run / "embeddings/test/embeddings.npy")

    losses, embeddings = train("whole")
    yield f"trains: loss {losses[0]:.4g} to {losses[-1]:.4g}", np.isfinite(losses).all()
    train("killed", kill=True)
    rule = "killed and resumed, embeddings are the same: no state outside params, model_state"
    yield rule, np.array_equal(embeddings, train("killed")[1])
    rule = "two devices have the losses of one: use rows of the whole batch, draw from the key"
    yield rule, close(train("two", devices=2)[0][:3] / losses[:3], 1.0, 1e-3)
