"""Speed against the peers, as ratios measured interleaved: `python -m benchmarks [name …]`."""
