"""The cores that this process may use."""

import os
from pathlib import Path

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroups 2: microseconds, or "max", per period
# Threads that read, at most: each holds Python's lock a fifth of the time, so more would wait.
READERS = 8


def usable_cores() -> int:
    """The number of cores, by the affinity of the process and the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)  # exists on Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, period = CPU_QUOTA.read_text().split() if CPU_QUOTA.exists() else ("max", "")
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
