"""A loop of your own: losses, a sampler and exact evaluation with plain Flax and optax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dml_jax import evaluation, losses
from dml_jax.config import Data
from dml_jax.data import formats, samplers


class Network(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = images.astype(jnp.float32).reshape(len(images), -1) / 255 - 0.5
        return nn.Dense(32)(jax.nn.relu(nn.Dense(64)(x)))


def images_of(split):
    return np.stack([split.read(i, None) for i in range(len(split.labels))])


def train(steps=100):
    splits = formats.load(Data(name="digits"))
    images, labels = images_of(splits["train"]), splits["train"].labels
    sampler = samplers.balanced(labels, batch_size=40, images_per_class=8)
    network, optimizer = Network(), optax.adam(1e-3)
    params = network.init(jax.random.key(0), images[:1])
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, images, labels):
        def loss(params):
            return losses.multi_similarity(network.apply(params, images), labels)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    for number in range(steps):
        chosen = sampler.batch(number)
        params, state, _ = step(params, state, images[chosen], labels[chosen])
    embeddings = np.asarray(network.apply(params, images_of(splits["test"])))
    return evaluation.retrieval(embeddings, splits["test"].labels, ks=(1, 2))


if __name__ == "__main__":
    print(train())
