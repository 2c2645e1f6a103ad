"""A student of a trained model (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021, appendix C.4).

Message passing refines the embeddings of a batch, so a test with it needs batches and one more network. A student is
the backbone alone: an embedding layer and a linear classifier, trained by the label-smoothed cross-entropy of MPN's
auxiliary loss and by what the teacher (marked *) says of the same images. z are logits, f embeddings of unit length, h
is the Huber loss with delta 1:

    L               = w_l LS(z / T) + w times one of
    distillation    -sum_c p*_c log p_c,          p = softmax(z / tau)      mean over samples; Hinton et al. (2015)
    distillation_kl  sum_c p*_c log(p*_c / p_c)                             mean over samples and classes
    imitation        h(f*_k - f_k)                                          mean over samples and dimensions
    relational       |d*_ij - d_ij|                                         sum over all N^2 ordered pairs
                     d_ij = D_ij / mean(D),  D_ij = sum_k h(f_ik - f_jk)    after Park et al. (CVPR 2019)

These are the forms of the authors' code; the paper names them in words and does not say which distillation it used, nor
whether the cross-entropy stays. There, the teacher's outputs were files made beforehand; here the teacher runs on the
very images the student sees, before random erasing. An MPN teaches what its network makes of the training batch,
refined embeddings and logits; the Group Loss, the baselines that classify and students teach their test-time embedding
and logits; other methods their test-time embedding alone.

Reported R@1 and NMI (Table 8), CUB and Cars196: distillation 65.7, 70.3 and 85.6, 71.6; imitation 65.3, 70.1 and 85.6,
70.9; relational 64.9, 68.7 and 84.7, 70.5. MPN's own backbone reaches 70.3, 74.0 and 88.1, 74.8 there.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dml_jax.backbones.contract import Backbone
from dml_jax.config_schema import require
from dml_jax.errors import ConfigError
from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.norms import at_least_float32, unit
from dml_jax.methods import heads
from dml_jax.methods.contract import Batch, Method, Teaching

GROUPS = ("backbone", "embedding", "auxiliary")
Kind = Literal["distillation", "distillation_kl", "imitation", "relational"]


@dataclass(frozen=True)
class Config:
    """Options of a student; the defaults are those of the authors' CUB configuration."""

    name: str = "student"
    teacher: str = ""  # work directory of the run that teaches, on the same data set
    kind: Kind = "distillation"
    weight: float = 1.0  # w of what the teacher says; 0.01 for "relational" in the authors' code
    label_weight: float = 1.0  # w_l of the cross-entropy with the labels; 0: the teacher alone
    soft_temperature: float = 1.0  # tau, divides both logits of a distillation; 10 on the authors' other data sets
    embedding_dim: int = 512
    temperature: float = 0.2  # T, divides the logits of the cross-entropy
    smoothing: float = 0.1  # epsilon of the label smoothing
    pooling: heads.Pooling = "max"

    def __post_init__(self) -> None:
        require(self.teacher != "", "method.teacher", self.teacher, "name the work directory of a trained run")
        require(self.weight >= 0, "method.weight", self.weight, "must not be negative")
        require(self.label_weight >= 0, "method.label_weight", self.label_weight, "must not be negative")
        require(
            self.weight + self.label_weight > 0,
            "method.weight",
            self.weight,
            f"with method.label_weight={self.label_weight} there is nothing to learn; make one of them positive",
        )
        require(self.soft_temperature > 0, "method.soft_temperature", self.soft_temperature, "must be positive")
        require(self.embedding_dim > 0, "method.embedding_dim", self.embedding_dim, "must be positive")
        require(self.temperature > 0, "method.temperature", self.temperature, "must be positive")
        require(0 <= self.smoothing < 1, "method.smoothing", self.smoothing, "must be in [0, 1)")


def distillation(logits: jax.Array, taught: jax.Array, *, temperature: float) -> jax.Array:
    """Cross-entropy of each sample with the teacher's probabilities; not multiplied by temperature^2.

    Args:
      logits: the student's, float [B, C].
      taught: the teacher's, float [B, C].
      temperature: tau, divides both.

    Returns:
      float [B].
    """
    log_p = jax.nn.log_softmax(at_least_float32(logits) / temperature)
    return -jnp.sum(jax.nn.softmax(at_least_float32(taught) / temperature) * log_p, axis=1)


def distillation_kl(logits: jax.Array, taught: jax.Array, *, temperature: float) -> jax.Array:
    """KL divergence of the teacher's probabilities from the student's, divided by C; as `distillation`."""
    log_taught = jax.nn.log_softmax(at_least_float32(taught) / temperature)
    log_p = jax.nn.log_softmax(at_least_float32(logits) / temperature)
    return jnp.mean(jnp.exp(log_taught) * (log_taught - log_p), axis=1)


