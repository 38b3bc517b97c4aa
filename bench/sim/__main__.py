"""`python -m bench.sim`: one scenario, or all of them with the page they are published on."""

import argparse
import sys
from dataclasses import replace

from bench.sim.report import table, write
from bench.sim.study import BASELINES, Run, everything, run_all
from bench.sim.traces import TRACES
from bench.sim.world import SHOAL, Scenario


def main() -> int:
    default = Scenario()
    parser = argparse.ArgumentParser(prog="python -m bench.sim", description=__doc__)
    parser.add_argument("--all", action="store_true", help="everything docs/simulator.md shows; writes it")
    parser.add_argument("--trace", choices=sorted(TRACES), default=default.trace)
    parser.add_argument("--models", type=int, default=default.models)
    parser.add_argument("--devices", type=int, default=default.devices)
    parser.add_argument("--level", type=float, default=default.level, help="share of what the devices could do at best")
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--shoal-only", action="store_true", help="leave the baselines out")
    parser.add_argument("--processes", type=int, default=1, help="simulations at once")
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if options.all:
        from bench.sim.plots import draw  # only this needs matplotlib

        found = run_all(everything(), say, options.processes)
        draw(found)
        write(found)
        return 0
    fields = ("trace", "models", "devices", "level", "seconds", "seed")
    chosen = replace(default, **{name: getattr(options, name) for name in fields})
    policies = (SHOAL,) if options.shoal_only else (SHOAL, *BASELINES)
    print(table(run_all([Run(options.trace, chosen, policy) for policy in policies], say, options.processes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
