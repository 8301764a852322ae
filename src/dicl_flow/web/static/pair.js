// The pair that is shown: frames, estimates of each network, truth; pictures made of them.

import { fullColor } from "./colors.js";
import { flowPicture, paintLayer, warp } from "./layers.js";
import { askEstimate, askFrame, askLevel, askOcclusion, askTruth } from "./server.js";

export class Pair {
  constructor(clip, number, frame1, frame2, truth, leaving) {
    Object.assign(this, { clip, number, frame1, frame2, truth });
    this.width = frame1.width;
    this.height = frame1.height;
    this.estimates = [];
    this.leaving = leaving; // aborts what was asked for when another pair is shown
    this.levels = new Map();
    this.pictures = new Map();
  }

  static async open(clip, number) {
    const leaving = new AbortController();
    const ask = (frame) => askFrame(clip.id, number, frame, leaving.signal);
    const truth = clip.pairs[number].truth && askTruth(clip.id, number, leaving.signal);
    const [frame1, frame2, known] = await Promise.all([ask(1), ask(2), truth]);
    return new Pair(clip, number, frame1, frame2, known || null, leaving);
  }

  close() {
    this.leaving.abort();
  }

  // Ask for the estimate of a network, then for its occlusion.
  async estimate(network) {
    if (!this.estimates[network]) {
      const asked = [this.clip.id, this.number, network, this.leaving.signal];
      this.estimates[network] = await askEstimate(...asked);
    }
    return this.estimates[network];
  }

  async addOcclusion(network) {
    const asked = [this.clip.id, this.number, network, this.leaving.signal];
    this.estimates[network].occlusion ??= await askOcclusion(...asked);
    this.pictures.delete(`occlusion ${network}`);
  }

  // The flow of a level, "16 matched", at the size of the frame.
  async level(network, name) {
    const key = `${network} ${name}`;
    if (!this.levels.has(key)) {
      const asked = [this.clip.id, this.number, network, ...name.split(" ")];
      this.levels.set(key, await askLevel(...asked, this.leaving.signal));
    }
    return this.levels.get(key);
  }

  fullColor(network, maximum) {
    const found = this.estimates[network];
    if (maximum || !found) return maximum || 1;
    return (found.fullColor ??= fullColor(found));
  }

  warped(estimate) {
    return (estimate.warped ??= warp(this.frame2, estimate));
  }

  // A layer as a canvas, or null while it is not known; `name` is one of LAYERS, or a level.
  picture(name, network, maximum = 0) {
    const estimate = this.estimates[network];
    if (name === "frame1" || name === "frame2") return this.canvas(name, () => this[name]);
    if (!estimate) return null;
    const full = this.fullColor(network, maximum);
    const colored = ["flow", "overlay"].includes(name) || name.includes(" ");
    const key = `${name} ${network}${colored ? ` ${full}` : ""}`;
    if (name === "warped") return this.canvas(key, () => this.warped(estimate));
    if (name.includes(" ")) {
      const flow = this.levels.get(`${network} ${name}`);
      return flow ? this.canvas(key, () => flowPicture(this, flow, full)) : null;
    }
    if (name === "occlusion" && !estimate.occlusion) return null;
    if (name === "error" && !this.truth) return null;
    return this.canvas(key, () => paintLayer(name, this, estimate, full));
  }

  canvas(key, paint) {
    if (!this.pictures.has(key)) {
      const canvas = new OffscreenCanvas(this.width, this.height);
      canvas.getContext("2d").putImageData(paint(), 0, 0);
      this.pictures.set(key, canvas);
    }
    return this.pictures.get(key);
  }

  // All that is known about a pixel of frame 1.
  look({ x, y }, network) {
    const estimate = this.estimates[network];
    if (!estimate) return null;
    const i = y * this.width + x;
    const [u, v] = [estimate.u[i], estimate.v[i]];
    const truth = this.truth && [this.truth.u[i], this.truth.v[i]];
    return {
      u,
      v,
      confidence: estimate.confidence[i],
      hidden: estimate.occlusion ? Boolean(estimate.occlusion[i]) : null,
      truth: truth && Number.isFinite(truth[0]) ? truth : null,
    };
  }
}
