"""Exports of a model for other programs and to the Hugging Face hub."""

import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from dml_jax.errors import DataError
from dml_jax.export import embedding_files, hub, programs
from dml_jax.inference import graphs
from dml_jax.train import model as models


def export_model(
    directory: Path,
    forms: Collection[str],
    output: Path,
    *,
    checkpoint: str = "reported",
    trust_code: bool = False,
    push: str = "",
    private: bool = False,
    say: Callable[[str], object] = print,
) -> list[Path]:
    """Writes a model as "onnx" or "parquet", and uploads it with these to a repository of the hub.

    Args:
      directory: of the run or of converted weights; "parquet" and `push` need a finished run.
      push: repository "user/name"; empty to upload nothing.
      private: only its owner sees a new repository.
      say: gets a line for each file and the address of the repository.

    Returns:
      The files in `output`: model.onnx, and <split>.parquet of the run's embeddings.

    Raises:
      DataError: the run has no embeddings or results, or the model cannot be converted.
    """
    load = partial(models.load, directory, checkpoint, trust_code=trust_code)
    # bfloat16 is rare among the operators of ONNX runtimes.
    trained = load(dtype="float32") if "onnx" in forms else None
    manifests = directory.glob("embeddings/*/manifest.json")
    splits = sorted(path.parent for path in manifests) if "parquet" in forms else []
    if "parquet" in forms and not splits:
        raise DataError(
            f"{directory}: holds no embeddings; write them with --mode=export of dml_jax.main"
        )
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for split in splits:
        written.append(output / f"{split.name}.parquet")
        embedding_files.write_parquet(written[-1], embedding_files.of_run(directory, split.name))
        say(str(written[-1]))
    if trained:
        file = output / "model.onnx"
        written.append(file)
        identity = trained.identity(few=True)
        function = programs.function_of(trained)
        difference = programs.write_onnx(file, function, trained.shape, identity)
        say(f"{file}: largest difference from the model {difference:.1e}")
        if trained.stored:  # the reported model, in its own precision
            graphs.keep(identity, partial(shutil.copy, file))
    if push:
        hub.push(push, directory, load(), written, private=private)
        say(f"https://huggingface.co/{push}")
    return written
