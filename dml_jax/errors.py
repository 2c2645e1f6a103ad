"""Errors that the user can fix, each one sentence that says what is wrong and how to fix it."""


class UserError(Exception):
    """Invalid input or a state the user can fix: printed as one `error: ...` line, exit code 2, no traceback."""


class ConfigError(UserError):
    """An option or a configuration value: names the key, the value, the rule and the remedy."""


class DataError(UserError):
    """A data set, an image or an array: names the file or the shape."""


class WeightsError(UserError):
    """A file of published weights: names the file and the tensor."""


class CheckpointError(UserError):
    """A work directory or a checkpoint in it: names the path."""


class DivergedError(UserError):
    """The loss, a gradient or the train state is no longer finite: names the step and the values or the array."""


def printable(text: str) -> str:
    """The text on one line, with control characters and the undecodable bytes of file names escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
