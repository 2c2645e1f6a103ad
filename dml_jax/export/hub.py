"""Runs on the Hugging Face hub: pushed with a model card, pulled for
`dml_jax.load("hf://user/name")` (extra "hub").

A repository holds a run with its model as safetensors (`model/`), and a model card, `README.md`,
which alone is not pulled; none of the files can contain code.
"""

import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from dml_jax import files, seal
from dml_jax.data.files import SPLITS
from dml_jax.errors import DataError
from dml_jax.evaluation import metric_table
from dml_jax.remote import hub
from dml_jax.train.model import TrainedModel
from dml_jax.train.records import model_files, workdir
from dml_jax.train.records.model_files import DIRECTORY as MODEL

PREFIX = "hf://"
PULLED = ("config.json", "results.json", f"{MODEL}/*", seal.MANIFEST)
# Files that an earlier push of another model may have left.
REPLACED = (f"{MODEL}/*", "model.onnx", *(f"{split}.parquet" for split in SPLITS))
CARD = """---
library_name: dml_jax
pipeline_tag: image-feature-extraction
tags: [deep-metric-learning, image-retrieval]
---

# {name}

Image embeddings trained with {method} on {data} ({backbone}), by dml_jax.

Results on the test split, in % (± one standard error over the queries); model selection: {model};
protocol: {protocol}.

{table}

```python
import dml_jax

embeddings = dml_jax.load("hf://{repository}").embed(["a.jpg", "b.jpg"])  # float32 [2, D], unit rows
```
"""  # noqa: E501


def push(
    repository: str,
    directory: Path,
    model: TrainedModel,
    exported: Sequence[Path],
    *,
    private: bool,
) -> None:
    """Uploads a run with its model card and further files, replacing an earlier push; raises
    `DataError` if the run's results are missing or describe another model than `model`."""
    record, results = workdir.read_config(directory), workdir.read_results(directory)
    reported, step = results.get("step"), int(model.step)
    if reported != step:
        what = f"results.json is for step {reported}, but the model is from step {step}"
        raise DataError(f"{directory}: {what}; finish the run first")
    config = record["config"]
    for values, key in (
        (config, "init_from"),
        (config["data"], "path"),
        (config["backbone"], "pretrained"),
        (config["method"], "teacher"),
    ):
        if values.get(key):
            values[key] = Path(values[key]).name  # drops folders of this machine
    columns = metric_table.columns(results)
    cells = [metric_table.cell(results, column) for column in columns]
    rows = [column.heading for column in columns], ["---"] * len(columns), cells
    card = CARD.format(
        repository=repository,
        name=config["name"],
        model=results["model"],
        protocol=results["protocol"],
        table="\n".join(f"| {' | '.join(row)} |" for row in rows),
        **{part: config[part]["name"] for part in ("method", "data", "backbone")},
    )
    with tempfile.TemporaryDirectory() as name:
        staged = Path(name)
        files.write_json(staged / "config.json", record)
        files.write_json(staged / "results.json", results)
        model_files.write(staged / MODEL, model, record)
        workdir.finish(staged, MODEL, model.identity(few=True))
        (staged / "README.md").write_text(card, encoding="utf-8")
        for path in exported:
            shutil.copy(path, staged)
        with (
            hub.asking(f"--push={repository}", DataError) as library,
            warnings.catch_warnings(action="ignore"),  # about Parquet files outside data sets
        ):
            api = library.HfApi()
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repository, folder_path=staged, delete_patterns=list(REPLACED)
            )


def pull(address: str) -> Path:
    """Local copy of a pushed run, downloaded if necessary.

    `address` is `hf://user/name`, optionally followed by `@` and a branch, tag or commit.
    """
    repository, _, revision = address.removeprefix(PREFIX).partition("@")
    with hub.asking(address, DataError) as library:
        run = library.snapshot_download(
            repository, revision=revision or None, allow_patterns=list(PULLED)
        )
    if not all(any(Path(run).glob(pattern)) for pattern in PULLED):
        raise DataError(f"{address}: is not a run of dml_jax; it must contain {', '.join(PULLED)}")
    return Path(run)
