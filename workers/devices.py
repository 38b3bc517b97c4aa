"""Which device a worker serves and how much memory it may use, found without importing torch."""

import os
import platform
import subprocess
from pathlib import Path

GPU_SHARE = 0.9  # the rest is for CUDA contexts and the allocator's slack
HOST_SHARE = 0.4  # beside a GPU; pinned memory is rounded up to powers of two, so in the worst case it is twice this
CPU_SHARE = 0.6  # the rest is for the gateway, the broker and activations


def resolve(device: str) -> str:
    """Turn `auto` into the best device here; anything else is returned as it is."""
    if device != "auto":
        return "cuda:0" if device == "cuda" else device
    if cuda_count() > 0:
        return "cuda:0"
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return "mps"
    return "cpu"


def cuda_count() -> int:
    """CUDA devices that the driver shows; 0 without a driver."""
    return len(_nvidia_smi("--query-gpu=index"))


def memory_bytes(device: str) -> int:
    """What models may take on `device` by default."""
    if device.startswith("cuda"):
        index = int(device.partition(":")[2] or 0)
        return int(int(_nvidia_smi("--query-gpu=memory.total")[index]) * (1 << 20) * GPU_SHARE)
    return int(_host_limit() * CPU_SHARE)


def host_bytes(device: str) -> int:
    """What models that left `device` may take of the host's memory by default: all cards share what is set aside."""
    return int(_host_limit() * HOST_SHARE / max(cuda_count(), 1)) if device.startswith("cuda") else 0


def cpu_count() -> int:
    """CPUs this process may really use: affinity, then the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0] != "max":
        allowed = min(allowed, max(1, int(quota[0]) // int(quota[1])))
    return allowed


def _host_limit() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(Path("/sys/fs/cgroup/memory.max"))
    return min(total, int(limit)) if limit.isdigit() else total


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _nvidia_smi(query: str) -> list[str]:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()
