"""Studies: many runs that make one table.

    definition   what a study file states: rows, seeds, a search, published numbers; and what a claim is
    plan         the trials of a study, each with its configuration and work directory
    runner       trains what is missing, each trial in a process
    search       chooses the values of new trials (optuna)
    outcomes     reads finished runs; means, spreads, significance
    tables       on the console, as Markdown, LaTeX and CSV, and heat maps of grids
    claims       the verdicts on what papers claim

Nothing here imports JAX: trials are processes of their own.
"""