def imitation(embeddings: jax.Array, taught: jax.Array) -> jax.Array:
    """Huber loss between the embeddings [B, D] and the teacher's [B, D], each as it is -> [B], means over D."""
    return optax.losses.huber_loss(at_least_float32(embeddings), at_least_float32(taught)).mean(axis=1)


def relations(embeddings: jax.Array) -> jax.Array:
    """d [N, N] between the rows of embeddings [N, D]; its mean is 1, or all of it 0 where they coincide."""
    x = at_least_float32(embeddings)
    apart = optax.losses.huber_loss(x[:, None, :], x[None, :, :]).sum(axis=-1)  # fused with its sum by the compiler
    return apart / jnp.maximum(apart.mean(), 1e-12)


def relational(embeddings: jax.Array, taught: jax.Array) -> jax.Array:
    """How far the relations within a batch [N, D] are from those among the teacher's embeddings [N, D*].

    Returns:
      float [N], sums over the partners of each sample.
    """
    return jnp.abs(relations(taught) - relations(embeddings)).sum(axis=1)


def check(taught: Teaching, num_classes: int, config: Config) -> None:
    """Raises ConfigError unless the teacher says what the student wants to hear; looks at shapes only."""
    name = f"method.teacher={config.teacher!r}"
    if config.kind.startswith("distillation"):
        if taught.logits is None:
            raise ConfigError(
                f"{name}: gives no class probabilities for method.kind={config.kind!r}; choose imitation or relational"
            )
        if taught.logits.shape[1] != num_classes:
            raise ConfigError(f"{name}: tells {taught.logits.shape[1]} classes apart, the data has {num_classes}")
    elif config.kind == "imitation" and taught.embeddings.shape[1] != config.embedding_dim:
        raise ConfigError(
            f"{name}: its embeddings have {taught.embeddings.shape[1]} dimensions; to be imitated they need as many as "
            f"method.embedding_dim={config.embedding_dim}"
        )


def term(embeddings: jax.Array, logits: jax.Array, taught: Teaching, config: Config) -> jax.Array:
    """What the teacher adds to the loss, before its weight.

    Args:
      embeddings: the student's, of unit length, float [B, D].
      logits: the student's, float [B, C].
      taught: what the teacher says of the same images.
      config: the options.

    Returns:
      scalar.
    """
    if config.kind == "imitation":
        return imitation(embeddings, taught.embeddings).mean()
    if config.kind == "relational":
        return relational(embeddings, taught.embeddings).sum()
    assert taught.logits is not None
    distill = distillation if config.kind == "distillation" else distillation_kl
    return distill(logits, taught.logits, temperature=config.soft_temperature).mean()


def build(config: Config, backbone: Backbone, num_classes: int) -> Method:
    """A student on a backbone, for `num_classes` training classes; its loss asks `batch.teacher`.

    The loss raises ConfigError, when it is traced, where the teacher does not fit.
    """

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        keys = jax.random.split(key, 3)
        body, stats = backbone.init(keys[0], batch.images.shape[2:4])
        params = {
            "backbone": body,
            "embedding": heads.linear_init(keys[1], backbone.channels, config.embedding_dim),
            "auxiliary": heads.linear_init(keys[2], config.embedding_dim, num_classes),
        }
        return params, {"backbone": stats}

    forward = heads.forward(
        backbone, lambda params, features: heads.linear(params["embedding"], heads.pool(features, config.pooling))
    )

    def loss(params: Any, state: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, tuple[Any, dict[str, Any]]]:
        assert batch.teacher is not None
        taught = lax.stop_gradient(batch.teacher(batch.images[0]))
        check(taught, num_classes, config)
        x, stats = forward(params, state, batch.images[0], train=True, key=key)
        x = at_least_float32(x)
        logits = heads.linear(params["auxiliary"], x)
        smoothed = cross_entropy(logits / config.temperature, batch.labels, smoothing=config.smoothing).mean()
        terms = {"loss_labels": smoothed, "loss_teacher": term(unit(x), logits, taught, config)}
        value = config.label_weight * terms["loss_labels"] + config.weight * terms["loss_teacher"]
        return value, ({"backbone": stats}, terms)

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        return unit(forward(params, state, images, train=False)[0])

    def teach(params: Any, state: Any, images: jax.Array) -> Teaching:
        x, _ = forward(params, state, images, train=False)
        return Teaching(unit(x), heads.linear(params["auxiliary"], x))

    return Method(init, loss, embed, GROUPS, lambda path: path[0], teach=teach, teacher=config.teacher)
