"""Scripts, manifests and the Dockerfile fit the project and the published schemas, and do what their comments say."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jax._src import clusters

from dml_jax import main
from dml_jax.commands import embed
from dml_jax.config import files as config_files
from dml_jax.train.distributed import process_group
from tests.processes import ROOT, executable, wait_until

LAUNCH = ROOT / "launch"
JOBSETS = ("jobset_gpu.yaml", "jobset_tpu.yaml")
PRINTED = 'printf "%s\\n" "$@"'


def read(name: str) -> Any:
    return yaml.safe_load((LAUNCH / name).read_text())


@pytest.mark.parametrize("script", [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")], ids=lambda path: path.name)
def test_syntax(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""


def sbatch(folder: Path, script: str, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a job whose programs are those in a folder."""
    job = {"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "12", "SLURM_JOB_NUM_NODES": "2"}
    environment = job | variables | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", LAUNCH / script, *arguments], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("code", [143, 75, 134, 1, 2, 0])
def test_what_slurm_requeues(code: int, tmp_path: Path) -> None:
    executable(tmp_path / "srun", f"exit {code}")
    executable(tmp_path / "scontrol", "echo $@")
    requeued = [] if code in (0, 2) else ["requeue 77"]
    assert sbatch(tmp_path, "slurm.sbatch", "any.py") == (code, requeued)


def test_the_slurm_job_that_trains(tmp_path: Path) -> None:
    """It copies the data to the nodes first; every task sees the GPUs of its node, or NCCL could not use NVLink."""
    executable(tmp_path / "srun", f'case $3 in cp) shift 2; exec "$@";; *) {PRINTED};; esac')
    (tmp_path / "data/sop").mkdir(parents=True)
    (tmp_path / "data/sop/manifest.json").touch()
    (tmp_path / "node").mkdir()
    stage = {"STAGE": str(tmp_path / "data/sop"), "SLURM_TMPDIR": str(tmp_path / "node")}
    for _ in range(2):
        _, lines = sbatch(tmp_path, "slurm.sbatch", "any.py", **stage)
        assert lines[-1] == f"--config.data.path={tmp_path}/node/sop"
    assert (tmp_path / "node/sop/manifest.json").exists()
    assert {"--cpus-per-task=12", "--gpu-bind=none"} <= {*lines[: lines.index(".venv/bin/python")]}


def test_the_slurm_job_that_embeds(tmp_path: Path) -> None:
    executable(tmp_path / "srun", f"echo $RAY_AUTH_MODE ${{#RAY_AUTH_TOKEN}}; {PRINTED}")
    _, lines = sbatch(tmp_path, "slurm_ray.sbatch", "--model=w", "a folder")
    assert lines[0] == "token 64"
    assert {"--cpus-per-task=12", "--min-nodes=2", "--num-cpus=12"} <= {*lines}
    python, m, package, command, *arguments = lines[lines.index("--") + 1 :]
    assert (python, m, package, command) == ("python", "-m", "dml_jax", "embed")
    options = embed.parser().parse_args(arguments)
    assert (options.engine, options.address, options.paths) == ("ray", "auto", ["a folder"])


@pytest.mark.parametrize(("codes", "expected"), [("0 0", 0), ("0 75", 75), ("2 75", 2), ("75 2", 2), ("143 143", 143)])
def test_a_process_for_each_gpu(codes: str, expected: int, tmp_path: Path) -> None:
    """With a stand-in for Python, which waits for SIGTERM if it is to end with 143."""
    executable(
        tmp_path / ".venv/bin/python",
        f"codes=({codes}); code=${{codes[$JAX_LOCAL_DEVICE_IDS]}}\n"
        '[ "$code" -ne 143 ] || trap "sleep 0.2; exit 143" TERM\n'
        'echo "$JAX_LOCAL_DEVICE_IDS $*" > ready-$JAX_LOCAL_DEVICE_IDS\n'
        'while [ "$code" -eq 143 ]; do sleep 0.1; done; exit "$code"',
    )
    command = ["bash", LAUNCH / "each_gpu.sh", "2", "3", "1", "--config=any.py"]
    started = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    if expected == 143:
        wait_until(lambda: sum(f.stat().st_size > 0 for f in tmp_path.glob("ready-*")) == 2, 0.05)
        os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(60) == expected
    for gpu in range(2):
        arguments = f"-m dml_jax.main --processes=6 --process={2 + gpu} --config=any.py"
        assert (tmp_path / f"ready-{gpu}").read_text() == f"{gpu} {arguments}\n"


def check_paths(pod: dict[str, Any], *paths: str) -> None:
    """The only container of a pod mounts its volumes, which hold the paths."""
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert all(path.startswith(tuple(f"{folder}/" for folder in mounts.values())) for path in paths), paths


@pytest.mark.parametrize("name", JOBSETS)
def test_jobsets(name: str) -> None:
    """The command is valid; numbers of devices, pods, processes and cores agree, and so do names."""
    jobset = read(name)
    (group,) = jobset["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    args, pods, processes = container["args"], job["completions"], 1
    limits = container["resources"]["limits"]
    if gpus := limits.get("nvidia.com/gpu"):
        assert container["command"] == ["tini", "-g", "--", "bash", "launch/each_gpu.sh"]  # signals reach all processes
        assert args[:3] == [str(gpus), str(pods), "$(JOB_COMPLETION_INDEX)"]
        processes, args = gpus, args[3:]
    else:
        assert container["command"] == ["tini", "--", ".venv/bin/python", "-m", "dml_jax.main"]
    options, overrides = main.parser().read(args)
    if gpus:
        options.processes, options.process = processes * pods, processes * pods - 1
        assert options.coordinator.startswith(f"{jobset['metadata']['name']}-{group['name']}-0-0.")
        assert int(overrides["data.workers"]) == int(container["resources"]["requests"]["cpu"]) // gpus - 1
    main.check_options(options)
    devices = pods * (gpus or limits["google.com/tpu"])
    assert options.config.endswith(f"-devices{devices}")
    assert config_files.resolved(str(ROOT / options.config), {}).data.batch_size % devices == 0
    variables = {each["name"]: each["value"] for each in container["env"]}
    paths = [value for value in overrides.values() if "/" in value]
    check_paths(pod, options.workdir, *paths, variables["JAX_COMPILATION_CACHE_DIR"])
    # All pods restart together, by the JobSet.
    assert (job["parallelism"], job["backoffLimit"], pod["restartPolicy"]) == (pods, 0, "Never")
    assert restart_action(jobset, 2) == "FailJobSet"
    assert restart_action(jobset, 143) == "RestartJobSetAndIgnoreMaxRestarts"
    assert restart_action(jobset, 137, disrupted=True) == "RestartJobSetAndIgnoreMaxRestarts"
    assert {restart_action(jobset, code) for code in (1, 75, 134, 137)} == {"RestartJobSet"}


def restart_action(jobset: dict[str, Any], code: int, *, disrupted: bool = False) -> str:
    """What JobSet does when a container ends with a code: the first rules of the Job and the JobSet that match."""
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
        exits = rule.get("onExitCodes", {"containerName": container["name"], "values": []})
        assert exits["containerName"] == container["name"]
        if code in exits["values"] or (disrupted and "onPodConditions" in rule):
            reason, message = "PodFailurePolicy", f"exit code {code} matching {rule['action']} rule at index {index}"
            break
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
            return str(rule["action"])
    return "RestartJobSet"  # the default of JobSet


def test_ray_job() -> None:
    """The command is valid and sees its volumes; the workers have GPUs, the pod of the command has none."""
    job = read("rayjob.yaml")["spec"]
    program, *arguments = job["entrypoint"].split()
    assert [program, *arguments[:3]] == ["/app/.venv/bin/python", "-m", "dml_jax", "embed"]
    options = embed.parser().parse_args(arguments[3:])
    assert (options.engine, options.address) == ("ray", None)  # that of the job
    cluster = job["rayClusterSpec"]
    for group, gpus in ((cluster["headGroupSpec"], False), (cluster["workerGroupSpecs"][0], True)):
        pod = group["template"]["spec"]
        assert ("nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]) == gpus
        check_paths(pod, options.model, options.output, *options.paths)


@pytest.mark.slow
def test_schemas() -> None:
    """Of Kubernetes and, as Kubeflow publishes it, of JobSet; also with the volume of docs/guides/cluster.md."""
    kubernetes = pytest.importorskip("kubernetes_validate")
    jobsets = pytest.importorskip("kubeflow_trainer_api.models").JobsetV1alpha2JobSet

    def check(version: str, kind: str, body: dict[str, Any]) -> None:
        whole = {"apiVersion": version, "kind": kind, "metadata": {"name": "any"}, **body}
        kubernetes.validate(whole, "1.37", strict=True)

    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/guides/cluster.md").read_text(), re.DOTALL)
    for name in JOBSETS:
        manifest = read(name)
        assert jobsets.from_dict(manifest).to_dict() == manifest  # without fields that it does not know
        (group,) = manifest["spec"]["replicatedJobs"]
        check("batch/v1", "Job", group["template"])
        pod, changes = group["template"]["spec"]["template"], yaml.safe_load(block)
        (volume,) = changes["spec"]["volumes"]
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        pod["spec"]["volumes"] = [*(volumes | {volume["name"]: volume}).values()]
        check("batch/v1", "Job", group["template"])
        check_paths(pod["spec"])
    cluster = read("rayjob.yaml")["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        check("v1", "PodTemplate", {"template": group["template"]})


def test_dockerfile() -> None:
    """What it copies exists and is not ignored; its command is valid."""
    lines = (LAUNCH / "Dockerfile").read_text().splitlines()
    ignored = (LAUNCH / "Dockerfile.dockerignore").read_text()
    for line in lines:
        if line.startswith("COPY "):
            for source in shlex.split(line)[1:-1]:
                assert [*ROOT.glob(source)], source
                assert f"!{source}\n" in ignored
    command = json.loads(lines[-1].removeprefix("CMD "))
    assert (ROOT / main.parser().read(command[3:])[0].config).is_file()


GPUS = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("tasks", "more", "devices"),
    [
        (16, {GPUS: "0,1,2,3,4,5,6,7"}, [7]),  # launch/slurm.sbatch, also with --gpus-per-task=1
        (2, {GPUS: "0,1,2,3"}, []),  # one task per node
        (8, {GPUS: "0,1,2,3"}, [3]),  # four tasks share them
        (8, {GPUS: "0"}, []),  # srun --gpus-per-task=1: each sees its own, as number 0
        (2, {"JAX_LOCAL_DEVICE_IDS": "1,2"}, [1, 2]),
    ],
)
def test_each_slurm_task_sees_its_devices(
    tasks: int, more: dict[str, str], devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What JAX makes of the variables of the last task on two nodes; [] hides no device."""
    job = {
        "JOB_ID": 4097, "STEP_NODELIST": "gpu[07-12],cpu3", "NTASKS": tasks, "PROCID": tasks - 1,
        "LOCALID": tasks // 2 - 1, "STEP_NUM_NODES": 2,
    }  # fmt: skip
    for name, value in ({f"SLURM_{name}": value for name, value in job.items()} | more).items():
        monkeypatch.setenv(name, str(value))
    given = process_group.local_devices()
    if given is None and "JAX_LOCAL_DEVICE_IDS" in more:  # read by JAX before it asks the cluster
        given = [int(index) for index in more["JAX_LOCAL_DEVICE_IDS"].split(",")]
    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
    found = detect(None, None, None, given, None, 300)
    assert found == (f"gpu07:{65536 - 4096 + 1}", tasks, tasks - 1, devices)
