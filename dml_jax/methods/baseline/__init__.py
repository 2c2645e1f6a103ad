"""A loss of the literature on any backbone, so that losses can be compared under one training recipe.

Global pooling and a linear layer give the embedding, as in Musgrave et al., "A metric learning reality check" (ECCV
2020), and Roth et al., "Revisiting training strategies" (ICML 2020). `method.loss` names a loss of `registry.LOSSES`: a
classifier, a loss against proxies, or a loss on pairs; the section of the same name holds its options. Pair losses can
also be computed against a memory of past batches (Wang et al., CVPR 2020):

    L = loss(batch, batch) + memory_weight loss(batch, memory)

R@1 on CUB, Cars196, SOP with ResNet-50: normalised softmax, 512-d, 61.3, 84.2, 78.2 (as quoted by Seidenschwarz et al.,
ICML 2021); margin, 512-d, 64.4, 82.2, 78.3 (Milbich et al., ECCV 2020); multi-similarity, 128-d, 62.64, 79.92, 76.49
(Kan et al., NeurIPS 2022); Proxy-Anchor, 512-d, 69.9, 87.7 on the first two (its authors' repository).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.errors import ConfigError
from dml_jax.losses import cross_batch_memory
from dml_jax.losses.pairwise import Candidates
from dml_jax.losses.safe_norms import unit
from dml_jax.methods import heads
from dml_jax.methods.baseline.registry import LOSSES
from dml_jax.methods.contract import Aux, Batch, Method, PyTree, Teaching, TrainingSet
from dml_jax.options.methods.baseline import GROUPS, Config, as_values, make_config, resolve
from dml_jax.options.methods.losses import PAIR_LOSSES

__all__ = ["GROUPS", "LOSSES", "PAIR_LOSSES", "Config", "Criterion", "as_values", "build", "make_config", "resolve"]


class Criterion(nn.Module):
    """An entry of LOSSES with its learned parameters.

    Attributes:
      loss: key of LOSSES.
      options: dataclass of the loss's options.
      classes: number of classes C.
      dim: length D of the embeddings.
    """

    loss: str
    options: Any
    classes: int
    dim: int

    def setup(self) -> None:
        shapes = LOSSES[self.loss].parameters(self.options, self.classes, self.dim)
        self.learned = {name: self.param(name, init, shape) for name, (init, shape) in shapes.items()}

    def __call__(self, embeddings: jax.Array) -> jax.Array | None:
        """Embeddings [N, D] -> logits [N, C] without margins; None if the loss does not train a classifier."""
        logits = LOSSES[self.loss].logits
        return None if logits is None else logits(self.options, self.learned, embeddings)

    def active(self, embeddings: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
        """The share of the pairs that have a gradient, see `Method.active_pairs`; arguments as for `value`."""
        entry = LOSSES[self.loss]
        assert entry.active is not None
        arguments = {**vars(self.options), **self.learned} | ({"key": key} if entry.mines else {})
        return entry.active(embeddings, labels, **arguments)

    def value(
        self, embeddings: jax.Array, labels: jax.Array, key: jax.Array, candidates: Candidates | None = None
    ) -> jax.Array:
        """The loss of a batch -> scalar.

        Args:
          embeddings: float [N, D].
          labels: int [N], in 0..C-1.
          key: random key of the mining.
          candidates: what a pair loss compares the embeddings with; None for the batch itself.
        """
        entry = LOSSES[self.loss]
        arguments = {**vars(self.options), **self.learned}
        if self.loss in PAIR_LOSSES:
            arguments["candidates"] = candidates
        if entry.mines:
            arguments["key"] = key
        return entry.loss(embeddings, labels, **arguments)


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """The baseline on a backbone.

    Raises:
      ConfigError: fewer than two training classes.
    """
    if data.classes < 2:
        raise ConfigError(f"method.loss={config.loss!r}: needs two training classes, the data has {data.classes}")
    embedding = heads.Embedding(config.embedding_dim, config.pooling, config.layer_norm)
    criterion = Criterion(config.loss, config.options, data.classes, config.embedding_dim)

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, 3)
        body, stats = heads.backbone_init(backbone, keys[0], batch)
        head, _ = functional.init(embedding, keys[1], functional.struct(1, 1, 1, backbone.channels))
        learned, _ = functional.init(criterion, keys[2], functional.struct(1, config.embedding_dim))
        model_state = {"backbone": stats}
        if config.memory:
            model_state["memory"] = cross_batch_memory.empty(config.memory, config.embedding_dim)
            model_state["seen"] = jnp.zeros((), jnp.int32)
        return {"backbone": body, **head, "loss": learned}, model_state

    encode = heads.encoder(
        backbone, lambda params, features: embedding.apply({"params": {"embedding": params["embedding"]}}, features)
    )

    def apply_criterion(params: PyTree, *arguments: Any, method: str) -> PyTree:
        return criterion.apply({"params": params["loss"]}, *arguments, method=method)

    def loss(
        params: PyTree, model_state: PyTree, encoded: jax.Array, batch: Batch, step: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Aux]:
        key_batch, key_memory = jax.random.split(key)
        total = apply_criterion(params, encoded, batch.labels, key_batch, method="value")
        if not config.memory:
            return total, Aux(model_state, {})
        past = cross_batch_memory.candidates(model_state["memory"], batch.labels)
        term = apply_criterion(params, encoded, batch.labels, key_memory, past, method="value")
        term = jnp.where(model_state["seen"] >= config.memory_after, term, 0)
        rows = {"embeddings": jax.lax.stop_gradient(encoded), "labels": batch.labels}
        return total + config.memory_weight * term, Aux(model_state, {"memory": term}, rows)

    def after(params: PyTree, model_state: PyTree, rows: PyTree) -> PyTree:
        if not config.memory:
            return model_state
        memory = cross_batch_memory.enqueue(model_state["memory"], rows)
        return {**model_state, "memory": memory, "seen": model_state["seen"] + 1}

    def teach(params: PyTree, model_state: PyTree, encoded: jax.Array) -> Teaching:
        return Teaching(unit(encoded), apply_criterion(params, encoded, method="__call__"))

    def active_pairs(params: PyTree, encoded: jax.Array, batch: Batch, key: jax.Array) -> jax.Array:
        return apply_criterion(params, encoded, batch.labels, key, method="active")

    has_proxies = "proxies" in LOSSES[config.loss].parameters(config.options, data.classes, config.embedding_dim)
    return Method(
        init,
        encode,
        loss,
        heads.unit_embed(encode),
        GROUPS,
        group=lambda path: path[0],
        after=after,
        teach=teach,
        proxies=(lambda params: params["loss"]["proxies"].reshape(-1, config.embedding_dim)) if has_proxies else None,
        active_pairs=active_pairs if LOSSES[config.loss].active else None,
    )
