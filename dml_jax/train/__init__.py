"""Training, to be read in this order:

    loop                the training loop, from top to bottom: batch, step, log, evaluate, save
    step                one update as a pure function: encode, loss, gradient, optimizer
    state               what one step passes to the next, and what a checkpoint holds
    experiment          from a configuration to the parts of a run
    on_devices          batches, state and compiled step on the devices of a run
    optimizers, radam   one optimizer per parameter group, and the schedule they share
    checkpoint          checkpoints on disk, verified before they are read

    start/              what comes before the first step: weights of another run, a teacher, frozen features, a head
    variants/           wrappers of a method: chunks, class tables over devices, frozen groups, bfloat16
    distributed/        mesh, processes, signals, memory
    records/            the work directory: facts, metrics, timing, diagnostics, kept models, trackers
    evaluation/          embeddings and metrics of splits, during training and at its end

`run_rules` warns of options that are pointless in a run; `training_set_refresh` is what a method recomputes between two
steps. `dml_jax.run` calls `loop.train`.
"""
