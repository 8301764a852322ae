// The track of a point: where it is in each frame, as far as the server has computed it.

import { askTrack } from "./server.js";

const COLORS = [
  [90, 169, 255],
  [255, 112, 165],
  [255, 210, 63],
]; // of time: early, middle, late

export class Track {
  // `point` has frame, x and y.
  constructor(point) {
    this.point = point;
    this.first = this.last = point.frame;
    this.intervals = [];
    this.isCropped = this.isDone = false;
    this.places = new Map(); // {frame, x, y, visible, error, from} by frame
    this.cuts = new Set();
    this.leaving = new AbortController();
  }

  // Ask for the track; `onPlace` hears of each frame.
  async follow(clip, network, onPlace) {
    const lines = askTrack(clip, this.point, network, this.leaving.signal);
    try {
      for await (const line of lines) {
        if (line.problem) throw new Error(line.problem);
        this.take(line);
        onPlace();
      }
    } finally {
      this.isDone = true;
      onPlace();
    }
  }

  take(line) {
    if (line.intervals) {
      const { first, last, intervals, cropped } = line;
      return Object.assign(this, { first, last, intervals, isCropped: cropped });
    }
    if (line.cut !== undefined) this.cuts.add(line.cut);
    if (line.x !== undefined) this.places.set(line.frame, line);
  }

  close() {
    this.leaving.abort();
  }

  get size() {
    return this.last - this.first + 1;
  }

  // The known places in the order of time.
  get inOrder() {
    return [...this.places.values()].sort((one, two) => one.frame - two.frame);
  }

  // The places that led to a frame: it, where its last flow began, and so on to the point itself.
  chain(frame) {
    const chain = [];
    for (let place = this.places.get(frame); place; place = this.places.get(place.from)) {
      chain.push(place);
      if (place.frame === this.point.frame) break;
    }
    return chain;
  }

  // The place of the track next to a place of the frame, if it is within `reach` px.
  nearest({ x, y }, reach) {
    let [best, found] = [reach, null];
    for (const place of this.places.values()) {
      const distance = Math.hypot(place.x - x, place.y - y);
      if (distance < best) [best, found] = [distance, place];
    }
    return found;
  }

  // The colour of a frame's time.
  color(frame) {
    const share = (frame - this.first) / Math.max(this.size - 1, 1);
    const late = share >= 0.5;
    const [one, two] = late ? COLORS.slice(1) : COLORS;
    const weight = late ? 2 * share - 1 : 2 * share;
    return `rgb(${one.map((from, k) => Math.round(from + (two[k] - from) * weight))})`;
  }
}

// A place in words.
export function describePlace(place, point) {
  const { frame, x, y, visible, error } = place;
  const position = `Frame ${frame}: ${x.toFixed(1)}, ${y.toFixed(1)}`;
  if (frame === point.frame) return `${position} · the point itself`;
  const expected = error === null ? "" : ` · expected error ${error.toFixed(2)} px`;
  return `${position} · ${visible ? "visible" : "hidden"}${expected} · ${describeFlow(place)}`;
}

function describeFlow({ frame, from }) {
  const length = Math.abs(frame - from);
  return `flow over ${length} ${length === 1 ? "frame" : "frames"}, from ${from}`;
}
