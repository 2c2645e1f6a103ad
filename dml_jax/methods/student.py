"""A student of a trained model (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021, appendix C.4).

Test-time message passing (MPN) needs batches and a second network; a student needs only the
backbone. Its embedding layer and linear classifier learn from the label-smoothed cross-entropy LS
of MPN's auxiliary loss and from the teacher's outputs (marked *) for the same images. z are logits,
f embeddings of unit length, and h is the Huber loss with delta 1:

    L               = LS(z / T) + w times one of
    distillation    -sum_c p*_c log p_c,  p = softmax(z / tau)   mean over samples
    distillation_kl  sum_c p*_c log(p*_c / p_c)                  mean over samples and classes
    imitation        h(f*_k - f_k)                               mean over samples and dimensions
    relational       |d*_ij - d_ij|                              sum over all N^2 ordered pairs
                     d_ij = D_ij / mean(D),  D_ij = sum_k h(f_ik - f_jk)

Distillation follows Hinton et al. (2015), the relational loss Park et al. (CVPR 2019).

These equations follow the authors' code. The paper describes them in words; it specifies neither
the kind of distillation nor whether the cross-entropy stays. The authors compute the teacher's
outputs beforehand; here, the teacher runs on the same augmented images as the student, before
random erasing. An MPN teaches the embeddings and logits that its network computes for the training
batch; the Group Loss, baselines with a classifier, and students teach their test-time embeddings
and logits; other methods teach only their test-time embeddings.

Reported R@1 and NMI (Table 8), CUB and Cars196: distillation 65.7, 70.3 and 85.6, 71.6; imitation
65.3, 70.1 and 85.6, 70.9; relational 64.9, 68.7 and 84.7, 70.5; for comparison, MPN's own backbone
70.3, 74.0 and 88.1, 74.8.
"""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense, Pooling
from dml_jax.config.fields import (
    Fraction,
    Mark,
    NonNegative,
    Positive,
    PositiveInt,
    Rules,
    require,
    section,
)
from dml_jax.errors import ConfigError
from dml_jax.losses.classification import cross_entropy
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, PyTree, Teaching, TrainingSet
from dml_jax.numerics import at_least_float32, unit

Kind = Literal["distillation", "distillation_kl", "imitation", "relational"]
GROUPS = ("backbone", "embedding", "auxiliary")  # parameter groups


@section
class Config:
    """Options of a student, with the defaults of the authors' CUB configuration.

    Attributes:
      name: Module of dml_jax/methods, or an import path.
      teacher: Work directory of the teacher's run, on the same data.
      kind: What the student learns from the teacher.
      weight: Weight w of the teacher's term; 0.01 for "relational" in the authors' code.
      soft_temperature: tau, which divides student's and teacher's logits in a distillation; 10 in
        the authors' configurations of other data sets.
      embedding_dim: Length D of the embeddings.
      temperature: T, which divides the logits of the cross-entropy.
      smoothing: Label smoothing epsilon.
      pooling: Pooling of the feature map.
    """

    name: str = "student"
    teacher: Annotated[str, Mark.PATH] = ""
    kind: Kind = "distillation"
    weight: NonNegative = 1.0
    soft_temperature: Positive = 1.0
    embedding_dim: PositiveInt = 512
    temperature: Positive = 0.2
    smoothing: Fraction = 0.1
    pooling: Pooling = "max"

    def __post_init__(self) -> None:
        rule = "must be the work directory of a trained run"
        require(self.teacher != "", "teacher", self.teacher, rule)

    def inert(self, config: Any) -> Rules:
        """What options need; see `config.fields.inert`."""
        condition = "a positive method.weight and a distillation as method.kind"
        distils = self.weight > 0 and self.kind.startswith("distillation")
        return ((distils, condition, "soft_temperature"),)


def relative_distances(embeddings: Array) -> Array:
    """d [N, N] between the rows of embeddings [N, D]; its mean is 1, or 0 if all rows are equal."""
    # XLA fuses this, so that [N, N, D] is never stored.
    distances = optax.losses.huber_loss(embeddings[:, None, :], embeddings[None, :, :]).sum(axis=-1)
    return distances / jnp.maximum(distances.mean(), 1e-12)


def check_teacher(teaching: Teaching, classes: int, config: Config) -> None:
    """ConfigError if the teacher's outputs do not fit the student; only shapes are used."""
    problem = ""
    count = 0 if teaching.logits is None else teaching.logits.shape[1]
    if config.kind.startswith("distillation") and count != classes:
        remedy = "choose one trained on these classes, or method.kind='imitation' or 'relational'"
        problem = f"has logits of {count} classes, but the data has {classes}; {remedy}"
    dim = teaching.embeddings.shape[1]
    if config.kind == "imitation" and dim != config.embedding_dim:
        rule = f"must equal method.embedding_dim={config.embedding_dim}"
        problem = f"has embeddings of {dim} dimensions, which {rule} for method.kind='imitation'"
    if problem:
        raise ConfigError(f"method.teacher={config.teacher!r}: {problem}")


def teacher_loss(embeddings: Array, logits: Array, teaching: Teaching, config: Config) -> Array:
    """The teacher's unweighted term of L, from unit f [B, D] and z [B, C] -> scalar."""
    f, f_teacher = at_least_float32(embeddings), at_least_float32(teaching.embeddings)
    match config.kind:
        case "imitation":
            return optax.losses.huber_loss(f, f_teacher).mean(axis=1).mean()
        case "relational":
            return jnp.abs(relative_distances(f_teacher) - relative_distances(f)).sum(axis=1).sum()
    assert teaching.logits is not None
    logits, teacher_logits = (
        at_least_float32(z) / config.soft_temperature for z in (logits, teaching.logits)
    )
    log_p = jax.nn.log_softmax(logits)
    if config.kind == "distillation":  # not multiplied by tau^2
        return -jnp.sum(jax.nn.softmax(teacher_logits) * log_p, axis=1).mean()
    log_p_teacher = jax.nn.log_softmax(teacher_logits)
    return jnp.mean(jnp.exp(log_p_teacher) * (log_p_teacher - log_p), axis=1).mean()


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """A student on a backbone; its loss calls `batch.teacher`."""
    embedding = heads.Embedding(config.embedding_dim, config.pooling)
    auxiliary = Dense(data.classes)

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, 3)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        x = functional.struct(1, config.embedding_dim)
        params["auxiliary"], _ = functional.init(auxiliary, keys[2], x)
        return params, model_state

    encode = heads.encoder(backbone, embedding)

    def loss(
        params: PyTree, model_state: PyTree, encoded: Array, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        assert batch.teacher is not None
        teaching = lax.stop_gradient(batch.teacher(batch.images[0]))
        check_teacher(teaching, data.classes, config)
        logits: PyTree = auxiliary.apply({"params": params["auxiliary"]}, encoded)
        scaled = logits / config.temperature
        loss_labels = cross_entropy(scaled, batch.labels, smoothing=config.smoothing).mean()
        loss_teacher = teacher_loss(unit(encoded), logits, teaching, config)
        terms = {"loss_labels": loss_labels, "loss_teacher": loss_teacher}
        return loss_labels + config.weight * loss_teacher, Aux(model_state, terms)

    hooks = Hooks(teach=heads.teach_by(auxiliary, "auxiliary"), teacher=config.teacher)
    return Method(init, encode, loss, heads.unit_embed(encode), GROUPS, hooks=hooks)
