"""Models of several families asked of a fresh engine at once: their libraries are imported one after another."""

import subprocess
import sys
from pathlib import Path

FAMILIES = ("text_encoder", "cross_encoder", "gliner", "token_classifier")

# transformers is swapped in sys.modules at the end of its own import; whoever imports it meanwhile may get the old one
CODE = f"""
import socket, threading
from workers.engine.main import Engine

ours, theirs = socket.socketpair()
engine = Engine(theirs, "cpu")
failures = []

def warm(name):
    try:
        engine._warm([name])
    except Exception as error:
        failures.append(repr(error))

threads = [threading.Thread(target=warm, args=(name,)) for name in {FAMILIES!r}]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
"""


def test_families_that_are_asked_for_at_once_import_in_turn() -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=110, cwd=Path(__file__).parents[2]
        )
        assert done.returncode == 0, done.stderr
