"""Solid scenes: bodies in space, seen by a moving camera."""
