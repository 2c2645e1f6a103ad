"""DiVA: diverse visual feature aggregation for deep metric learning (Milbich, Roth et al., ECCV 2020).

One backbone f carries four embeddings of unit length, each a linear layer on f trained by a task of its own:

    discriminative   triplets (a, p, n) with y_a = y_p != y_n                       separates classes      Eq. 2
    shared           triplets across classes                                        what classes share     Eq. 3
    intra            triplets within one class                                      how a class varies     Eq. 4
    selfsimilarity   DaNCE: a second view k of the image against a queue of others   single images          Eq. 6

    DaNCE_i = -log exp(q_i k_i / tau) / (exp(q_i k_i / tau) + sum_j exp(w_ij q_i m_j / tau))
    c(a, b) = mean (a * psi_b(b))^2        psi maximises it; the embeddings, through reversed gradients R, minimise it
    L       = L_disc + sum_t alpha_t L_t - sum_(a,b) rho_ab c(R(a), R(b))                                   Eq. 7, 8

w_ij grows with the rarity 1/q(d_ij) of the distance to the queue entry m_j. Keys k and m come from a momentum copy of
the network. At test time the weighted embeddings are concatenated and brought to unit length.

`equations="authors"` is what produced the published numbers. "paper" is as printed: negatives only in the denominator,
w = min(lambda, 1/q) (Eq. 5, 6), c summed over dimensions and psi of any length (Eq. 7), plain distances in the triplet
loss (Eq. 1). Expected R@1 with ResNet-50, 4 x 128-d: CUB 69.2, Cars196 87.6, SOP 79.6.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from dml_jax.backbones.contract import Backbone
from dml_jax.closed import require
from dml_jax.errors import ConfigError, DataError
from dml_jax.losses import mining, ranking
from dml_jax.losses.mining import Triplets
from dml_jax.losses.norms import accurate, root, unit
from dml_jax.methods import _heads as heads
from dml_jax.methods.contract import Batch, Method, keep_state

Task = Literal["discriminative", "selfsimilarity", "shared", "intra"]
TASKS: tuple[Task, ...] = ("discriminative", "selfsimilarity", "shared", "intra")
GROUPS = ("model", "beta", "psi", "temperature")
Miner = Callable[[jax.Array, dict[str, jax.Array], Batch], dict[str, Triplets]]


@dataclass(frozen=True)
class Config:
    """Options of DiVA; the defaults are those of the authors' CUB run with ResNet-50."""

    name: str = "diva"
    tasks: tuple[Task, ...] = TASKS  # the ones trained
    embedding_dim: int = 128  # D of each task
    # Weights of the auxiliary losses; the discriminative one has 1.
    alpha_selfsimilarity: float = 0.3
    alpha_shared: float = 0.3
    alpha_intra: float = 0.3
    # Test-time weights in the order of TASKS; only their ratios matter.
    ensemble: tuple[float, float, float, float] = (0.75, 1.25, 1.25, 1.25)
    base: Literal["margin", "triplet"] = "margin"  # loss of the triplets
    margin: float = 0.2
    beta: float = 1.2  # where the margin loss's boundary starts; learnt for each class and task
    # Shared triplets: the discriminative task's after a permutation of the labels; or of three classes with a
    # distance-weighted negative ("standard"), and a distance-weighted positive too ("full").
    shared: Literal["random", "standard", "full"] = "random"
    lower_cutoff: float = 0.5  # smaller distances count as this one, in mining and in DaNCE
    upper_cutoff: float = 1.4  # queue entries farther than this get no weight in DaNCE
    # DaNCE's weights normalised over the queries, as in the code first published; over the queue, as corrected there
    # later ("fixed"); or all 1, plain NCE ("off").
    dance: Literal["original", "fixed", "off"] = "original"
    dance_lambda: float = 1.0  # cut-off of 1/q with equations="paper", which does not state it
    temperature: float = 0.01  # tau of DaNCE; 0.1 in the paper
    learn_temperature: bool = False
    queue_batches: int = 30  # size of the queue, in batches
    momentum: float = 0.9  # of the key network
    # Decorrelated pairs, source-target, where both are trained; psi maps the source to the target.
    directions: tuple[str, ...] = tuple(f"{task}-discriminative" for task in TASKS[1:])
    rho: tuple[float, ...] = (1500.0,)  # weight of each direction, or one for all
    psi_dim: int = 512  # hidden width of psi
    equations: Literal["authors", "paper"] = "authors"

    def __post_init__(self) -> None:
        def rule(holds: bool, field: str, text: str) -> None:
            require(holds, f"method.{field}", getattr(self, field), text)

        for field in (
            "embedding_dim",
            "beta",
            "lower_cutoff",
            "dance_lambda",
            "temperature",
            "queue_batches",
            "psi_dim",
        ):
            rule(getattr(self, field) > 0, field, "must be positive")
        for field in ("alpha_selfsimilarity", "alpha_shared", "alpha_intra", "margin"):
            rule(getattr(self, field) >= 0, field, "must not be negative")
        for field in ("ensemble", "rho"):
            rule(min(getattr(self, field), default=0) >= 0, field, "must hold no negative number")
        rule(len(self.tasks) > 0, "tasks", "must name at least one task")
        for field in ("tasks", "directions"):
            names = getattr(self, field)
            rule(len(set(names)) == len(names), field, "must name each only once")
        weighted = [task for task, weight in zip(TASKS, self.ensemble, strict=True) if weight > 0]
        rule(
            bool(set(weighted) & set(self.tasks)),
            "ensemble",
            f"must weigh one of method.tasks={self.tasks!r}",
        )
        rule(
            self.lower_cutoff < self.upper_cutoff,
            "lower_cutoff",
            f"must be below method.upper_cutoff={self.upper_cutoff}",
        )
        rule(0 <= self.momentum <= 1, "momentum", "must be in [0, 1]")
        pairs = {f"{a}-{b}" for a in TASKS for b in TASKS if a != b}
        rule(
            set(self.directions) <= pairs,
            "directions",
            "must be source-target, two different ones of " + ", ".join(TASKS),
        )
        rule(
            len(self.rho) in (1, len(self.directions)),
            "rho",
            "must hold one number, or one for each of method.directions",
        )


