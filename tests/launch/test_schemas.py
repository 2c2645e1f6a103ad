"""Manifests fit the published schemas of Kubernetes and, as Kubeflow publishes it, of JobSet."""

import re
import textwrap
from typing import Any

import pytest
import yaml

from tests.launch.test_manifests import LAUNCH, ROOT

pytestmark = pytest.mark.slow


def read(name: str) -> Any:
    return yaml.safe_load((LAUNCH / name).read_text())


def check(kind: str, version: str, body: dict[str, Any]) -> None:
    """Raises an error for a missing or unknown field, or one of another type."""
    kubernetes = pytest.importorskip("kubernetes_validate")
    whole = {"apiVersion": version, "kind": kind, "metadata": {"name": "any"}, **body}
    kubernetes.validate(whole, "1.37", strict=True)


def unknown(given: Any, known: Any, path: str = "") -> list[str]:
    """The paths of the values that a model has not kept."""
    if isinstance(given, dict):
        inner = [(key, value, (known or {}).get(key)) for key, value in given.items()]
    elif isinstance(given, list):
        pairs = zip(given, known or [None] * len(given), strict=True)
        inner = [(str(i), *pair) for i, pair in enumerate(pairs)]
    else:
        return [] if given == known else [path]
    return [p for key, one, other in inner for p in unknown(one, other, f"{path}/{key}")]


@pytest.mark.parametrize("name", ["jobset_gpu.yaml", "jobset_tpu.yaml"])
def test_jobsets(name: str) -> None:
    """Also with the pods of docs/guides/cluster.md, whose YAML replaces a volume claim."""
    models, manifest = pytest.importorskip("kubeflow_trainer_api.models"), read(name)
    assert unknown(manifest, models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict()) == []
    (group,) = manifest["spec"]["replicatedJobs"]
    check("Job", "batch/v1", group["template"])
    guide = (ROOT / "docs/guides/cluster.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    changes = yaml.safe_load(textwrap.dedent(block))
    pod = group["template"]["spec"]["template"]
    pod["metadata"] = changes["metadata"]
    (replaced,) = changes["spec"]["volumes"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert replaced["name"] in volumes
    pod["spec"]["volumes"] = [*(volumes | {replaced["name"]: replaced}).values()]
    check("Job", "batch/v1", group["template"])
    manifest["spec"]["failurePolicy"]["rules"][0]["onReasons"] = ["any"]
    found = unknown(manifest, models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict())
    assert found == ["/spec/failurePolicy/rules/0/onReasons/0"]


def test_pods_of_the_ray_job() -> None:
    cluster = read("rayjob.yaml")["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        check("PodTemplate", "v1", {"template": group["template"]})
