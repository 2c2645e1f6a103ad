"""Training, to be read in this order:

    loop                the training loop, from top to bottom: batch, step, log, evaluate, save
    step                one update as a pure function: encode, loss, gradient, optimizer
    experiment          from a configuration to the parts of a run
    method_wrappers     the method of a configuration, and in which order what wraps it
    model               a trained model, the result of a run
    embedding           from images to embeddings
    optimizers          one optimizer per parameter group, and the schedule they share
    checkpoint          checkpoints on disk, verified before they are read

    warm_start          the state before the first step: from the seed or from trained weights
    teacher             the model of another run, to learn from
    frozen_features     features of a frozen backbone, computed once
    parameter_groups    wraps a method: groups of parameters, some of them frozen
    model_metrics       metrics of splits during training, and the final results
    length              turns minutes into steps
    selection           chooses the model to keep: published weights, trained ones, or between
    controls            baselines beside the final results

    distributed/        mesh, processes, signals
    records/            the work directory: metrics, timing, model files

`dml_jax.run` calls `loop.train`.
"""
