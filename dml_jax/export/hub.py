"""Runs on the Hugging Face hub: pushed with a model card, pulled for
`dml_jax.load("hf://user/name")` (extra "hub").

A repository holds `config.json`, `identity.json`, `results.json`, `model/<step>.safetensors`,
`manifest.json` and `README.md`, which alone is not pulled; none of them can contain code.
"""

import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dml_jax import files, identity, manifest
from dml_jax.data.files import SPLITS
from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import metric_table
from dml_jax.remote import hub_client
from dml_jax.train.embedding import Variables
from dml_jax.train.model import TrainedModel
from dml_jax.train.records import model_files, workdir
from dml_jax.train.records.model_files import MODEL

PREFIX = "hf://"
MODELS = f"{MODEL}/*{model_files.SUFFIX}"
PULLED = ("config.json", identity.NAME, "results.json", MODELS, manifest.NAME)
# Files that an earlier push of another model may have left; `pull` would otherwise return the model
# of the highest step.
REPLACED = (MODELS, "model.onnx", *(f"{split}.parquet" for split in SPLITS))
LOADING = """## How to use it

```python
import dml_jax

model = dml_jax.load("hf://{repository}")
embeddings = model.embed(["a.jpg", "b.jpg"])  # float32 [2, D], rows of unit length
```
"""


def create(repository: str, *, private: bool) -> None:
    """Creates the repository unless it exists, so that a wrong name or a missing login fails before
    any other work."""
    with hub_client.asking(f"--push={repository}", ConfigError, "created") as library:
        library.HfApi().create_repo(repository, private=private, exist_ok=True)


def results_of(directory: Path, model: Variables) -> dict[str, Any]:
    """The results of a run; raises `DataError` if they are missing or describe another model than
    `model`."""
    results = workdir.read_results(directory)
    reported, step = results.get("step"), int(model.step)
    if reported != step:
        what = f"results.json is for step {reported}, but the model is from step {step}"
        raise DataError(f"{directory}: {what}; finish the run first")
    return results


def push(repository: str, directory: Path, model: TrainedModel, exported: Sequence[Path]) -> None:
    """Uploads a run with its model card and further files, replacing an earlier push."""
    record, results = workdir.read_config(directory), results_of(directory, model)
    config = record["config"]
    for values, key in (
        (config, "init_from"),
        (config["data"], "path"),
        (config["backbone"], "pretrained"),
        (config["method"], "teacher"),
    ):
        if values.get(key):
            values[key] = Path(values[key]).name  # drops folders of this machine
    with tempfile.TemporaryDirectory() as name:
        staged = Path(name)
        files.write_json(staged / "config.json", record)
        files.write_json(staged / "results.json", results)
        identity.write(staged, model.identity(few=True))
        model_files.write(staged / MODEL, model, record)
        workdir.finish(staged, MODEL)
        (staged / "README.md").write_text(card(repository, config, results), encoding="utf-8")
        for path in exported:
            shutil.copy(path, staged)
        with (
            hub_client.asking(f"--push={repository}", DataError, "uploaded") as library,
            warnings.catch_warnings(action="ignore"),  # about Parquet files outside data sets
        ):
            library.utils.disable_progress_bars()  # an error would be appended to their line
            library.HfApi().upload_folder(
                repo_id=repository, folder_path=staged, delete_patterns=list(REPLACED)
            )


def card(repository: str, config: dict[str, Any], results: dict[str, Any]) -> str:
    """The model card: metadata in YAML, the results with their protocol, and how to load the
    model."""
    library = hub_client.client(DataError, f"--push={repository}")
    data, method = config["data"]["name"], config["method"]["name"]
    columns = metric_table.columns(results)
    metadata = library.ModelCardData(
        library_name="dml_jax",
        pipeline_tag="image-feature-extraction",
        tags=["deep-metric-learning", "image-retrieval", method, config["backbone"]["name"]],
        model_name=config["name"],
        eval_results=[
            library.EvalResult(
                task_type="image-feature-extraction", task_name="Image retrieval",
                dataset_type=data, dataset_name=data,
                metric_type=entry.name, metric_name=entry.heading, metric_value=results[entry.name],
            )
            for entry in columns
        ],
    )  # fmt: skip
    head = "".join(f"| {entry.heading} " for entry in columns)
    body = "".join(f"| {metric_table.cell(results, entry)} " for entry in columns)
    return (
        f"---\n{metadata.to_yaml()}\n---\n\n# {config['name']}\n\nImage embeddings trained with "
        f"{method} on {data} ({config['backbone']['name']}), by dml_jax.\n\n## Results on the test "
        f"split, in %\n\n{head}|\n{'|---' * len(columns)}|\n{body}|\n\n± is one "
        f"standard error over the queries. Model selection: {results['model']}. Protocol: "
        f"{results['protocol']}.\n\n{LOADING.format(repository=repository)}"
    )


def pull(address: str) -> Path:
    """Local copy of a pushed run, downloaded if necessary.

    `address` is `hf://user/name`, optionally followed by `@` and a branch, tag or commit.
    """
    repository, _, revision = address.removeprefix(PREFIX).partition("@")
    with hub_client.asking(address, DataError) as library:
        patterns = list(PULLED)
        run = library.snapshot_download(
            repository, revision=revision or None, allow_patterns=patterns
        )
    if not all(any(Path(run).glob(pattern)) for pattern in PULLED):
        raise DataError(f"{address}: is not a run of dml_jax; it must contain {', '.join(PULLED)}")
    return Path(run)
