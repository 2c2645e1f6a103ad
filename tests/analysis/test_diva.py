"""The parts of DiVA's embedding whose geometry is analysed by itself."""

import jax
import numpy as np
import pytest

from dml_jax.analysis import spectra
from dml_jax.methods import diva
from dml_jax.methods.contract import TrainingSet
from tests import toys


@pytest.mark.parametrize("ensemble", [(0.75, 1.25, 1.25, 1.25), (1.0, 0.0, 2.0, 0.5)])
def test_parts(ensemble: tuple[float, float, float, float]) -> None:
    """Those of tasks with a weight, each as if the others had none."""
    tasks, batch = ("discriminative", "selfsimilarity", "shared", "intra"), toys.batch(2)
    config = diva.Config(embedding_dim=3, ensemble=ensemble, queue_batches=1)
    method = diva.build(config, toys.backbone(), TrainingSet(4, 16))
    params, model_state = method.init(jax.random.key(0), batch)
    found = spectra.parts(method, np.asarray(method.embed(params, model_state, batch.images[0])))
    assert list(found) == ["embedding", *(task for task, weight in zip(tasks, ensemble, strict=True) if weight)]
    encoded, _ = method.encode(params, model_state, batch.images, train=False)
    for task in list(found)[1:]:
        np.testing.assert_allclose(found[task], encoded.embeddings[task], rtol=1e-5, atol=1e-6)
