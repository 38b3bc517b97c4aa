"""`measure`: what the project promises, measured on this machine by `bench`."""

import argparse

from bench import run as bench_run


def run(options: argparse.Namespace) -> int:
    return bench_run.main(options)
