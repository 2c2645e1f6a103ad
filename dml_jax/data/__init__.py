"""Data sets, samplers, transforms and the input pipeline.

options = Data(name="digits", batch_size=64, images_per_class=4)
train = load(options)["train"]
sampler = samplers.build(options, train.labels, seed=0)
with pipeline.training(train, sampler, options, seed=0, stop=100) as batches:
    for images, labels, index in batches:
        ...
"""

from dml_jax.config import Data
from dml_jax.data import pipeline, samplers
from dml_jax.data.datasets import load
from dml_jax.data.split import Split

__all__ = ["Data", "Split", "load", "pipeline", "samplers"]
