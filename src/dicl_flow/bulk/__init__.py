"""Flow of millions of pairs; `job` says how. Nothing here imports torch until it computes."""
