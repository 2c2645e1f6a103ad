"""Studies: many runs that make one table.

    definition   content of a study file: rows, seeds, a search, published numbers; and of a claim
    plan         the trials of a study, each with its configuration and work directory
    runner       trains missing trials, each in a process
    search       chooses the values of new trials (optuna)
    outcomes     reads finished runs; means, spreads, significance
    tables       on the console, as Markdown, LaTeX and CSV, and heat maps of grids
    claims       verdicts on the claims of papers

Nothing here imports JAX: trials are processes of their own.
"""
