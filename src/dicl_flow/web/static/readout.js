// The pixel under the pointer: its numbers, and magnified patches of both frames.

import { INK, stroke } from "./marks.js";
import { find, makeRows, prepare, signed, vector } from "./page.js";
import { state } from "./state.js";

const PATCH = 15; // pixels on a side
const SIDE = 120; // screen pixels

export function showReadout(pair, pixel) {
  const found = pixel && pair?.look(pixel, state.network);
  find("places").replaceChildren(...makeRows(places(pixel, found), "data-name"));
  find("readout").replaceChildren(...makeRows(found ? numbers(found) : [], "data-name"));
  showPatches(pair, pixel, found);
}

function places(pixel, found) {
  if (!pixel) return [["Pixel", "–"]];
  const texts = [["Pixel", `${pixel.x}, ${pixel.y}`]];
  const match = found && [pixel.x + found.u, pixel.y + found.v];
  return match ? [...texts, ["Match", match.map((value) => value.toFixed(2)).join(", ")]] : texts;
}

function numbers({ u, v, confidence, hidden, truth }) {
  const degrees = (Math.atan2(v, u) * 180) / Math.PI;
  const texts = [
    ["Flow", `${vector([u, v])} px`],
    ["Length", `${Math.hypot(u, v).toFixed(2)} px, ${signed(degrees, 1)}°`],
    ["Confidence", confidence.toFixed(3)],
    ["Occlusion", hidden === null ? "…" : hidden ? "hidden" : "visible"],
  ];
  if (truth) {
    const error = Math.hypot(u - truth[0], v - truth[1]);
    texts.push(["Truth", `${vector(truth)} px`], ["Error", `${error.toFixed(2)} px`]);
  }
  return texts;
}

function showPatches(pair, pixel, found) {
  const context1 = prepare(find("patch1"), SIDE, SIDE);
  const context2 = prepare(find("patch2"), SIDE, SIDE);
  if (!pixel || !pair) return;
  drawPatch(context1, pair.picture("frame1"), pixel.x, pixel.y);
  if (found) drawPatch(context2, pair.picture("frame2"), pixel.x + found.u, pixel.y + found.v);
}

// The neighbours of a place, which may lie between pixels.
function drawPatch(context, picture, x, y) {
  const scale = SIDE / PATCH;
  context.imageSmoothingEnabled = false;
  context.save();
  context.translate(SIDE / 2, SIDE / 2);
  context.scale(scale, scale);
  context.drawImage(picture, -x - 0.5, -y - 0.5);
  context.restore();
  const corner = (SIDE - scale) / 2;
  stroke(context, INK, 1.5, () => context.rect(corner, corner, scale, scale));
}
