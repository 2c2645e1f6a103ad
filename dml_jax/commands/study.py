"""Trains the runs of a study that are missing, and prints its table:

    dml-jax study --study=configs/studies/hist_layers.py [--seeds=0,1,2] [--jobs=2] [--config.KEY=VALUE …]
    dml-jax study --compare configs/a.py [configs/b.py:variant …] --seeds=0,1,2

Each trial is a work directory below --root; the same command continues what was interrupted. Overrides apply to every
trial. With --engine=ray, trials run on all machines of a Ray cluster, which must see the same files; a search may also
be run by several commands at once, if they share the directory and the --storage.
"""

import shlex
import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.config.files import PROTOCOLS
from dml_jax.console import Console
from dml_jax.errors import ConfigError, UserError
from dml_jax.remote import ray_cluster
from dml_jax.studies import group_tables, lengths, outcomes, plan, runner, search, search_report, slots, summary
from dml_jax.studies.definition import Study
from dml_jax.studies.plan import Settings, Trial
from dml_jax.studies.slots import Slot
from dml_jax.train.distributed import xla_flags

say = partial(print, flush=True)  # at once


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("--study", metavar="FILE[:VARIANT]", help="study file, e.g. configs/studies/hist_layers.py")
    flags.add_argument(
        "--compare", nargs="+", metavar="CONFIG", help="configurations instead of a study; one with several seeds"
    )
    flags.add_argument("--root", metavar="DIRECTORY", help="of the study; default: runs/studies/<name of the study>")
    flags.add_argument("--seeds", help="e.g. 0,1,2; default: those of the study")
    flags.add_argument("--jobs", type=int, default=1, help="trials at a time on each machine; its devices are divided")
    flags.add_argument(
        "--protocol", choices=PROTOCOLS, default="clean", help="clean (default), or paper: select on the test classes"
    )
    flags.add_argument("--smoke", action="store_true", help="two trials of a few steps on the built-in digits")
    flags.add_argument("--list", action="store_true", help="show the trials and how long they take, train nothing")
    cli.add_engine(flags)
    flags.add_argument("--trials", type=int, help="number of trials of a search; default: that of the study")
    flags.add_argument("--storage", metavar="URL", help="of a search; default: sqlite:///<root>/search.db")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and the study, trains what is missing, prints and writes the table.

    Raises UserError if a trial failed, and SystemExit after a signal.
    """
    options, overrides = parser().read(arguments)
    if (options.study is None) == (options.compare is None):
        raise ConfigError("--study: give a study file, or --compare with configurations")
    cli.check_engine(options)
    if options.jobs < 1:
        raise ConfigError(f"--jobs={options.jobs}: must be at least 1")
    name, study = plan.load(options.study) if options.study else plan.comparison(options.compare)
    default = Path("runs/studies") / (f"{name}-smoke" if options.smoke else name)
    root = files.expand_path("--root", options.root) if options.root else default
    seeds = study.seeds
    if options.seeds is not None:
        seeds = cli.numbers("--seeds", options.seeds, int, "whole numbers, e.g. 0,1,2")
    if options.compare and len(options.compare) == 1 and len(set(seeds)) < 2 and not options.smoke:
        raise ConfigError(f"--compare {options.compare[0]}: one configuration needs several seeds, e.g. --seeds=0,1,2")
    settings = plan.Settings(root, seeds, overrides, options.protocol == "paper", options.smoke)
    again = shlex.join(["dml-jax", "study", *(a for a in arguments if a != "--list")])
    if study.search is not None:
        run_search(name, study, settings, options)
        return
    for option in ("trials", "storage"):
        if getattr(options, option) is not None:
            raise ConfigError(f"--{option}: {name} is not a search; leave it out")
    trials = lengths.apart(plan.trials(study, settings))
    plan.check_root(root, name, trials, smoke=options.smoke)
    if options.list:
        show_list(root, trials, options.jobs, again)
        return
    plan.check_sources(trials)
    with slots_of(options) as free:
        plan.write_facts(root, name, study, settings, {"trials": plan.state_trials(trials)})
        with runner.locked(root):
            for trial in trials:
                runner.problem_file(root, trial.name).unlink(missing_ok=True)  # those that failed run again
            stop_if(runner.run_all(root, trials, free, say))
    summary.publish(summary.of_study(root), root, Console().rich)
    done = outcomes.finished(trials)
    failed = [trial for trial in trials if trial.name not in done]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(trials)} trials failed, e.g. {failed[0].name}; see the logs in {root / 'trials'}; "
            "the same command runs them again"
        )


@contextmanager
def slots_of(options: Namespace) -> Iterator[Sequence[Slot]]:
    """Where the processes of trials may run; ConfigError for too many jobs, or a cluster that cannot be used."""
    fast = {"XLA_FLAGS": xla_flags.with_known(xla_flags.UNOPTIMIZED)} if options.smoke else {}
    if options.engine == "ray":
        with ray_cluster.connect(options.address) as ray:
            yield slots.on_ray(ray, options.jobs, fast)
    else:
        yield slots.local(options.jobs, fast)


def stop_if(code: int) -> None:
    """Ends the command if a signal has stopped it."""
    if code:
        print("stopped; the same command continues", flush=True)
        sys.exit(code)


def run_search(name: str, study: Study, settings: Settings, options: Namespace) -> None:
    """Runs a search and prints its table."""
    assert study.search is not None
    wanted = study.search if options.trials is None else replace(study.search, trials=options.trials)
    root = settings.root
    if len(settings.seeds) != 1:
        raise ConfigError(
            f"--seeds={','.join(map(str, settings.seeds))}: a search trains every trial with one seed; give one"
        )
    search.library()
    search.check_space(wanted)
    first = search.make_trial(wanted, settings, 0, search.example(wanted))
    plan.check_root(root, name, [], smoke=settings.smoke)
    label = f"{name}-{root.name}"
    before = plan.read_facts(root)
    present = f"sqlite:///{root.resolve() / 'search.db'}"
    began = before is not None and any(root.glob("trial-*"))  # otherwise any storage will do
    if before and began and not before["search"]["storage"].endswith(f"/{root.name}/search.db"):  # not the default
        present = before["search"]["storage"]
    storage: str = options.storage or present
    stated = {
        "name": label, "share": wanted.validation_share, "overrides": dict(settings.overrides),
        "seed": settings.seeds[0], "storage": search.without_password(storage),
    }  # fmt: skip
    if before:
        there = stated | before["search"] | {"protocol": before["paper"]}
        there["storage"] = search.without_password(present if began else storage)
        here = stated | {"protocol": settings.paper}
        words = ("protocol", "overrides", "seed", "share", "storage")
        if different := " and ".join(word for word in words if there[word] != here[word]):
            raise ConfigError(f"--root={root}: belongs to this search with another {different}; give another directory")
    if options.list:
        ended = search.count_ended(storage, label) if before else 0
        show_search(root, wanted.trials, ended, options.jobs)
        return
    plan.check_sources([first])
    with slots_of(options) as free:
        plan.write_facts(root, name, study, settings, {"search": stated})
        stop_if(search.run(label, wanted, settings, study.metric, free, storage, say))
    search_report.publish(root, root, Console().rich, storage)


def show_search(root: Path, total: int, ended: int, jobs: int) -> None:
    """Prints how many trials of a search are missing, and how long they take."""
    finished = [path for path in root.glob("trial-*") if outcomes.read_results(path)]
    seconds = [outcomes.read_run(path).timing.get("seconds", 0.0) for path in finished]
    missing = max(0, total - ended)
    print(f"{total} trials, {ended} ended, {len(finished)} of them trained to the last step")
    show_total(missing * statistics.median(seconds) if seconds else None, jobs, missing)


def show_list(root: Path, trials: Sequence["Trial"], jobs: int, again: str) -> None:
    """Prints the trials with their states and how long they take."""
    done = outcomes.finished(trials)
    problems = runner.problems(root, trials, done)
    rates: dict[str, float] = {}  # seconds per unit of length, by row
    for trial in trials:
        if trial.config and trial.name in done:
            run = outcomes.read_run(trial.directory)
            rates[trial.row] = run.timing.get("seconds", 0.0) / length(trial)
    total, left = 0.0, 0
    for trial in trials:
        state, estimate = "to be trained", ""
        if trial.name in done:
            state = "finished"
        elif trial.name in problems:
            state = f"failed: {problems[trial.name]}"
        else:
            left += 1
            if rates and trial.config:
                seconds = length(trial) * rates.get(trial.row, statistics.median(rates.values()))
                total += seconds
                estimate = f"about {group_tables.duration(seconds)}"
            if (trial.directory / "checkpoints").exists():
                state = "begun"
        print(f"{trial.name:40s} {state:14s} {estimate}".rstrip())
    if problems:
        print(f"{len(problems)} failed; to try again: {again}")
    if left or not problems:
        show_total(total if rates else None, jobs, left)


def length(trial: Trial) -> float:
    """Steps or epochs of a trial."""
    assert trial.config is not None
    train = trial.config.train
    return float(train.steps or train.epochs + train.warmup_epochs)


def show_total(seconds: float | None, jobs: int, missing: int) -> None:
    """Prints the sum of the estimates."""
    if not missing:
        print("nothing to do")
    elif seconds is None:
        print(f"{missing} to do; how long is known when the first is finished")
    else:
        print(f"{missing} to do, about {group_tables.duration(seconds / jobs)} of training with --jobs={jobs}")
