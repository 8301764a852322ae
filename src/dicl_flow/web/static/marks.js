// What is drawn over the frames, at the resolution of the screen: pixels, paths, arrows.

import { isKnown, vectorColor } from "./colors.js";

const SPACING = 22; // screen pixels between arrows
const [LONGEST, SHORTEST] = [3, 0.35]; // spacings of an arrow of full colour, of one that is no dot
export const INK = "#ffd23f";
export const HALO = "rgb(0 0 0 / 75%)";

// Draw a path twice: a dark halo, then its colour, so that it is visible on any picture.
export function stroke(context, color, width, path) {
  context.lineJoin = context.lineCap = "round";
  for (const [style, extra] of [
    [HALO, 2.5],
    [color, 0],
  ]) {
    context.beginPath();
    path();
    context.strokeStyle = style;
    context.lineWidth = width + extra;
    context.stroke();
  }
}

// A pixel: its outline where it is large enough, else a cross with a gap.
export function markPixel(context, camera, { x, y }, color = INK) {
  const { zoom } = camera;
  const [left, top] = camera.toScreen(x, y);
  if (zoom >= 8) return stroke(context, color, 1.5, () => context.rect(left, top, zoom, zoom));
  markPlace(context, camera, x, y, color);
}

// A place between pixels; (x, y) is the middle of a pixel.
export function markPlace(context, camera, x, y, color = INK) {
  const [middleX, middleY] = camera.toScreen(x + 0.5, y + 0.5);
  stroke(context, color, 1.5, () => {
    for (const [right, down] of [
      [1, 0],
      [-1, 0],
      [0, 1],
      [0, -1],
    ]) {
      context.moveTo(middleX + 3.5 * right, middleY + 3.5 * down);
      context.lineTo(middleX + 11 * right, middleY + 11 * down);
    }
  });
}

// From the pixel itself over the flow of each level to the match: large rings are coarse levels.
export function drawPath(context, camera, { x, y }, levels) {
  const place = ([u, v]) => camera.toScreen(x + u + 0.5, y + v + 0.5);
  const places = [[0, 0], ...levels.map((level) => level.refined)].map(place);
  stroke(context, INK, 1.5, () => places.forEach((p) => context.lineTo(...p)));
  levels.forEach((level, k) => {
    const radius = 2 + 1.2 * (levels.length - 1 - k);
    const [middleX, middleY] = places[k + 1];
    stroke(context, INK, 1.5, () => {
      context.moveTo(middleX + radius, middleY);
      context.arc(middleX, middleY, radius, 0, 2 * Math.PI);
    });
  });
}

// The displacements that a level compares: a window in frame 2.
export function drawWindow(context, camera, { x, y }, level) {
  const cells = level.before.probability.length;
  const [width, height] = level.cell_size;
  const left = x + 0.5 + level.start[0] - (cells / 2) * width;
  const top = y + 0.5 + level.start[1] - (cells / 2) * height;
  const corner = camera.toScreen(left, top);
  const size = [cells * width * camera.zoom, cells * height * camera.zoom];
  stroke(context, "#7fd7e0", 1.5, () => context.rect(...corner, ...size));
}

// The length on the screen of a motion of 1 px: `maximum` px are as long as arrows get.
export const arrowScale = (maximum) => (LONGEST * SPACING) / maximum;

// Arrows on a grid that is even on the screen, all to one scale.
export function drawArrows(context, camera, pair, { u, v }, maximum) {
  const step = Math.max(1, Math.round(SPACING / camera.zoom));
  const [left, top] = camera.toFrame(0, 0);
  const [right, bottom] = camera.toFrame(camera.view.width, camera.view.height);
  const first = (start) => Math.max(Math.floor(start / step), 0) * step + (step >> 1);
  context.lineCap = context.lineJoin = "round";
  for (let y = first(top); y < Math.min(bottom, pair.height); y += step) {
    for (let x = first(left); x < Math.min(right, pair.width); x += step) {
      const i = y * pair.width + x;
      if (!isKnown(u[i], v[i])) continue;
      context.strokeStyle = context.fillStyle = vectorColor(u[i], v[i], maximum);
      const start = camera.toScreen(x + 0.5, y + 0.5);
      drawArrow(context, start, [u[i], v[i]], arrowScale(maximum));
    }
  }
}

// An arrow from a place of the screen, or a dot if it were too short.
export function drawArrow(context, [startX, startY], [u, v], scale) {
  const length = Math.hypot(u, v) * scale;
  context.lineWidth = 1.5;
  context.beginPath();
  if (length < SHORTEST * SPACING) {
    context.arc(startX, startY, 1.25, 0, 2 * Math.PI);
    return context.fill();
  }
  const [endX, endY] = [startX + u * scale, startY + v * scale];
  const angle = Math.atan2(v, u);
  const tip = Math.min(6, 0.4 * length);
  context.moveTo(startX, startY);
  context.lineTo(endX, endY);
  for (const side of [2.6, -2.6]) {
    context.moveTo(endX, endY);
    context.lineTo(endX + tip * Math.cos(angle + side), endY + tip * Math.sin(angle + side));
  }
  context.stroke();
}

// The line between frame 1 and the layer, with a handle.
export function drawWipe(context, camera, share) {
  const [x] = camera.toScreen(share * camera.frame.width, 0);
  const { height } = camera.view;
  stroke(context, "#fff", 1.5, () => {
    context.moveTo(x, 0);
    context.lineTo(x, height);
  });
  context.fillStyle = "#fff";
  context.beginPath();
  context.arc(x, height / 2, 6, 0, 2 * Math.PI);
  context.fill();
}
