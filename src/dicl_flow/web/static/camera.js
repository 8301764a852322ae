// Which part of the frames is visible. All views share one camera, so they stay in step.

import { change, state } from "./state.js";

const LARGEST = 96; // screen pixels per pixel

export class Camera {
  // `place` has zoom, x and y, as the state has them.
  constructor(place = state) {
    this.place = place;
    this.frame = { width: 1, height: 1 };
    this.view = { width: 1, height: 1 };
  }

  get fit() {
    const { frame, view } = this;
    return Math.min(view.width / frame.width, view.height / frame.height);
  }

  get zoom() {
    return this.place.zoom || this.fit;
  }

  get middle() {
    const { width, height } = this.frame;
    const { zoom, x, y } = this.place;
    return zoom ? { x, y } : { x: width / 2, y: height / 2 };
  }

  toScreen(x, y) {
    const { zoom, middle, view } = this;
    return [(x - middle.x) * zoom + view.width / 2, (y - middle.y) * zoom + view.height / 2];
  }

  toFrame(x, y) {
    const { zoom, middle, view } = this;
    return [(x - view.width / 2) / zoom + middle.x, (y - view.height / 2) / zoom + middle.y];
  }

  // The pixel at a place of the screen, or null outside the frame.
  pixelAt(screenX, screenY) {
    const [x, y] = this.toFrame(screenX, screenY).map(Math.floor);
    const inside = x >= 0 && y >= 0 && x < this.frame.width && y < this.frame.height;
    return inside ? { x, y } : null;
  }

  // Zoom so that what is at a place of the screen stays there.
  zoomBy(factor, screenX = this.view.width / 2, screenY = this.view.height / 2) {
    const [x, y] = this.toFrame(screenX, screenY);
    const zoom = Math.min(this.zoom * factor, LARGEST);
    if (zoom <= this.fit * 1.001) return this.showAll();
    const away = [screenX - this.view.width / 2, screenY - this.view.height / 2];
    this.look(x - away[0] / zoom, y - away[1] / zoom, zoom);
  }

  panBy(screenX, screenY) {
    if (!state.zoom) return;
    const { x, y } = this.middle;
    this.look(x - screenX / this.zoom, y - screenY / this.zoom);
  }

  look(x, y, zoom = state.zoom) {
    const { width, height } = this.frame;
    const within = (value, most) => Math.min(Math.max(value, 0), most);
    change({ zoom, x: within(x, width), y: within(y, height) });
  }

  showAll() {
    change({ zoom: 0, x: 0, y: 0 });
  }

  // Move so that a pixel is visible.
  reveal({ x, y }) {
    const [screenX, screenY] = this.toScreen(x + 0.5, y + 0.5);
    const { width, height } = this.view;
    const margin = Math.min(24, width / 4);
    const visible =
      screenX > margin &&
      screenY > margin &&
      screenX < width - margin &&
      screenY < height - margin;
    if (!visible && state.zoom) this.look(x + 0.5, y + 0.5);
  }
}
