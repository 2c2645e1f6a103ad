"""Trains, evaluates and exports one experiment:

    python -m dml_jax.main --config=configs/digits_baseline.py [--config.train.steps=600 …]

Running the same command again continues an interrupted run. `--mode=show` explains every key. Exit
codes: 0: success; 2: the user has to fix the error, which one line explains; 75: a process, the
network, storage or a device failed, and repeating the command may succeed; 143 or 130: stopped by
SIGTERM or Ctrl-C, with a checkpoint of the last step.
"""

import faulthandler
import signal
import sys
from argparse import Namespace
from pathlib import Path

from dml_jax import buckets, files
from dml_jax.commands import cli, jax_setup
from dml_jax.config import Config, show
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError

MODES = ("train", "evaluate", "export", "check", "show", "compile")
VALID_WITH = {
    "checkpoint": ("evaluate", "export"),
    "output": ("evaluate",),
    "tensorboard": ("train",),
    "profile": ("train",),
    "topology": ("compile",),
}


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    add = flags.add_argument
    text = "configuration file; --config.KEY=VALUE overrides a key"
    add("--config", metavar="FILE[:VARIANT]", help=text)
    text = (
        "clean (default): report the last model of a fixed schedule; paper: report the model that "
        "the paper's authors do, selected on the test classes"
    )
    add("--protocol", choices=config_files.PROTOCOLS, help=text)
    text = "or gs://bucket/directory; default: runs/<name of the file>[-<variant>][-paper]"
    add("--workdir", metavar="DIRECTORY", help=text)
    text = (
        "train (default): train, evaluate, export and report; evaluate, export: use a checkpoint; "
        "check: run one step; show: print the resolved configuration; compile: compile a "
        "training step for --topology, on any machine"
    )
    add("--mode", choices=MODES, default="train", help=text)
    text = "for --mode=compile: h100:1, h100:8, h100:2x8, v5e:2x2, v5e:4x4 …"
    add("--topology", metavar="CHIP:DEVICES", help=text)
    add(
        "--checkpoint",
        help="to evaluate or export: reported (default), latest, best or a step",
    )
    add("--output", metavar="FILE", help="with --mode=evaluate: JSON file for the results")
    text = "write a trace of these steps to WORKDIR/profile, for XProf or ui.perfetto.dev"
    add("--profile", type=steps_to_trace, metavar="FIRST:LAST", help=text)
    add("--tensorboard", action="store_true", help="also write logs for TensorBoard")
    add("--trust_code", action="store_true", help=cli.TRUST_CODE)
    add("--quiet", action="store_true", help="print messages but no progress")
    text = "address of the first of several processes, or auto (Slurm, TPU pod, Kubernetes)"
    add("--coordinator", metavar="HOST:PORT", help=text)
    text = "number of processes; not needed with auto"
    add("--processes", type=int, default=1, help=text)
    add("--process", type=int, default=0, help="index of this process; not needed with auto")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, resolves the configuration and runs the mode."""
    options, overrides = parser().read(arguments)
    check_options(options)
    if options.tensorboard:
        cli.check_installed("--tensorboard", "tensorboardX", "tensorboardX")
    directory = work_directory(options)
    output = cli.file_to_write("--output", options.output) if options.output else None
    warn = lambda text: print(f"warning: {text}", flush=True)  # noqa: E731
    config = config_files.resolved(
        options.config, overrides, warn, options.protocol, trust_code=options.trust_code
    )
    if options.mode == "show":
        show.print_values(config)
    elif options.mode == "compile":
        compile_programs(config, options, directory)
    else:
        run_mode(options, config, directory, output)


def check_options(options: Namespace) -> None:
    """Raises ConfigError if an option is missing, invalid or conflicts with another."""
    mode, coordinator = options.mode, options.coordinator
    process, processes = options.process, options.processes
    host, _, port = (coordinator or "auto").rpartition(":")
    address = port == "auto" or (host and port.isdecimal() and 0 < int(port) < 2**16)
    for valid, problem in (
        (
            options.config,
            "--config: missing; give a file, e.g. --config=configs/digits_baseline.py",
        ),
        *(
            (
                mode in modes or not getattr(options, name),
                f"--{name} is only valid with --mode={' or '.join(modes)}",
            )
            for name, modes in VALID_WITH.items()
        ),
        (
            mode != "compile" or options.topology,
            "--topology: missing; --mode=compile needs devices, e.g. --topology=h100:8 or v5e:4x4",
        ),
        (
            coordinator or (processes, process) == (1, 0),
            "--coordinator: missing; give HOST:PORT of the first process, or auto",
        ),
        (
            address,
            f"--coordinator={coordinator}: must be HOST:PORT of the first process, or auto",
        ),
        (
            0 <= process < processes,
            f"--process={process}: must be at least 0 and less than --processes={processes}",
        ),
    ):
        cli.require(valid, problem)


def steps_to_trace(profile: str) -> tuple[int, int]:
    first, _, last = profile.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        problem = "must be FIRST:LAST, two steps in order, e.g. 10:20"
        raise ConfigError(f"--profile={profile}: {problem}")
    return int(first), int(last)


def work_directory(options: Namespace) -> Path | str:
    """`--workdir` or, by default, `runs/<name of the file>[-<variant>][-paper]`."""
    if options.workdir:
        if files.is_url(options.workdir):
            return buckets.check_url("--workdir", options.workdir)
        return files.expand_path("--workdir", options.workdir)
    file, _, variant = options.config.partition(":")
    protocol = "" if options.protocol == "clean" else options.protocol
    return Path("runs") / "-".join(filter(None, (Path(file).stem, variant, protocol)))


def compile_programs(config: Config, options: Namespace, directory: Path | str) -> None:
    """Compiles for `--topology`; prints the costs of a step and writes them to `compile.json`."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # this machine's accelerators are not used
    from dml_jax.console import Console
    from dml_jax.lab import compilation

    console = Console(quiet=options.quiet)
    topology = compilation.find_topology(options.topology)
    console.print("compiling the training step")
    costs = compilation.costs(config, topology)
    name, size = topology.name, config.data.batch_size
    title = f"{config.name}, batch {size}, {config.train.precision}, on {name}"
    console.rich.print(compilation.table(title, costs))
    file = Path(directory) / "compile.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"name": config.name, "topology": name, "batch_size": size, **costs}
    files.write_json(file, content)
    console.print(f"written: {file}")


