"""Campaigns of faults: programs that try the promises of the package many times, at random."""
