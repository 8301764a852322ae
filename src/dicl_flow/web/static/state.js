// What is shown. It is kept in the address of the page, so that a link shows the same.

const DEFAULTS = {
  clip: "0",
  pair: 0,
  network: 0,
  layer: "flow",
  level: "", // "16 matched" if the layer is that of a level
  opacity: 1,
  wipe: 0, // share of the width where frame 1 is shown instead of the layer
  maximum: 0, // px with full colour; 0: the longest vector
  zoom: 0, // screen pixels per pixel; 0: all of the frame
  x: 0, // the middle of the view, in pixels of the frame
  y: 0,
  pixel: "", // "213,118": the pixel whose beliefs are shown
  panel: "pixel",
  point: "", // "12,213,118": the frame and the pixel that is followed
};

export const state = { ...DEFAULTS, ...readAddress() };
const listeners = [];
let writing = 0;

export function onChange(listener) {
  listeners.push(listener);
}

// Change some values; listeners get the names of those that are different now.
export function change(values) {
  const changed = Object.keys(values).filter((name) => state[name] !== values[name]);
  if (!changed.length) return;
  Object.assign(state, values);
  clearTimeout(writing);
  writing = setTimeout(writeAddress, 150);
  for (const listener of listeners) listener(new Set(changed));
}

export function chosenPixel() {
  const [x, y] = state.pixel.split(",").map(Number);
  return Number.isInteger(x) && Number.isInteger(y) ? { x, y } : null;
}

export function chosenPoint() {
  const [frame, x, y] = state.point.split(",").map(Number);
  return [frame, x, y].every(Number.isInteger) ? { frame, x, y } : null;
}

export const isTracking = () => state.panel === "track";

// The address of this view.
export function link() {
  writeAddress();
  return location.href;
}

function readAddress() {
  const found = {};
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!(name in DEFAULTS)) continue;
    const value = typeof DEFAULTS[name] === "number" ? Number(text) : text;
    if (!Number.isNaN(value)) found[name] = value;
  }
  return found;
}

function writeAddress() {
  const values = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = typeof value === "number" ? String(Number(value.toFixed(3))) : value;
    if (text !== String(DEFAULTS[name])) values.set(name, text);
  }
  history.replaceState(null, "", `${location.pathname}#${values}`);
}
