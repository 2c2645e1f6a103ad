"""What can go wrong through the user's hands: one sentence that names the culprit and the mend."""


class UserError(Exception):
    """A mistake the user can mend: shown as one `error: ...` line, exit code 2, no traceback."""


class ConfigError(UserError):
    """A flag or a configuration value: names the key, the value, the rule and the remedy."""


class DataError(UserError):
    """A data set, an image or an array: names the file or the shape."""


class WeightsError(UserError):
    """A file of published weights: names the file and the tensor."""


class CheckpointError(UserError):
    """A work directory or a checkpoint in it: names the path."""


class DivergedError(UserError):
    """The loss or a gradient stopped being finite: names the step and the terms."""
