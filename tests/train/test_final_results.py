"""Tests of the results at the end of a run."""

import numpy as np

from dml_jax import config as configs
from dml_jax.console import Console
from dml_jax.data.split import Split
from dml_jax.train import evaluations
from dml_jax.train import experiment as experiments
from tests.train.experiments import values


def test_controls_search_the_gallery() -> None:
    """Raw pixels and the untrained network get queries and gallery, as the model does."""
    settings = values(steps=1)
    settings["evaluation"] |= {"controls": True}
    run = experiments.build(configs.resolve(settings))
    test = run.splits["test"]

    def every_other(start: int) -> Split:
        rows = np.arange(start, 200, 2)
        return Split(
            test.labels[rows], [test.ids[i] for i in rows], lambda i, rng: test.read(rows[i], rng), test.classes
        )

    queries, gallery = every_other(0), every_other(1)
    run.splits["test"] = queries._replace(gallery=gallery)
    state = run.initial_state()
    results, _ = evaluations.final(run, state, "last", Console(active=False))
    rows = []
    for split in (queries, gallery):
        pixels = np.stack([split.read(i, None) for i in range(100)]).reshape(100, -1).astype(np.float64)
        rows.append(pixels / np.linalg.norm(pixels, axis=1, keepdims=True))
    nearest = np.argmax(rows[0] @ rows[1].T, axis=1)
    expected = np.mean(queries.labels == gallery.labels[nearest])
    assert results["controls"]["raw pixels"]["recall@1"] == expected
    assert results["controls"]["untrained"]["recall@1"] == results["recall@1"]
