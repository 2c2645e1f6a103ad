"""Trains, evaluates and exports one experiment:

    python -m dml_jax.main --config=configs/digits_hist.py [--config.method.tau=16 …]

The same command again continues an interrupted run. Exit codes: 0 done; 2 a mistake, named in one line; 143 or 130
stopped by SIGTERM or Ctrl-C, with a checkpoint of the last step on disk.
"""

import sys
from pathlib import Path

from dml_jax import cli, files
from dml_jax.errors import ConfigError
from dml_jax.options.fields import suggest

MODES = ("train", "evaluate", "export", "check", "show")


def parser() -> cli.Parser:
    """The options of the main command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("--config", metavar="FILE[:VARIANT]", help="configuration file; --config.KEY=VALUE edits it")
    flags.add_argument("--workdir", metavar="DIRECTORY", help="default: runs/<config name>[-<variant>]")
    flags.add_argument("--mode", default="train", help=f"{', '.join(MODES)} (default: train, evaluate, export, report)")
    flags.add_argument("--checkpoint", default="reported", help="to judge or export: reported, latest, best or a step")
    flags.add_argument("--output", metavar="FILE", help="JSON to write, with --mode=evaluate")
    flags.add_argument("--quiet", action="store_true", help="messages, no progress")
    flags.add_argument("--coordinator", metavar="HOST:PORT", help="first process of several; auto asks the cluster")
    flags.add_argument("--processes", type=int, default=1, help="number of processes; not needed with auto")
    flags.add_argument("--process", type=int, default=0, help="number of this one; not needed with auto")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, resolves the configuration and runs the mode asked for.

    Raises:
      UserError: what the user can mend.
      SystemExit: stopped by a signal.
    """
    asks_help = bool({"-h", "--help"} & set(arguments)) and any(a.startswith("--config=") for a in arguments)
    options, overrides = parser().read([a for a in arguments if a not in ("-h", "--help")] if asks_help else arguments)
    if options.config is None:
        raise ConfigError("--config: missing; give a file, e.g. --config=configs/digits_hist.py")
    if options.mode not in MODES:
        raise ConfigError(f"--mode={options.mode}: {suggest(options.mode, MODES)}")
    checkpoint = options.checkpoint
    if not (checkpoint in ("reported", "latest", "best") or checkpoint.isdecimal()):
        raise ConfigError(f"--checkpoint={checkpoint}: must be reported, latest, best or a step")
    output = cli.file_to_write("--output", options.output)
    if output is not None and options.mode != "evaluate":
        raise ConfigError(f"--output={options.output}: only --mode=evaluate writes its numbers to a file of their own")
    file, _, variant = options.config.partition(":")
    default = Path("runs") / (Path(file).stem + (f"-{variant}" if variant else ""))
    directory = files.expand_path("--workdir", options.workdir) if options.workdir else default
    if not options.coordinator and (options.processes, options.process) != (1, 0):
        raise ConfigError("--coordinator: missing; several processes need HOST:PORT of the first, or auto")
    if options.coordinator and options.coordinator != "auto":
        _together(options.coordinator, options.processes, options.process)
    values = cli.load_config(options.config, overrides)

    from dml_jax import config as configs

    config = configs.resolve(values)
    if asks_help or options.mode == "show":
        from dml_jax import show

        if asks_help:
            parser().print_help()
            print()
            show.print_options(config)
        else:
            show.print_values(config)
        return
    keep_compiled()
    from dml_jax import run
    from dml_jax.console import Console
    from dml_jax.train import mesh, process_group
    from dml_jax.train.signals import Interrupted, Stop

    if options.coordinator:
        mesh.connect(options.coordinator, options.processes, options.process)
    console = Console(quiet=options.quiet, active=mesh.is_main_process())
    try:
        with process_group.end_together() as end_now, Stop(end_now) as stop:
            if options.mode != "train":
                stop.stop_immediately()
            match options.mode:
                case "train":
                    run.train(config, directory, console, stop)
                case "evaluate":
                    run.evaluate(config, directory, checkpoint, console, output)
                case "export":
                    run.export(config, directory, checkpoint, console)
                case _:
                    run.check(config, console)
    except Interrupted as interrupted:
        console.print(f"stopped by {interrupted}{'; the same command continues' if options.mode == 'train' else ''}")
        sys.exit(interrupted.code)


def _together(coordinator: str, processes: int, process: int) -> None:
    """Raises ConfigError unless the address is HOST:PORT and the number that of one of the processes."""
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConfigError(f"--coordinator={coordinator}: must be HOST:PORT of the first process, or auto")
    if processes < 1:
        raise ConfigError(f"--processes={processes}: must be positive")
    if not 0 <= process < processes:
        raise ConfigError(f"--process={process}: must be one of 0 to {processes - 1}, as --processes={processes}")


def keep_compiled() -> None:
    """Keeps compiled programs between runs, in the user's cache directory, unless JAX is told another."""
    import jax

    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", str(files.cache_dir() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.exit_code(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
