// What the colours of a layer mean.

import { inferno, vectorColor } from "./colors.js";
import { BRIGHTEST_ERROR } from "./layers.js";
import { prepare } from "./page.js";

const WHEEL = 52;
const COLORED = ["flow", "overlay", "arrows", "level"];
const greys = (share) => Array(3).fill(Math.round(255 * share));
const SCALES = {
  confidence: ["0", "1", greys],
  difference: ["0", "255", greys],
  error: ["0", `${BRIGHTEST_ERROR} px`, inferno],
  occlusion: ["visible", "hidden", greys],
};

let drawn = ""; // what the legend shows, since it takes long to draw

export function drawLegend(canvas, layer, maximum) {
  const key = `${layer} ${maximum}`;
  if (key === drawn) return;
  drawn = key;
  canvas.hidden = !(COLORED.includes(layer) || layer in SCALES);
  if (COLORED.includes(layer)) drawWheel(canvas, maximum);
  else if (layer in SCALES) drawScale(canvas, ...SCALES[layer]);
}

function begin(canvas, width, height) {
  const context = prepare(canvas, width, height);
  context.fillStyle = "rgb(20 22 25 / 78%)";
  context.beginPath();
  context.roundRect(0, 0, width, height, 8);
  context.fill();
  context.fillStyle = "#fff";
  context.font = "12.5px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}

function drawWheel(canvas, maximum) {
  const text = `${maximum < 10 ? maximum.toFixed(1) : maximum.toFixed(0)} px`;
  const context = begin(canvas, WHEEL + 64, WHEEL + 12);
  context.fillText(text, WHEEL + 14, WHEEL / 2 + 6);
  const radius = WHEEL / 2;
  for (let y = -radius; y < radius; y++) {
    for (let x = -radius; x < radius; x++) {
      if (Math.hypot(x + 0.5, y + 0.5) > radius) continue;
      context.fillStyle = vectorColor(x + 0.5, y + 0.5, radius);
      context.fillRect(x + radius + 6, y + radius + 6, 1, 1);
    }
  }
}

function drawScale(canvas, low, high, color) {
  const size = low.length + high.length;
  const [left, width] = [14 + 7 * low.length, 80];
  const context = begin(canvas, 28 + width + 7 * size, 28);
  for (let x = 0; x < width; x++) {
    context.fillStyle = `rgb(${color(x / (width - 1))})`;
    context.fillRect(left + x, 9, 1, 10);
  }
  context.fillStyle = "#fff";
  context.textAlign = "right";
  context.fillText(low, left - 7, 14);
  context.textAlign = "left";
  context.fillText(high, left + width + 7, 14);
}
