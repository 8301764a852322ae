// Pictures of a pair at the size of its frames: each pixel is exact.

import { colorVector, inferno, isKnown } from "./colors.js";

export const LAYERS = {
  frame1: "Frame 1",
  frame2: "Frame 2",
  flow: "Flow",
  arrows: "Arrows",
  overlay: "Overlay",
  confidence: "Confidence",
  occlusion: "Occlusion",
  difference: "Difference",
  error: "Error",
};
export const BRIGHTEST_ERROR = 5; // px

// Fill a picture: `paint(pixels, place, i)` writes the colour of pixel i at `place`.
function picture(width, height, paint) {
  const image = new ImageData(width, height);
  const pixels = image.data;
  for (let i = 0; i < width * height; i++) {
    paint(pixels, 4 * i, i);
    pixels[4 * i + 3] = 255;
  }
  return image;
}

function grey(pixels, place, value) {
  pixels[place] = pixels[place + 1] = pixels[place + 2] = value;
}

export function flowPicture({ width, height }, { u, v }, maximum) {
  return picture(width, height, (pixels, place, i) =>
    colorVector(pixels, place, u[i], v[i], maximum),
  );
}

// Frame 2 sampled where the flow leads; black where that is outside.
export function warp(image2, { u, v }) {
  const { width, height, data } = image2;
  return picture(width, height, (pixels, place, i) => {
    if (leavesFrame(image2, { u, v }, i)) return;
    const x = (i % width) + u[i];
    const y = Math.floor(i / width) + v[i];
    const left = Math.min(Math.floor(x), width - 2);
    const top = Math.min(Math.floor(y), height - 2);
    const [right, down] = [x - left, y - top];
    const corner = 4 * (top * width + left);
    for (let channel = 0; channel < 3; channel++) {
      const k = corner + channel;
      const above = data[k] * (1 - right) + data[k + 4] * right;
      const below = data[k + 4 * width] * (1 - right) + data[k + 4 * width + 4] * right;
      pixels[place + channel] = Math.round(above * (1 - down) + below * down);
    }
  });
}

function leavesFrame({ width, height }, { u, v }, i) {
  const x = (i % width) + u[i];
  const y = Math.floor(i / width) + v[i];
  return !(x >= 0 && y >= 0 && x <= width - 1 && y <= height - 1);
}

const PAINTERS = {
  frame1: (pair) => pair.frame1,
  frame2: (pair) => pair.frame2,
  flow: (pair, estimate, maximum) => flowPicture(pair, estimate, maximum),
  // less contrast, so that the arrows stand out
  arrows: (pair) =>
    picture(pair.width, pair.height, (pixels, place) => {
      for (let k = place; k < place + 3; k++) pixels[k] = (pair.frame1.data[k] >> 1) + 32;
    }),
  overlay: (pair, { u, v }, maximum) => {
    const { data } = pair.frame1;
    return picture(pair.width, pair.height, (pixels, place, i) => {
      colorVector(pixels, place, u[i], v[i], maximum);
      const brightness = 0.299 * data[place] + 0.587 * data[place + 1] + 0.114 * data[place + 2];
      const weight = 0.3 + (0.7 * Math.round(brightness)) / 255;
      for (let k = place; k < place + 3; k++) pixels[k] = Math.round(pixels[k] * weight);
    });
  },
  confidence: (pair, { confidence }) =>
    picture(pair.width, pair.height, (pixels, place, i) =>
      grey(pixels, place, Math.round(255 * confidence[i])),
    ),
  occlusion: (pair, { occlusion }) =>
    picture(pair.width, pair.height, (pixels, place, i) =>
      grey(pixels, place, occlusion?.[i] ? 255 : 0),
    ),
  difference: (pair, estimate) => {
    const warped = pair.warped(estimate).data;
    const { data } = pair.frame1;
    return picture(pair.width, pair.height, (pixels, place, i) => {
      if (leavesFrame(pair, estimate, i)) return;
      for (let k = place; k < place + 3; k++) pixels[k] = Math.abs(warped[k] - data[k]);
    });
  },
  error: (pair, estimate) => {
    const { truth } = pair;
    return picture(pair.width, pair.height, (pixels, place, i) => {
      if (!truth || !isKnown(truth.u[i], truth.v[i])) return grey(pixels, place, 90);
      const error = Math.hypot(estimate.u[i] - truth.u[i], estimate.v[i] - truth.v[i]);
      pixels.set(inferno(error / BRIGHTEST_ERROR), place);
    });
  },
};

// Draw a layer as ImageData.
export function paintLayer(name, pair, estimate, maximum) {
  return PAINTERS[name](pair, estimate, maximum);
}

// The mean end-point error over the pixels with known truth.
export function meanError({ u, v }, truth) {
  let [sum, count] = [0, 0];
  for (let i = 0; i < u.length; i++) {
    if (!isKnown(truth.u[i], truth.v[i])) continue;
    sum += Math.hypot(u[i] - truth.u[i], v[i] - truth.v[i]);
    count++;
  }
  return count ? sum / count : NaN;
}
