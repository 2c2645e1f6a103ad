"""Tests of papers and plug-ins, which users of a model do not need; only commands import it.

Studies, many runs that make one table:

    definition   content of a study file: rows, seeds, published numbers
    plan         the trials of a study, each with its configuration and work directory
    runner       trains missing trials, each in another process
    outcomes     reads finished runs; means, spreads, significance
    tables       tables over runs, and heat maps of grids
    studies      what `dml-jax study` does with them

All but the last do not import JAX, because trials are other processes. The rest does:

    plugins      how a module or function is recognised as a plug-in
    conformance  the checks of a plug-in
    compilation  the training step compiled for absent devices: memory, least time
"""
