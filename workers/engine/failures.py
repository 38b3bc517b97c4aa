"""What a failed forward means for the engine it failed in."""

from workers.engine import memory

DEVICE_LOST = 71  # exit status of an engine whose device no longer answers it

# After one of these every further call of the process to its device fails too. torch has a class for them, and texts.
_SIGNS = ("device-side assert", "CUDA error:")


def kind_of(error: BaseException) -> str:
    """`memory`: less may work; `lost`: nothing will, in this process; `error`: the batch holds what it cannot do."""
    if memory.is_out_of_memory(error):
        return "memory"
    return "lost" if is_device_lost(error) else "error"


def is_device_lost(error: BaseException) -> bool:
    text = str(error)
    return type(error).__name__ == "AcceleratorError" or any(sign in text for sign in _SIGNS)
