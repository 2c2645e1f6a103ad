"""Every method and baseline on Omniglot with the same network, data and number of steps, over several seeds.

    python -m benchmarks.omniglot --data=data/omniglot --output=runs/omniglot [--seeds=0,1,2] [--jobs=2] [--only=hist,…]
        [--steps=600]

Variants of a paper's configuration can be rows, too: `--only=diva:discriminative,diva:rotnet`. Each run is a process of
its own, pinned to one core; the results of finished runs are reused. Prints a table of means and standard deviations
over the seeds, in % (Recall@1, MAP@R, NMI), and the seconds per 1,000 steps on one core: the median over the lines of
`timing.jsonl` of the fastest seed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from configs.recipes.small_baseline import VARIANTS
from dml_jax import cli
from dml_jax.errors import ConfigError
from dml_jax.options.fields import suggest

PAPERS = ("hist", "mpn", "crt", "diva", "group_loss")
METRICS = ("recall@1", "map@r", "nmi")


def config_path(name: str) -> str:
    """The configuration of a row, as the value of --config."""
    paper, colon, variant = name.partition(":")
    return f"configs/omniglot_{paper}.py{colon}{variant}" if paper in PAPERS else f"configs/omniglot_baseline.py:{name}"


def run_directory(output: Path, name: str, seed: int) -> Path:
    """The work directory of a run."""
    return output / f"{name.replace(':', '-')}-{seed}"


def finished(workdir: Path, steps: int) -> bool:
    """Whether the directory holds a finished run of `steps` steps."""
    return (workdir / "results.json").exists() and json.loads((workdir / "results.json").read_text())["steps"] == steps


def check_rows(names: Sequence[str]) -> None:
    """Raises ConfigError unless every name is a row that can be run."""
    for name in names:
        if name.partition(":")[0] not in PAPERS and name not in VARIANTS:
            raise ConfigError(f"--only={name}: there is no such row; {suggest(name, (*PAPERS, *VARIANTS))}")
        try:
            cli.load_config(config_path(name), {})
        except ConfigError as error:
            raise ConfigError(f"--only={name}: {error}") from None


def run(name: str, seed: int, steps: int, data: Path, output: Path, core: int) -> bool:
    """Trains and evaluates one seed of one row on one core unless it is finished; returns whether it succeeded."""
    workdir = run_directory(output, name, seed)
    if finished(workdir, steps):
        return True
    command = [
        sys.executable, "-m", "dml_jax.main", f"--config={config_path(name)}", f"--workdir={workdir}",
        f"--config.seed={seed}", f"--config.data.path={data}", "--config.evaluation.controls=false", "--quiet",
        f"--config.train.steps={steps}", f"--config.train.evaluate_every={steps // 2}",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        done = subprocess.run(
            command, stdout=log, stderr=log, preexec_fn=lambda: os.sched_setaffinity(0, {core}), check=False
        )
        log.seek(0)
        if done.returncode:
            lines = log.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), f"exit code {done.returncode}")
            print(f"{name}, seed {seed}: {last}", file=sys.stderr, flush=True)
        else:
            results = json.loads((workdir / "results.json").read_text())
            print(f"{name}, seed {seed}: Recall@1 {results['recall@1']:.4f}", file=sys.stderr, flush=True)
    return done.returncode == 0


def row(name: str, seeds: Sequence[int], steps: int, output: Path) -> str:
    """One row of the table, over the finished seeds."""
    results, seconds = [], []
    for seed in seeds:
        workdir = run_directory(output, name, seed)
        if not finished(workdir, steps):
            continue
        results.append(json.loads((workdir / "results.json").read_text()))
        rates = [json.loads(line)["images_per_second"] for line in (workdir / "timing.jsonl").read_text().splitlines()]
        batch = json.loads((workdir / "config.json").read_text())["config"]["data"]["batch_size"]
        seconds.append(1000 * batch / float(np.median(rates)))
    if not results:
        return f"| {name} | | | | | |"
    cells = []
    for metric in METRICS:
        values = 100 * np.array([result[metric] for result in results])
        spread = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
        cells.append(f"{values.mean():.1f}{spread}")
    return f"| {name} | {' | '.join(cells)} | {min(seconds):.0f} | {len(results)} |"


def execute() -> bool:
    """Starts the runs that are not finished and prints the table; returns whether all runs succeeded.

    Raises:
      ConfigError: a row or the data directory does not exist.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/omniglot"))
    parser.add_argument("--output", type=Path, default=Path("runs/omniglot"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default=",".join((*PAPERS, *VARIANTS)))
    options = parser.parse_args()
    names, seeds = options.only.split(","), [int(seed) for seed in options.seeds.split(",")]
    check_rows(names)
    missing = any(
        not finished(run_directory(options.output, name, seed), options.steps) for name in names for seed in seeds
    )
    if missing and not options.data.is_dir():
        raise ConfigError(f"--data={options.data}: there is no such directory; give that of the prepared Omniglot")

    cores: SimpleQueue[int] = SimpleQueue()
    for core in range(options.jobs):
        cores.put(core)

    def job(task: tuple[int, str]) -> bool:
        core = cores.get()
        try:
            return run(task[1], task[0], options.steps, options.data, options.output, core)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(options.jobs) as pool:
        succeeded = list(pool.map(job, [(seed, name) for seed in seeds for name in names]))
    print("| method | Recall@1 | MAP@R | NMI | s per 1,000 steps | seeds |\n|---|---|---|---|---|---|")
    for name in names:
        print(row(name, seeds, options.steps, options.output))
    return all(succeeded)


def main() -> int:
    """Runs the command; returns its exit code: 2 for invalid options, 1 if a run failed."""
    succeeded: list[bool] = []
    return cli.exit_code(lambda: succeeded.append(execute())) or int(succeeded == [False])


if __name__ == "__main__":
    sys.exit(main())
