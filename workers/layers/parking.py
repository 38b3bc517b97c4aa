"""Weights of torch modules moved to the host's memory and back, in place: no tensor is made anew.

A tensor's storage is resized to nothing and filled again later, so that whoever holds the tensor, a view of it or
another name for it, finds it as it was. The copy is in pinned memory, which a card reads by itself.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any


class TorchCopy:
    """A `families.HostCopy` of all weights and buffers of some modules, which are on one device."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self._modules = tuple(modules)
        self._copies: list[tuple[Any, Any]] = []  # of storages, with what they held

    @classmethod
    def of(cls, *modules: Any) -> "TorchCopy | None":
        """None where the device is the host: there is nothing to be won."""
        return None if next(modules[0].parameters()).device.type == "cpu" else cls(modules)

    def park(self) -> int:
        if not self._copies:
            self._copies = [(storage, _on_host(storage)) for storage in _storages(self._modules)]
        for storage, _ in self._copies:
            storage.resize_(0)
        return sum(copy.nbytes() for _, copy in self._copies)

    def wake(self) -> None:
        import torch

        for storage, copy in self._copies:
            storage.resize_(copy.nbytes())
            storage.copy_(copy, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # forwards run on another thread

    def drop(self) -> None:
        self._copies = []


def _storages(modules: Iterable[Any]) -> list[Any]:
    """Each once, however many tensors look into it; none that is empty."""
    tensors = chain.from_iterable(chain(module.parameters(), module.buffers()) for module in modules)
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.numel()}
    return list(found.values())


def _on_host(storage: Any) -> Any:
    return storage.cpu().pin_memory() if storage.device.type == "cuda" else storage.cpu().clone()
