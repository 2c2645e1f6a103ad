"""Studies and checks, which users of a model do not need; only commands import this package.

Studies: many runs in one table. All but `studies` work without JAX, because trials are other
processes:

    definition   content of a study file: rows, seeds, published numbers
    plan         the trials of a study, each with its configuration and work directory
    runner       trains missing trials, each in its own process
    outcomes     reads finished runs; means, spreads, significance
    tables       tables over runs, and heat maps of grids
    studies      the command `dml-jax study`

Checks, which import JAX:

    plugins      recognises a module or function as a plug-in
    conformance  checks a plug-in
    compilation  compiles the training step for absent devices: memory, minimum time
"""
