"""Checks that an artefact has not changed since it was written:

    dml-jax verify runs/cars_hist
    dml-jax verify birds

DIRECTORY is a run, or anything else with a manifest.json: a prepared data set, stored embeddings,
converted weights, an index, features, a cached graph. Compares the size and SHA-256 of every file,
including those of its parts. A model also embeds an image that this package contains, and the
results of a run are recomputed from its stored embeddings.

Digests reveal damage and mix-ups. They are not signatures: whoever can edit a file can also edit
manifest.json.
"""

from dml_jax import files, seal
from dml_jax.commands import cli
from dml_jax.errors import counted, require


def execute(arguments: list[str]) -> None:
    """Checks the directory and prints its kind."""
    flags = cli.Parser(__doc__)
    flags.add_argument("directory", metavar="DIRECTORY", help="a directory with a manifest.json")
    flags.add_argument("--trust_code", action="store_true", help=cli.TRUST_CODE)
    options = flags.read_plain(arguments)
    directory = files.directory("DIRECTORY", options.directory)
    problem = f"{directory}: has no {seal.MANIFEST}, so it is not a finished artefact"
    require(seal.sealed(directory), f"{problem}; give a finished run, an index or another artefact")
    manifest = seal.read(directory, "", exact=False)
    probe_distance = None
    if manifest.kind == "run":
        from dml_jax.analysis import labelled_embeddings

        settings = labelled_embeddings.Settings(quiet=True)
        labelled_embeddings.evaluate_runs(
            str(directory), settings, verify=True, trust_code=options.trust_code
        )
    if manifest.kind in ("run", "converted weights"):
        from dml_jax.inference.model import Model

        probe_distance = Model(directory, trust_code=options.trust_code).distance_of_probe()
    parts = f" and {counted(len(manifest.parts), 'part')}" if manifest.parts else ""
    print(f"{directory}: {manifest.kind}, {counted(len(manifest.files), 'file')}{parts} unchanged")
    if probe_distance is not None:
        print(f"the probe's embedding differs by {probe_distance:.2g} of its length")