def run_mode(options: Namespace, config: Config, where: Path | str, output: Path | None) -> None:
    jax_setup.enable_compilation_cache()
    jax_setup.keep_freed_memory()
    from dml_jax import run
    from dml_jax.console import Console
    from dml_jax.train.distributed import device_mesh, process_group
    from dml_jax.train.distributed.stop_signals import Interrupted, Stop

    mode = options.mode
    faulthandler.register(signal.SIGUSR1, 2)  # prints all stacks to standard error
    if options.coordinator:
        process_group.connect(options.coordinator, options.processes, options.process)
    console = Console(quiet=options.quiet, active=device_mesh.is_main_process())
    local = buckets.local_files("--workdir", where)
    together = process_group.end_together(options.coordinator)
    checkpoint = options.checkpoint or "reported"
    try:
        with together, local as directory, Stop() as stop, run.memory(config):
            console.named = {str(directory): str(where)}
            if mode != "train":
                stop.stop_immediately()
            match mode:
                case "train":
                    show = options.tensorboard
                    run.train(config, directory, console, stop, show, options.profile)
                case "evaluate":
                    run.evaluate(config, directory, checkpoint, console, output)
                case "export":
                    run.export(config, directory, checkpoint, console)
                case "check":
                    run.check(config, console)
    except Interrupted as interrupted:
        continues = "; run the same command again to continue" if mode == "train" else ""
        console.print(f"stopped by {interrupted}{continues}")
        sys.exit(interrupted.code)


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.exit_code(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
