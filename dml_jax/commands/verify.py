"""Checks that an artefact is as it was written:

    dml-jax verify runs/cars_hist
    dml-jax verify birds

DIRECTORY is a run, or anything else with a manifest.json: a prepared data set, stored embeddings,
converted weights, an index, features, a graph in the cache. Compares the size and SHA-256 of every
file, also of the parts that belong to it. A model also computes the embedding of an image that is
kept with this package, and the results of a run are computed again from its stored embeddings.

Digests notice damage and mix-ups. They are no signature: whoever can edit a file can also edit
manifest.json.
"""

from dml_jax import files, seal
from dml_jax.commands import cli
from dml_jax.errors import counted, require


def execute(arguments: list[str]) -> None:
    """Checks the directory and prints what it is."""
    flags = cli.Parser(__doc__)
    flags.add_argument("directory", metavar="DIRECTORY", help="a directory with a manifest.json")
    flags.add_argument("--trust_code", action="store_true", help=cli.TRUST_CODE)
    options = flags.read_plain(arguments)
    directory = files.directory("DIRECTORY", options.directory)
    problem = f"{directory}: has no {seal.MANIFEST}, so dml_jax has not written it or not finished"
    require(seal.sealed(directory), f"{problem}; give a finished run, an index or another artefact")
    stated = seal.read(directory, "", exact=False)
    distance = None
    if stated.kind == "run":
        from dml_jax.analysis import labelled_embeddings

        settings = labelled_embeddings.Settings(quiet=True)
        labelled_embeddings.evaluate_runs(
            str(directory), settings, verify=True, trust_code=options.trust_code
        )
    if stated.kind in ("run", "converted weights"):
        from dml_jax.inference.model import Model

        distance = Model(directory, trust_code=options.trust_code).distance_of_probe()
    parts = f" and {counted(len(stated.parts), 'part')}" if stated.parts else ""
    print(f"{directory}: {stated.kind}, {counted(len(stated.files), 'file')}{parts} as written")
    if distance is not None:
        print(f"the probe's embedding differs by {distance:.2g} of its length")
