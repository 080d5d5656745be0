"""Benchmarks: each measures Orca beside its peers in the same run, interleaved, and reports ratios of medians."""
