"""What memory an engine really uses and how it gives memory back; torch is asked only where it is already loaded."""

import ctypes
import ctypes.util
import gc
import resource
import sys
from pathlib import Path
from typing import Any

_SIGNS = ("can't allocate memory", "CUDA error: out of memory")


def resident_bytes() -> int:
    """Resident set of this process; its peak where the system does not tell the present."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether trying again with less, or with more room, may help."""
    # torch's CPU allocator raises a plain RuntimeError whose text is the only sign
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS):
        return True
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def settle_libraries() -> None:
    """Take all that is here by now out of the garbage collector's sight.

    Of torch and its kin there are a million objects, which each full collection would walk through for a fifth of a
    second with every forward waiting; they live as long as the process.
    """
    gc.collect()
    gc.freeze()


def give_back(all_of_it: bool = False) -> None:
    """Return freed memory to the device and to the operating system; `all_of_it` also what was settled."""
    if all_of_it:
        gc.unfreeze()
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    libc = ctypes.util.find_library("c")
    if libc and sys.platform == "linux":
        trim = getattr(ctypes.CDLL(libc), "malloc_trim", None)
        if trim is not None:
            trim(0)
