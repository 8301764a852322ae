"""The stem: the first convolution of the feature net, which sees the images.

It is a 3x3 convolution of three channels with bias and ReLU. A reduced precision would cut bits
off the images, and all that follows would be computed from rounded frames. So the image is split,
x = rounded + remainder, and both parts are convolved with the same weights:

    conv(x) = conv(rounded) + conv(remainder)

- `cpu`: the parts are side by side as channels of one convolution, with the weights twice.
- `cuda`: one kernel loads a pixel once and multiplies both parts; another one normalises, pads and
  joins the frames before.
- `training`: the image is rounded as autocast would; only the weight has a gradient.
"""
