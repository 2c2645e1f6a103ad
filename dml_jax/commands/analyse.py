"""Analyses a model: figures and their numbers, in a report:

    dml-jax analyse --model=runs/digits_baseline [--what=tsne,classes] [--split=test]
    dml-jax analyse --model=lite0 --data=photos/ [--output=analysis]
    dml-jax analyse --model=runs/A --compare=runs/B,untrained [--what=spectra,tsne]
                    [--output=analysis]

The first command analyses a run on its own data, the second any model on labelled images: a folder
with one subfolder per class, or the test split of a prepared data set. By default, it makes all
analyses that apply. For curves over training, train with --config.train.keep_every=N. Writes
analysis/*.png and *.csv to the work directory and adds them to report.html, which already contains
the first three. With --data, --compare or --output, writes figures and report.html to --output
(default: analysis). --compare shows several models side by side: runs (with --data, any models),
and the first run before training ("untrained").

  retrieval     retrieved images
  classes       Recall@1 by class
  components    map of the first principal components
  overfitting   Recall@1 of training and test classes over the checkpoints; not with --data
  spectra       singular values, density and effective rank, also of parts of an embedding
  tsne          map with thumbnails
"""

from dml_jax.commands import cli


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__ or "")
    cli.add_model(flags)
    for name, metavar, text in (
        ("compare", "MODEL,MODEL", "more models to compare, or untrained"),
        ("data", "DIRECTORY", "labelled images: class folders or a prepared data set"),
        ("output", "DIRECTORY", "directory to write to, instead of the run (default: analysis)"),
        ("what", "NAME,NAME", "analyses (default: all that apply)"),
        ("classes", "NAME,NAME|N", "classes shown in maps: names, or a number to draw at random"),
    ):
        flags.add_argument(f"--{name}", metavar=metavar, help=text)
    flags.add_argument("--split", choices=cli.SPLIT_NAMES, default="test", help="default: test")
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, runs the analyses and updates the report."""
    options, overrides = cli.read_with_data(parser(), arguments)
    from dml_jax import analyses
    from dml_jax.commands import jax_setup

    jax_setup.enable_compilation_cache()
    jax_setup.keep_freed_memory()
    analyses.analyse(analyses.Request(**vars(options), overrides=overrides))