def trained(config: Config) -> tuple[str, ...]:
    """The tasks that are on, in the order of TASKS."""
    return tuple(task for task in TASKS if task in config.tasks)


def decorrelated(config: Config) -> dict[str, float]:
    """rho of every direction whose two tasks are on."""
    rho = config.rho * len(config.directions) if len(config.rho) == 1 else config.rho
    pairs = zip(config.directions, rho, strict=True)
    return {d: r for d, r in pairs if set(d.split("-")) <= set(config.tasks)}


def criterion_init(key: jax.Array, config: Config, num_classes: int) -> dict[str, Any]:
    """What the losses learn: "beta" [C] of each ranking task, "psi" of each direction, "temperature" []."""
    params: dict[str, Any] = {}
    if config.base == "margin":
        ranked = [task for task in trained(config) if task != "selfsimilarity"]
        params["beta"] = {task: config.beta * jnp.ones(num_classes) for task in ranked}
    params["psi"] = {}
    for direction in decorrelated(config):
        key, hidden, output = jax.random.split(key, 3)
        params["psi"][direction] = {
            "hidden": heads.linear_init(hidden, config.embedding_dim, config.psi_dim),
            "output": heads.linear_init(output, config.psi_dim, config.embedding_dim),
        }
    if config.learn_temperature and "selfsimilarity" in config.tasks:
        params["temperature"] = jnp.asarray(config.temperature, jnp.float32)
    return params


def mine(key: jax.Array, embeddings: dict[str, jax.Array], batch: Batch, config: Config) -> dict[str, Triplets]:
    """The triplets of every ranking task that is on, each drawn in the task's own embedding [B, D].

    The shared task's "random" triplets are those of the discriminative task after a permutation of the labels.
    """
    labels, lower = batch.labels, config.lower_cutoff
    key_discriminative, key_labels, key_shared, key_intra = jax.random.split(key, 4)
    triplets = {}
    if "discriminative" in config.tasks:
        triplets["discriminative"] = mining.distance_weighted(
            key_discriminative, embeddings["discriminative"], labels, lower=lower
        )
    if "shared" in config.tasks and config.shared == "random":
        permuted = jax.random.permutation(key_labels, labels)
        triplets["shared"] = mining.distance_weighted(key_shared, embeddings["shared"], permuted, lower=lower)
    elif "shared" in config.tasks:
        triplets["shared"] = mining.across_classes(
            key_shared, embeddings["shared"], labels, weigh_positives=config.shared == "full", lower=lower
        )
    if "intra" in config.tasks:
        triplets["intra"] = mining.within_class(key_intra, labels)
    return triplets


def dance_weights(similarities: jax.Array, dim: int, config: Config) -> jax.Array:
    """w [B, K] of the queue entries, from their cosines q_i m_j [B, K] in `dim` dimensions; no gradient.

    The normalisation is a softmax of log 1/q, cut entries keeping 1e-45 of the largest weight in the matrix
    ("original") or the row ("fixed"): where everything is cut, weights are equal. In logarithms nothing underflows.
    """
    squares = lax.stop_gradient(2 - 2 * similarities)
    if config.equations == "paper":
        density = mining.log_inverse_density(root(squares), dim)
        return jnp.exp(jnp.minimum(density, math.log(config.dance_lambda)))
    distances = jnp.sqrt(jnp.maximum(squares, config.lower_cutoff**2))
    density = mining.log_inverse_density(distances, dim)
    original = config.dance == "original"
    relative = density - jnp.max(density, axis=None if original else 1, keepdims=True)
    relative = jnp.where(distances > config.upper_cutoff, -jnp.inf, relative)
    return jax.nn.softmax(jnp.maximum(relative, math.log(1e-45)), axis=0 if original else 1)


