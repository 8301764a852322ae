// A track over time: the flows that led to the shown frame, where it is hidden, its expected error.

import { find } from "./page.js";
import { describePlace } from "./track.js";

const [LEFT, RIGHT] = [60, 10]; // px beside the frames; the names of the rows are on the left
const ARCS = { top: 5, bottom: 42 };
const BAND = { top: 47, bottom: 57 };
const CURVE = { top: 66, bottom: 90 };
const NUMBERS = 106; // where frames are numbered
const CALMEST = 1; // px of error: smaller ones do not fill the curve
const GAP = 40; // px between the numbers of frames

// Call `go` with the frame that is clicked, and `point` with the one under the pointer, or null.
export function listenToStrip(app, go, point) {
  const strip = find("strip");
  const frameAt = ({ clientX }) => {
    const { first, last } = app.track;
    const { left, width } = strip.getBoundingClientRect();
    const share = (clientX - left - LEFT) / (width - LEFT - RIGHT);
    return Math.min(Math.max(first + Math.floor(share * app.track.size), first), last);
  };
  strip.addEventListener("pointerdown", (event) => app.track && go(frameAt(event)));
  strip.addEventListener("pointermove", (event) => {
    if (!app.track) return;
    point(frameAt(event));
    if (event.buttons) go(frameAt(event));
  });
  strip.addEventListener("pointerleave", () => point(null));
}

// Draw the strip of a track, with the chain of the frame that is pointed at, else of the present.
export function showStrip({ track, pointed }, present) {
  find("track").hidden = !track;
  if (!track) return;
  const { width } = find("strip").getBoundingClientRect();
  const cell = (width - LEFT - RIGHT) / track.size;
  const middle = (frame) => LEFT + (frame - track.first + 0.5) * cell;
  const scene = { track, cell, middle, shown: pointed ?? present };
  const isInside = present >= track.first && present <= track.last;
  find("strip").replaceChildren(
    ...(isInside ? [line("present", middle(present), 0, middle(present), CURVE.bottom + 4)] : []),
    ...drawBand(scene),
    ...drawCurve(scene),
    ...drawCuts(scene),
    ...drawArcs(scene),
    ...drawNumbers(scene, width),
  );
  find("track-note").textContent = note(track, scene.shown);
}

function note(track, frame) {
  const place = track.places.get(frame);
  if (place) return describePlace(place, track.point);
  if (frame < track.first || frame > track.last) return `Frame ${frame}: not followed this far`;
  const isCut = [...track.cuts].some((cut) => cut <= frame !== cut <= track.point.frame);
  return `Frame ${frame}: ${isCut ? "another scene" : track.isDone ? "no track" : "…"}`;
}

function element(tag, attributes, ...children) {
  const made = document.createElementNS(find("strip").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const line = (kind, x1, y1, x2, y2) => element("line", { class: kind, x1, y1, x2, y2 });

const label = (text, x, y, anchor = "start", kind = "") =>
  element("text", { x, y, "text-anchor": anchor, class: kind }, text);

// A cell for each frame: filled in the colour of its time, hollow where the point is hidden.
function drawBand({ track, cell, middle }) {
  const height = BAND.bottom - BAND.top;
  const gap = cell > 5 ? 1 : 0;
  const cells = track.inOrder.map(({ frame, visible }) => {
    const x = middle(frame) - cell / 2 + gap / 2;
    const size = { x, y: BAND.top, width: Math.max(cell - gap, 0.5), height };
    const look = visible ? { fill: track.color(frame) } : { stroke: track.color(frame) };
    const kind = visible ? "visible" : "hidden";
    const inset = { x: x + 0.75, y: BAND.top + 0.75, height: height - 1.5 };
    const hollow = { ...inset, width: Math.max(cell - gap - 1.5, 0.5) };
    return element("rect", { ...(visible ? size : hollow), ...look, class: kind });
  });
  const [left, right] = [middle(track.first) - cell / 2, middle(track.last) + cell / 2];
  const base = (BAND.top + BAND.bottom) / 2;
  return [label("Visible", 0, base + 4), line("axis", left, base, right, base), ...cells];
}

// The expected error of each frame.
function drawCurve({ track, cell, middle }) {
  const known = track.inOrder.filter(({ error }) => error !== null);
  const most = Math.max(CALMEST, ...known.map(({ error }) => error));
  const height = (error) => CURVE.bottom - (error / most) * (CURVE.bottom - CURVE.top);
  const points = known.map(({ frame, error }) => `${middle(frame)},${height(error)}`);
  const [left, right] = [middle(track.first) - cell / 2, middle(track.last) + cell / 2];
  return [
    label("Error", 0, CURVE.top + 8),
    label(`≤ ${most.toFixed(1)} px`, 0, CURVE.top + 23),
    line("axis", left, CURVE.bottom, right, CURVE.bottom),
    element("polyline", { class: "curve", points: points.join(" ") }),
  ];
}

// The end of a scene, between two frames.
function drawCuts({ track, cell, middle }) {
  return [...track.cuts].flatMap((cut) => {
    const x = middle(cut) - cell / 2;
    return [line("cut", x, ARCS.top, x, CURVE.bottom), label("cut", x + 4, ARCS.top + 8)];
  });
}

// The flows that led from the point to the shown frame, each an arc; long ones are higher.
function drawArcs({ track, middle, shown }) {
  const chain = track.chain(shown);
  const tallest = Math.sqrt(Math.max(1, track.size - 1));
  const arcs = chain.slice(1).map(({ frame }, k) => {
    const [from, to] = [middle(frame), middle(chain[k].frame)];
    const share = Math.sqrt(Math.abs(chain[k].frame - frame)) / tallest;
    const top = ARCS.bottom - 8 - share * (ARCS.bottom - 8 - ARCS.top);
    const control = ARCS.bottom - (ARCS.bottom - top) / 0.75; // a cubic rises to 3/4 of its handles
    const d = `M${from},${ARCS.bottom} C${from},${control} ${to},${control} ${to},${ARCS.bottom}`;
    return element("path", { class: "arc", d });
  });
  const dots = chain.map(({ frame }) =>
    element("circle", { class: "stop", cx: middle(frame), cy: ARCS.bottom, r: 2.5 }),
  );
  return [label("Flows", 0, 30), ...arcs, ...dots];
}

// The numbers of the first and the last frame, of the point and of the shown frame, if they fit.
function drawNumbers({ track, middle, shown }, width) {
  const taken = [];
  const numbers = [];
  for (const frame of [shown, track.point.frame, track.first, track.last]) {
    const x = Math.min(middle(frame), width - 12);
    const isInside = frame >= track.first && frame <= track.last;
    if (!isInside || taken.some((other) => Math.abs(other - x) < GAP)) continue;
    taken.push(x);
    numbers.push(label(String(frame), x, NUMBERS, "middle", frame === shown ? "shown" : ""));
  }
  return [label("Frame", 0, NUMBERS), ...numbers];
}
