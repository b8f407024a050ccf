"""Comparisons with the peers at their best, one command each: `python -m benchmarks [name …]`."""