def dance(
    queries: jax.Array, keys: jax.Array, queue: jax.Array, temperature: jax.Array | float, config: Config
) -> jax.Array:
    """Distance-adapted noise contrastive estimation of each sample (Eq. 6; Eq. 5 with dance="off") -> [B].

    Args:
      queries: float [B, D], unit embeddings.
      keys: float [B, D], of the second views, by the key network.
      queue: float [K, D], earlier keys.
      temperature: positive scalar; divides the cosines.
      config: says how negatives are weighed and whether the positive is in the denominator.
    """
    queries = accurate(queries)
    positive = jnp.sum(queries * accurate(keys), axis=1) / temperature
    negative = jnp.matmul(queries, accurate(queue).T, precision=lax.Precision.HIGHEST)
    if config.dance != "off":
        negative = negative * dance_weights(negative, queries.shape[1], config)
    rest = jax.nn.logsumexp(negative / temperature, axis=1)
    return (rest if config.equations == "paper" else jnp.logaddexp(positive, rest)) - positive


def reverse(x: jax.Array) -> jax.Array:
    """R: the identity, with the gradient's sign turned."""
    return 2 * lax.stop_gradient(x) - x


def correlation(psi: dict[str, Any], source: jax.Array, target: jax.Array, config: Config) -> jax.Array:
    """c between embeddings [B, D] of two tasks, psi mapping the source to the target -> scalar."""
    source, target = reverse(accurate(source)), reverse(accurate(target))
    if config.equations == "authors":
        source, target = unit(source), unit(target)
    mapped = heads.linear(psi["output"], jax.nn.relu(heads.linear(psi["hidden"], source)))
    if config.equations == "paper":
        return jnp.mean(jnp.sum((target * mapped) ** 2, axis=1))
    return jnp.mean((target * unit(mapped)) ** 2)


