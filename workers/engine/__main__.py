"""Started by the dispatcher: `python -m workers.engine FD DEVICE`, where FD is its end of the pipe."""

import os
import sys

from workers.engine.main import main

main(int(sys.argv[1]), sys.argv[2])
# Loader threads may be inside a library; the weights' memory goes back with the process, so leave at once.
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
