"""The main command: train, evaluate and export one experiment.

python -m dml_jax.main --config=configs/digits_hist.py
"""

import os
import sys
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from dml_jax.errors import ConfigError, UserError

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "Configuration file, e.g. configs/digits_hist.py", lock_config=True)
flags.DEFINE_string("workdir", None, "Work directory; runs/<config name>[-<variant>] if not given.")
flags.DEFINE_string("mode", "train", "train, evaluate, export or check.")
flags.DEFINE_string("checkpoint", "latest", "Which model to evaluate or export: latest, best or a step.")
flags.DEFINE_bool("quiet", False, "No progress, only messages.")
flags.DEFINE_string("coordinator", None, "host:port of the first process, or auto (Slurm, TPU pods, Kubernetes).")
flags.DEFINE_integer("processes", 1, "Number of processes of the run.")
flags.DEFINE_integer("process", 0, "Number of this process.")

MODES = ("train", "evaluate", "export", "check")


def parse(arguments: list[str]) -> dict[str, Any]:
    """Reads the flags; the configuration comes back as a plain nested dict.

    Raises:
      UserError: naming the flag, key or file that is wrong.
    """
    from dml_jax.closed import suggest

    _config_exists(arguments)
    try:
        rest = FLAGS(arguments)
        values = FLAGS.config.to_dict() if FLAGS.config is not None else None
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(_one_line(error)) from error
    if len(rest) > 1:
        raise ConfigError(f"{rest[1]}: stray argument; options are written --name=value")
    if values is None:
        raise ConfigError("--config: missing; give a file, e.g. --config=configs/digits_hist.py")
    if FLAGS.mode not in MODES:
        raise ConfigError(f"--mode={FLAGS.mode}: {suggest(FLAGS.mode, MODES)}")
    if not (FLAGS.checkpoint in ("latest", "best") or FLAGS.checkpoint.isdigit()):
        raise ConfigError(f"--checkpoint={FLAGS.checkpoint}: must be latest, best or a step")
    return values


def _config_exists(arguments: list[str]) -> None:
    """The flag's own complaint about a missing file is a traceback; this one is a sentence."""
    for name, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if name in ("--config", "-config"):
            path = value
        elif name.startswith(("--config=", "-config=")):
            path = name.split("=", 1)[1]
        else:
            continue
        if not Path(path.split(":")[0]).expanduser().is_file():
            raise ConfigError(f"--config={path}: there is no such file")


def _one_line(error: BaseException) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(text.replace('"', "'").split())


def default_workdir(arguments: list[str]) -> Path:
    """runs/<config name>[-<variant>]"""
    file, _, variant = config_flags.get_config_filename(FLAGS["config"]).partition(":")
    return Path("runs") / (Path(file).stem + (f"-{variant}" if variant else ""))


def execute(values: dict[str, Any], directory: Path) -> None:
    """Resolves the configuration and runs the mode asked for."""
    from dml_jax import config as configs

    config = configs.resolve(values)
    prepare_jax()
    from dml_jax import run
    from dml_jax.train import mesh
    from dml_jax.train.progress import Screen
    from dml_jax.train.signals import Stop

    if FLAGS.coordinator:
        mesh.connect(FLAGS.coordinator, FLAGS.processes, FLAGS.process)
    import jax

    screen = Screen(quiet=FLAGS.quiet, active=jax.process_index() == 0)
    match FLAGS.mode:
        case "train":
            with Stop() as stop:
                run.train(config, directory, screen, stop)
        case "evaluate":
            run.evaluate(config, directory, FLAGS.checkpoint, screen)
        case "export":
            run.export_all(config, directory, FLAGS.checkpoint, screen)
        case _:
            run.check(config, screen)


def prepare_jax() -> None:
    """Keeps compiled programs between runs, in $JAX_COMPILATION_CACHE_DIR or the user's cache directory."""
    import jax

    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(home / "dml_jax" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def main(arguments: list[str]) -> int:
    """Exit code: 0 done, 2 a mistake of the user's, 143 / 130 stopped by SIGTERM / Ctrl-C with a checkpoint."""
    try:
        values = parse(arguments)
        directory = Path(FLAGS.workdir).expanduser() if FLAGS.workdir else default_workdir(arguments)
        execute(values, directory)
    except UserError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        code = getattr(error, "code", None)
        if type(error).__name__ == "Interrupted" and code:
            print("stopped; the same command continues", file=sys.stderr)
            return code
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
