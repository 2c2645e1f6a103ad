"""Studies: many runs that make one table.

    definition   what a study file states: rows, seeds, a search, published numbers
    plan         the trials of a study, each with its configuration and work directory
    smoke        the same study in a minute: a few steps of a small network on the built-in digits
    runner       trains what is missing, each trial in a process (child) of a slot
    slots        shares of this machine, or of the machines of a Ray cluster
    lengths      work directories of trials that have another length than the run there
    search       chooses the values of new trials (optuna); search_report shows them
    outcomes     reads finished runs; means, spreads, significance
    group_tables text, Markdown, LaTeX, CSV
    study_page   one HTML page with tables and figures
    summary      both, of a study or of any runs

Nothing here imports JAX: trials are processes of their own.
"""
