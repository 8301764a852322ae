"""Flow of millions of pairs: manifests, segments that are written whole or not at all, engines.

`job` describes how the parts fit together. Nothing here imports torch until it computes.
"""