def criterion(
    params: dict[str, Any],
    embeddings: dict[str, jax.Array],
    labels: jax.Array,
    triplets: dict[str, Triplets],
    keys: jax.Array | None,
    queue: jax.Array | None,
    config: Config,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """L of Eq. 7.

    Args:
      params: as `criterion_init` gives them.
      embeddings: [B, D] of each task that is on.
      labels: int [B], in 0..C-1.
      triplets: of each ranking task that is on.
      keys: [B, D], selfsimilarity embeddings of the second views by the key network; None where the task is off.
      queue: [K, D], earlier keys; None where the task is off.
      config: the options.

    Returns:
      (scalar, terms): each task's loss before its weight, and "decorrelation" as it is added.
    """
    terms = {}
    for task, chosen in triplets.items():
        if config.base == "margin":
            beta = params["beta"][task]
            terms[task] = ranking.margin_loss(embeddings[task], labels, chosen, beta, margin=config.margin)
        else:
            squared = config.equations == "authors"
            terms[task] = ranking.triplet_loss(embeddings[task], chosen, margin=config.margin, squared=squared)
    if keys is not None and queue is not None:
        temperature = jnp.clip(params["temperature"], 1e-8, 1e4) if "temperature" in params else config.temperature
        terms["selfsimilarity"] = dance(embeddings["selfsimilarity"], keys, queue, temperature, config).mean()
    for direction, rho in decorrelated(config).items():
        source, target = (embeddings[task] for task in direction.split("-"))
        term = -rho * correlation(params["psi"][direction], source, target, config)
        terms["decorrelation"] = terms.get("decorrelation", 0) + term
    alpha = dict.fromkeys(terms, 1.0) | {t: getattr(config, f"alpha_{t}") for t in terms if t in TASKS[1:]}
    return sum((alpha[t] * term for t, term in terms.items()), start=jnp.zeros(())), terms


def ensemble(embeddings: dict[str, jax.Array], config: Config) -> jax.Array:
    """Test-time embedding: weighted unit embeddings [B, D], concatenated, of unit length -> [B, tasks * D]."""
    parts = [config.ensemble[TASKS.index(task)] * unit(embeddings[task]) for task in trained(config)]
    return unit(jnp.concatenate(parts, axis=1))


def enqueue(queue: jax.Array, keys: jax.Array) -> jax.Array:
    """First in, first out: the oldest rows of the queue [K, D] leave at the front, keys [B, D] join at the end."""
    kept = jnp.roll(queue, -keys.shape[0], axis=0)
    return lax.dynamic_update_slice(kept, keys.astype(queue.dtype), (queue.shape[0] - keys.shape[0], 0))


def follow(key_params: Any, params: Any, momentum: float) -> Any:
    """Moving average of the parameters: momentum * key + (1 - momentum) * params."""
    return jax.tree.map(lambda k, p: momentum * k + (1 - momentum) * p, key_params, params)


def build(config: Config, backbone: Backbone, num_classes: int, *, miner: Miner | None = None) -> Method:
    """DiVA on a backbone, for `num_classes` training classes.

    The key network always runs in evaluation mode, with the batch statistics the backbone started with: only
    parameters are averaged. The queue is filled by it from the main views, before the first step.

    Args:
      config: the options.
      backbone: gives the feature map f is the spatial mean of.
      num_classes: C.
      miner: (key, embeddings, batch) -> triplets of each ranking task, in place of `mine`.

    Raises:
      ConfigError: too few classes for the triplets asked for.
    """
    choose = miner or partial(mine, config=config)
    tasks = trained(config)
    contrastive = "selfsimilarity" in tasks
    needed = 1 + bool({"discriminative", "shared"} & set(tasks)) + ("shared" in tasks and config.shared != "random")
    if num_classes < needed:
        raise ConfigError(
            f"method.tasks={tasks!r}: their triplets need {needed} training classes, the data has {num_classes}"
        )

    def features(params: Any, stats: Any, images: jax.Array, *, train: bool, key: Any = None) -> tuple[jax.Array, Any]:
        maps, stats = backbone.apply(params, stats, backbone.preprocess(images), train=train, key=key)
        return heads.pool(maps, "avg"), stats

    def encode(network: Any, images: jax.Array) -> jax.Array:
        """Keys [B, D]; `network` is the key network's part of the state."""
        pooled, _ = features(network["backbone"], network["stats"], images, train=False)
        return unit(heads.linear(network["heads"]["selfsimilarity"], pooled))

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        key_body, key_heads, key_criterion = jax.random.split(key, 3)
        body, stats = backbone.init(key_body, batch.images.shape[2:4])
        subkeys = jax.random.split(key_heads, len(tasks))
        layers = {
            task: heads.linear_init(sub, backbone.channels, config.embedding_dim)
            for task, sub in zip(tasks, subkeys, strict=True)
        }
        params = {"backbone": body, "heads": layers, **criterion_init(key_criterion, config, num_classes)}
        state = {"backbone": stats}
        if contrastive:
            network = {"backbone": body, "heads": layers, "stats": stats}
            state["key"] = jax.tree.map(jnp.copy, network)  # buffers of its own: the step donates its state
            state["queue"] = jnp.zeros((config.queue_batches * batch.labels.shape[0], config.embedding_dim))
        return params, state

    def loss(
        params: Any, state: Any, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
        key_body, key_mine = jax.random.split(key)
        pooled, stats = features(params["backbone"], state["backbone"], batch.images[0], train=True, key=key_body)
        embeddings = {task: unit(heads.linear(params["heads"][task], pooled)) for task in tasks}
        triplets = choose(key_mine, lax.stop_gradient(embeddings), batch)
        keys = encode(state["key"], batch.images[1]) if contrastive else None
        value, terms = criterion(params, embeddings, batch.labels, triplets, keys, state.get("queue"), config)
        if keys is not None:
            terms["keys"] = keys  # for `after`
        return value, ({**state, "backbone": stats}, terms)

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        pooled, _ = features(params["backbone"], state["backbone"], images, train=False)
        return ensemble({task: heads.linear(params["heads"][task], pooled) for task in tasks}, config)

    def after(params: Any, state: Any, terms: dict[str, jax.Array]) -> Any:
        averaged = {name: follow(state["key"][name], params[name], config.momentum) for name in ("backbone", "heads")}
        return {**state, "key": {**state["key"], **averaged}, "queue": enqueue(state["queue"], terms["keys"])}

    def fill(params: Any, state: Any, batches: Iterable[Batch]) -> Any:
        """The state with a full queue.

        Raises:
          DataError: the batches end before.
        """

        @jax.jit
        def push(network: Any, queue: jax.Array, images: jax.Array) -> jax.Array:
            return enqueue(queue, encode(network, images))

        queue, filled = state["queue"], 0
        for batch in batches:
            queue, filled = push(state["key"], queue, batch.images[0]), filled + batch.images.shape[1]
            if filled >= queue.shape[0]:
                return {**state, "queue": queue}
        raise DataError(
            f"{filled} images cannot fill a queue of {queue.shape[0]}: give more batches or lower method.queue_batches"
        )

    return Method(
        init,
        loss,
        embed,
        groups=GROUPS,
        group=lambda path: path[0] if path[0] in GROUPS else "model",
        after=after if contrastive else keep_state,
        fill=fill if contrastive else None,
        views=2 if contrastive else 1,
    )
