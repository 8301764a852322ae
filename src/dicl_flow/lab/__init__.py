"""Analyses of a network, ablations, and the speed of the machine."""
