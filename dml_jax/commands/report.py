"""Tables over runs: means and spreads over seeds beside published numbers, significance, time and memory:

    dml-jax report runs/studies/hist_layers                  the table of a study
    dml-jax report runs/a-0 runs/a-1 runs/b-0 --output=DIR    any runs; those that differ only in the seed are
                                                                       one row

Prints the tables and writes report.md, report.tex, report.csv and report.html: into the directory of a study, or into
--output. Runs with other test images or another protocol are in tables of their own.
"""

from dml_jax import buckets, files
from dml_jax.commands import cli
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.studies import plan, search_report, summary


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("runs", nargs="*", metavar="DIRECTORY", help="of a study, or work directories of runs")
    flags.add_argument("--output", metavar="DIRECTORY", help="where to write; default for a study: its directory")
    flags.add_argument("--metric", help="by which rows are compared; default: that of the study, or recall@1")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and the runs, prints and writes the tables."""
    options = parser().read_plain(arguments, "dml-jax report")
    if not options.runs:
        raise ConfigError("DIRECTORY: missing; give the directory of a study or work directories of runs")
    directories = [
        buckets.read_copy("DIRECTORY", name) if files.is_url(name) else files.expand_path("DIRECTORY", name)
        for name in options.runs
    ]
    output = files.expand_path("--output", options.output) if options.output else None
    if output is not None and (output.is_file() or files.below_a_file(output)):
        raise ConfigError(f"--output={output}: is a file or below one; give a directory")

    study = plan.read_facts(directories[0]) if len(directories) == 1 else None
    if study and "search" in study:
        search_report.publish(directories[0], output or directories[0], Console().rich)
        return
    found = summary.of_study(directories[0]) if study else summary.of_runs(directories, "recall@1")
    if options.metric:
        found = found._replace(metric=options.metric)
    summary.publish(found, output or (directories[0] if study else None), Console().rich)
