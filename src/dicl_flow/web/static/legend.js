// What the colours of a layer mean.

import { inferno, vectorColor } from "./colors.js";
import { BRIGHTEST_ERROR } from "./layers.js";
import { arrowScale, drawArrow } from "./marks.js";
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
  if (COLORED.includes(layer)) drawWheel(canvas, maximum, layer === "arrows");
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

const inPixels = (length) => `${length.toFixed(length < 9.95 ? 1 : 0)} px`;

// The colours of vectors up to `maximum` px; with arrows, also one of a round length.
function drawWheel(canvas, maximum, hasArrows) {
  const context = begin(canvas, WHEEL + (hasArrows ? 150 : 64), WHEEL + 12);
  const [left, middle] = [WHEEL + 14, WHEEL / 2 + 6];
  context.fillText(inPixels(maximum), left, hasArrows ? middle - 13 : middle);
  if (hasArrows) drawArrowKey(context, left, middle + 13, maximum);
  const radius = WHEEL / 2;
  for (let y = -radius; y < radius; y++) {
    for (let x = -radius; x < radius; x++) {
      if (Math.hypot(x + 0.5, y + 0.5) > radius) continue;
      context.fillStyle = vectorColor(x + 0.5, y + 0.5, radius);
      context.fillRect(x + radius + 6, y + radius + 6, 1, 1);
    }
  }
}

function drawArrowKey(context, left, middle, maximum) {
  const length = roundDown(maximum);
  const scale = arrowScale(maximum);
  context.fillText(inPixels(length), left + length * scale + 8, middle);
  context.strokeStyle = "#fff";
  context.lineCap = context.lineJoin = "round";
  drawArrow(context, [left, middle], [length, 0], scale);
  context.fillStyle = "#fff";
}

// The largest of …, 0.5, 1, 2, 5, 10, … that is not larger.
function roundDown(length) {
  const power = 10 ** Math.floor(Math.log10(length));
  return power * [5, 2, 1].find((step) => step * power <= length || step === 1);
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
