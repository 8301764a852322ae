"""Twins of the plain layers for training on a GPU."""
