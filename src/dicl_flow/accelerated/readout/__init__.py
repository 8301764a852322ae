"""The readout: from the scores of all displacements to flow and entropy.

    probability = softmax(projection · scores)
    flow        = coarse flow + Σ probability · displacement
    entropy     = -Σ probability · log(probability) / log(number of displacements)

- On a CPU the plain operations are used.
- `cuda`: one kernel, which also adds up the patches of `score_layers`.
- `training`: one kernel forward, and one backward that computes the softmax again.
"""
