"""Training, to be read in this order:

    loop                the training loop, from top to bottom: batch, step, log, evaluate, save
    step                one update as a pure function: encode, in chunks or at once, loss, gradient, optimizer
    experiment          from a configuration to the parts of a run
    model               the method of a configuration; a trained model, the result of a run
    embedding           from images to embeddings
    optimizers          one optimizer per parameter group, and the schedule they share
    checkpoint          checkpoints on disk, verified before they are read

    other_models        before the first step: weights of another run, a teacher
    frozen_features     before the first step: features of a frozen backbone, a head
    class_tables        variants of a method: tables of classes over the devices
    parameter_groups    variants of a method: groups of parameters, frozen or of low rank
    evaluations         metrics of splits during training, and at its end beside controls

    distributed/        mesh, processes, signals
    records/            the work directory: metrics, timing, kept models

`dml_jax.run` calls `loop.train`.
"""  # noqa: E501
