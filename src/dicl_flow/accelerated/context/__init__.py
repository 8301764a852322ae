"""The context net: a correction of the flow from flow, entropy, features and image.

    refined = flow + scale · layers(cat([flow, entropy, features, image]))

`scale` is a power of two, so it is folded into the last layer without rounding. A reduced precision
would cut bits off the flow. What it cuts off follows as two more channels, with the same weights:
conv(flow) = conv(rounded) + conv(remainder), as in the stem.

- `cpu`: torch joins the input; oneDNN adds bias and ReLU.
- `cuda`: one kernel writes the input, another adds flow, correction and its bias.
- In training, the plain net is used.
"""
