"""Accelerated layers for training on a GPU: backend "fused"."""
