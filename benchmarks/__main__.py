"""Run every module here that has a `main(quick)`, or those named: `python -m benchmarks theory`."""

import argparse
from importlib import import_module
from pkgutil import iter_modules

import benchmarks

HELPERS = {"competitors", "harness", "regret_tasks", "report_picture"}


def main() -> None:
    """Parse the command line and run."""
    names = [
        m.name for m in iter_modules(benchmarks.__path__) if m.name not in {*HELPERS, "__main__"}
    ]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, smaller sizes")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no benchmark {sorted(unknown)}; there are: {', '.join(names)}")
    for name in arguments.names or names:
        import_module(f"benchmarks.{name}").main(quick=arguments.quick)


if __name__ == "__main__":
    main()
