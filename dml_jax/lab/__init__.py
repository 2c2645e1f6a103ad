"""What tests papers and parts of others, and no user of a model needs; only commands import it.

Studies, many runs that make one table:

    definition   content of a study file: rows, seeds, a search, published numbers; and of a claim
    plan         the trials of a study, each with its configuration and work directory
    runner       trains missing trials, each in a process
    search       chooses the values of new trials (optuna)
    outcomes     reads finished runs; means, spreads, significance
    tables       on the console, as Markdown, LaTeX and CSV, and heat maps of grids
    claims       verdicts on the claims of papers

These do not import JAX, because trials are processes of their own. The rest does:

    head_bench   heads on stored feature maps of a frozen backbone, many in one process
    compilation  programs compiled for devices that need not be present: memory, bounds of a step's
    time hlo          what a compiled program reads, computes and sends
"""
