// The path of a track over a frame: coloured by time, dashed and hollow where the point is hidden.

import { HALO, INK, stroke } from "./marks.js";

const AHEAD = 0.5; // opacity of what comes after the shown frame
const SPACE = 12; // screen pixels between dots; closer ones are left out
const POINTED = "#ffffff";

// Draw the track of `app` over the frame `shown`.
export function drawTrack(context, camera, { track, pointed }, shown) {
  const places = track.inOrder.map((place) => ({
    ...place,
    at: camera.toScreen(place.x + 0.5, place.y + 0.5),
    color: track.color(place.frame),
  }));
  context.save();
  for (const isAhead of [true, false]) {
    context.globalAlpha = isAhead ? AHEAD : 1;
    drawLines(context, places, (frame) => frame > shown === isAhead);
    drawDots(context, places, shown, (frame) => frame > shown === isAhead);
  }
  context.restore();
  const find = (frame) => places.find((place) => place.frame === frame);
  if (find(shown)) markShown(context, find(shown));
  if (pointed !== shown && find(pointed)) ring(context, find(pointed).at, 5, POINTED);
}

// All halos first, so that none covers the line before.
function drawLines(context, places, isDrawn) {
  context.lineCap = "round";
  for (const [halo, width] of [
    [HALO, 4.5],
    [null, 2],
  ]) {
    context.lineWidth = width;
    places.slice(1).forEach((place, k) => {
      const before = places[k];
      if (!isDrawn(place.frame) || place.frame !== before.frame + 1) return;
      context.setLineDash(place.visible && before.visible ? [] : [2, 5]);
      context.strokeStyle = halo ?? place.color;
      context.beginPath();
      context.moveTo(...before.at);
      context.lineTo(...place.at);
      context.stroke();
    });
  }
  context.setLineDash([]);
}

// Dots of frames, where there is space for them.
function drawDots(context, places, shown, isDrawn) {
  let last = [-Infinity, 0];
  for (const { frame, at, visible, color } of places) {
    if (Math.hypot(at[0] - last[0], at[1] - last[1]) < SPACE) continue;
    last = at;
    if (!isDrawn(frame) || frame === shown) continue;
    if (visible) dot(context, at, 2.5, color);
    else ring(context, at, 4, color);
  }
}

function markShown(context, { at, color, visible }) {
  if (visible) dot(context, at, 5, color);
  ring(context, at, 9, INK);
}

function ring(context, [x, y], radius, color) {
  stroke(context, color, 1.5, () => context.arc(x, y, radius, 0, 2 * Math.PI));
}

function dot(context, at, radius, color) {
  for (const [style, size] of [
    [HALO, radius + 1.25],
    [color, radius],
  ]) {
    context.fillStyle = style;
    context.beginPath();
    context.arc(...at, size, 0, 2 * Math.PI);
    context.fill();
  }
}
