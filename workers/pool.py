"""Celery's pool in a device worker: two threads for ordinary tasks, and the orderly end of everything.

Device work never comes here; the dispatcher has its own processes. But Celery stops the pool between the last message
taken and the connection closed, which is exactly when what is on the device must be finished and acknowledged.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery.concurrency.base import BasePool, apply_target

from workers import bootstrap

THREADS = 2


class TaskPool(BasePool):  # type: ignore[misc]  # celery has no types
    signal_safe = False
    body_can_be_buffer = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runtime = bootstrap.build(self.app)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="task")

    def on_start(self) -> None:
        self.runtime.start()

    def on_stop(self) -> None:
        """SIGTERM: bounded by the drain time, whatever is on the device."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.runtime.drain()

    def on_terminate(self) -> None:
        """SIGQUIT: at once; what is held runs elsewhere when its leases end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.runtime.abandon()

    def on_apply(
        self,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **options: Any,
    ) -> None:
        self._threads.submit(apply_target, target, args, kwargs, self._on_hub(callback), self._on_hub(accept_callback))

    def terminate_job(self, pid: Any, signal: Any = None) -> None:
        """A thread cannot be ended; device work is cancelled by its receipt."""

    def _on_hub(self, callback: Any) -> Any:
        """Celery's callbacks acknowledge and send events, which only the Hub's thread may do."""
        if callback is None:
            return None
        return lambda *args, **kwargs: self.runtime.bridge.put(lambda: callback(*args, **kwargs))

    def _get_info(self) -> dict[str, Any]:
        return {
            "implementation": f"{type(self).__module__}:{type(self).__name__}",
            "max-concurrency": 1,
            "processes": [os.getpid()],
            "device": self.runtime.dispatcher.status(),
        }
