"""Compare with the peers: all of it, or the benchmarks named, as in `python -m benchmarks optim audit`."""

import argparse
from importlib import import_module

import torch

# name → (the comparison, its time on one core; ~ is an estimate); in the order in which they run
BENCHMARKS: dict[str, tuple[str, str]] = {
    "optim": ("speed and memory: IVON against AdamW, SGD and the public package; label noise", "~7 min"),
    "audit_speed": ("speed: the audit against cleanlab, and a million rows", "~17 min"),
    "audit": ("quality: known errors found, against cleanlab and others", "10 min"),
    "review": ("quality: what a review of 50 to 200 labels tells and teaches", "35 min"),
    "training": ("quality: fit and its peers, the same budget for each, wrong and clean labels", "~1 h per seed"),
    "linear": ("quality: linear models of rows of numbers with wrong labels", "~5 min"),
}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="\n".join(f"{name:15} {time:>7}  {about}" for name, (about, time) in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="of those below (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, smaller sizes")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {sorted(unknown)}; there are: {', '.join(BENCHMARKS)}")
    for name in arguments.names or BENCHMARKS:
        about, time = BENCHMARKS[name]
        print(f"\n{name}: {about}; {time}", flush=True)
        torch.set_num_threads(1)
        import_module(f"benchmarks.{name}").main(quick=arguments.quick)


if __name__ == "__main__":
    main()
