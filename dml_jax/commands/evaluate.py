"""Evaluates the stored embeddings of runs, a model on labelled images, or the embeddings of any
model:

    dml-jax evaluate --model=runs/a[,runs/b …] [--weights=1,2] [--output=FILE] [--export=runs/ab]
    dml-jax evaluate --model=lite0 --data=photos/
    dml-jax evaluate --embeddings=embeddings.npy --labels=labels.npy
    dml-jax evaluate --embeddings=gallery.npy --labels=gallery_labels.npy
                               --query_embeddings=queries.npy --query_labels=query_labels.npy
    dml-jax evaluate --engine=ray --embeddings=shop/embeddings.npy --labels=labels.npy
                               --export=neighbors

Several runs are evaluated one by one and combined. The combination concatenates the unit rows of
the runs and divides by the square root of their number, so the cosine of two images is the mean of
the runs' cosines (Seidenschwarz et al., ICML 2021, sec. 4.4); with weights w, the mean weighted by
w². The settings of the first run's evaluation are the defaults. --export writes the embeddings and
results.json in the layout of a run. --verify checks that all files of finished runs are as they
were written, that the results follow from the stored embeddings, and that the models still compute
the embedding of the probe image that the runs state.

Images are a folder with one subfolder per class, or the test split of a prepared data set. Files of
embeddings are real numbers [N, D], memory-mapped, so they may be larger than the memory. Labels are
integers or strings [N], or a text file with one class per line; with several classes per row, 0 and
1 [N, C], or a .tsv file with the classes of a row on each line. Without queries, every row searches
all other rows. --rerank adds the metrics after k-reciprocal re-ranking, which loads the embeddings
into memory.

With --engine=ray, the machines of a Ray cluster write the nearest rows of blocks of queries into
--export, and the same command continues after an interruption.
"""

import sys
import time
from pathlib import Path
from typing import Any

from dml_jax import files
from dml_jax.commands import cli, evaluate_options
from dml_jax.errors import refuse


def execute(arguments: list[str]) -> None:
    """Reads the command line, evaluates, prints the table and writes the output."""
    options = evaluate_options.parser(__doc__).read_plain(arguments)
    refuse(evaluate_options.problems(options))
    cli.check_engine(options)
    output = cli.file_to_write("--output", options.output) if options.output else None
    export = files.expand_path("--export", options.export) if options.export else None
    from dml_jax.analysis import labelled_embeddings
    from dml_jax.analysis.labelled_embeddings import Settings
    from dml_jax.commands import jax_setup
    from dml_jax.config import modules

    for key, path in (("--metric", options.metric), ("--relation", options.relation)):
        if "." in path:
            sys.path.insert(0, "")
            modules.import_module(key, path, path.rpartition(".")[0])
            modules.function(key, path)
    names = ("metric", "protocol", "lone_queries", "rerank", "session", "relation")
    settings = Settings(
        tuple(dict.fromkeys(options.ks)),
        **{name: getattr(options, name) for name in (*names, "quiet")},
        clustering=not options.no_clustering,
    )
    given = {key: value for key in evaluate_options.FILES if (value := getattr(options, key))}
    started, results = time.monotonic(), dict[str, Any]()
    if options.engine == "ray":
        address, directory = options.address, export or Path()
        results = labelled_embeddings.evaluate_blocks(given, directory, address, settings)
    elif options.model and options.data:
        model, splits = jax_setup.load_on_images(options)
        results = labelled_embeddings.evaluate_images(model, splits, settings)
        results |= {"model": options.model, "data": options.data}
    elif options.model:
        further: Any = {"weights": options.weights, "export": export, "verify": options.verify}
        further["trust_code"] = options.trust_code
        results = labelled_embeddings.evaluate_runs(options.model, settings, **further)
    else:
        results = labelled_embeddings.evaluate_files(given, settings) | given
    results["seconds"] = round(time.monotonic() - started, 3)
    if output is not None:
        files.write_json(output, results)
    labelled_embeddings.print_results(results, output)
