"""Training. Read in this order:

    loop                the training loop: batch, step, log, evaluate, save
    step                an update as a pure function: encode, loss, gradient, optimizer
    experiment          builds the parts of a run from its configuration
    method_wrappers     builds the method of a configuration and wraps it
    model               a trained model, the result of a run
    embedding           turns images into embeddings
    optimizers          an optimizer for each parameter group, and their schedule
    checkpoint          checkpoints on disk, verified before they are read

    warm_start          the initial state, from the seed or from trained weights
    teacher             the model of another run that teaches this one
    frozen_features     features of a frozen backbone, computed once
    parameter_groups    wraps a method: groups of parameters, frozen groups
    model_metrics       metrics of splits during training, and the final results
    length              turns minutes into steps
    selection           chooses between published weights, trained weights and their mean
    controls            baselines for the final results

    distributed/        mesh, processes, signals
    records/            the work directory: metrics, timing, model files

`dml_jax.run` calls `loop.train`.
"""
