"""The tests' own RabbitMQ node, which must not outlive them."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.conftest import missing
from tests.service.faults import rabbitmq
from tests.service.harness import ROOT, wait_until

pytestmark = pytest.mark.heavy


def test_the_node_dies_with_a_killed_starter(tmp_path: Path) -> None:
    if rabbitmq.server() is None:
        missing("RabbitMQ is not installed")
    starter = textwrap.dedent(f"""
        from pathlib import Path
        from tests.service.faults import rabbitmq
        rabbitmq.Node(rabbitmq.server(), Path({str(tmp_path / "node")!r})).start()
    """)
    parent = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT)
    node = wait_until(lambda: _node_of(parent.pid), 30, "a node")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not _lives(node), 5, "the node's end")


def _node_of(pid: int) -> psutil.Process | None:
    """Once the scripts have become the Erlang machine."""
    children = psutil.Process(pid).children(recursive=True)
    return next((child for child in children if "beam" in child.name()), None)


def _lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
