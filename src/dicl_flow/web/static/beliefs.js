// The beliefs of each level about a pixel: 7x7 probabilities before and after the projection.

import { inferno } from "./colors.js";
import { find, make, prepare, signed, vector } from "./page.js";

const BRIGHTEST = 0.2; // even probabilities look dark, not bright
const GAP = 9;
const LABEL = 24;
const EXPLAINED = "○ matched · + zero · green + truth · H entropy";

// Show the beliefs of every network, and the flows of the `shown` one; `onLevel` hears which level
// is pointed at.
export function showBeliefs(networks, shown, found, pixel, truth, onLevel) {
  const parent = find("beliefs");
  if (!pixel) return parent.replaceChildren(invitation());
  const note = make("p", { class: "note" }, EXPLAINED);
  const blocks = networks.map((network, k) =>
    found[k]
      ? block(network, found[k], truth, networks.length > 1, note, onLevel)
      : waiting(network),
  );
  const flows = found[shown] ? [note, table(found[shown].levels, networks[shown].name)] : [];
  parent.replaceChildren(heading(pixel), ...blocks, ...flows);
}

function invitation() {
  return make("p", { class: "hint" }, "Click a pixel to see what each level believed about it.");
}

function waiting(network) {
  return make("p", { class: "hint" }, `${network.name}: estimating …`);
}

function heading({ x, y }) {
  return make("h2", {}, "Beliefs ", make("small", {}, `about pixel ${x}, ${y}`));
}

function block(network, { levels }, truth, named, note, onLevel) {
  const side = mapSide(levels.length);
  const stages = network.projection ? { before: "before DAP", after: "after DAP" } : { before: "" };
  const maps = make("div", { class: "maps" });
  for (const [stage, label] of Object.entries(stages)) {
    const row = make("div", { class: "row", "data-stage": stage });
    row.append(make("p", { class: "stage" }, label));
    row.append(...levels.map((level) => map(level, stage, truth, side, note, onLevel)));
    maps.append(row);
  }
  const title = named ? [make("h3", {}, network.name)] : [];
  return make("article", { "data-network": network.name }, ...title, maps);
}

function mapSide(count) {
  const width = find("beliefs").clientWidth || 340;
  return Math.min(Math.floor((width - LABEL - GAP * (count - 1)) / count), 84);
}

function map(level, stage, truth, side, note, onLevel) {
  const { probability, entropy } = level[stage];
  const best = mostProbable(probability);
  const canvas = make("canvas", { tabindex: 0, role: "img" });
  const text = `Stride ${level.stride}: most probable ${place(best)} with ${best.value.toFixed(3)}`;
  canvas.setAttribute("aria-label", `${text}, entropy ${entropy.toFixed(3)}`);
  drawMap(canvas, level, stage, truth, side, best);
  listen(canvas, level, probability, side, note, text, onLevel);
  const caption = stage === "before" ? [make("figcaption", {}, String(level.stride))] : [];
  return make("figure", {}, ...caption, canvas, make("figcaption", {}, `H ${entropy.toFixed(2)}`));
}

// Tell the probability under the pointer, and which level is pointed at.
function listen(canvas, level, probability, side, note, text, onLevel) {
  const cells = probability.length;
  const tell = (message, pointedAt) => {
    note.textContent = message;
    onLevel(pointedAt);
  };
  const cell = (place) => Math.min(Math.max(Math.floor((place / side) * cells), 0), cells - 1);
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const [column, row, middle] = [cell(offsetX), cell(offsetY), (cells - 1) / 2];
    const where = place({ u: column - middle, v: row - middle });
    const value = probability[row][column].toFixed(4);
    tell(`Stride ${level.stride}, displacement ${where}: ${value}`, level);
  });
  canvas.addEventListener("focus", () => tell(text, level));
  for (const kind of ["pointerleave", "blur"]) {
    canvas.addEventListener(kind, () => tell(EXPLAINED, null));
  }
}

const place = ({ u, v }) => `(${signed(u, 0)}, ${signed(v, 0)})`;

function mostProbable(probability) {
  const middle = (probability.length - 1) / 2;
  let best = { value: -1 };
  probability.forEach((row, v) =>
    row.forEach((value, u) => {
      if (value > best.value) best = { value, u: u - middle, v: v - middle };
    }),
  );
  return best;
}

function drawMap(canvas, level, stage, truth, side, best) {
  const { probability } = level[stage];
  const cells = probability.length;
  const context = prepare(canvas, side, side);
  const edge = (k) => Math.round((k * side) / cells);
  const brightest = Math.max(BRIGHTEST, best.value);
  probability.forEach((row, v) =>
    row.forEach((value, u) => {
      context.fillStyle = `rgb(${inferno(value / brightest)})`;
      context.fillRect(edge(u), edge(v), edge(u + 1) - edge(u), edge(v + 1) - edge(v));
    }),
  );
  const middle = ([u, v]) => [side / 2 + (u * side) / cells, side / 2 + (v * side) / cells];
  cross(context, middle([0, 0]), "rgb(255 255 255 / 55%)", 2);
  if (truth) cross(context, middle(inCells(truth, level)), "#35d07f", 5);
  if (stage === "after" || !level.after) ring(context, middle(inCells(level.matched, level)));
}

// A flow of the frame as a displacement of the level, relative to where the level starts.
function inCells(flow, level) {
  return flow.map((value, axis) => (value - level.start[axis]) / level.cell_size[axis]);
}

function cross(context, [x, y], color, size) {
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x - size, y);
  context.lineTo(x + size, y);
  context.moveTo(x, y - size);
  context.lineTo(x, y + size);
  context.stroke();
}

function ring(context, [x, y]) {
  context.lineWidth = 1.5;
  for (const [color, radius] of [
    ["rgb(0 0 0 / 80%)", 4.5],
    ["#7fd7e0", 3.5],
  ]) {
    context.strokeStyle = color;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.stroke();
  }
}

function table(levels, name) {
  const names = ["stride", "start", "matched", "after context"];
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  const body = levels.map((level) =>
    make(
      "tr",
      { "data-stride": level.stride },
      make("th", { scope: "row" }, String(level.stride)),
      ...["start", "matched", "refined"].map((stage) =>
        make("td", { "data-stage": stage }, vector(level[stage], 1)),
      ),
    ),
  );
  const caption = make("caption", {}, `Flow of each level of ${name}, px`);
  return make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...body));
}
