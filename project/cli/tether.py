"""Run a command that dies when the process that started it dies, even by SIGKILL (Linux; elsewhere just run it).

    python -I -S tether.py PARENT_PID SIGNAL COMMAND...

The kernel sends SIGNAL when the *thread* that started this process ends, so start it from a thread that lives as long
as its process: the main thread. This file is executed by path, with no site-packages, and must import nothing of ours.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, death_signal, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            sys.exit(f"not starting {command[0]}: the process that asked for it is gone")
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
