"""Tracks: where the points of a clip go, through occlusion, without drift."""
