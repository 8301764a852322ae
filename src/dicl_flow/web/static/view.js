// A canvas that shows a part of a frame: draws it, and reads the pointer.

const CLICK = 4; // px that the pointer may move in a click

export class View {
  constructor(canvas, camera, drawMarks) {
    Object.assign(this, { canvas, camera, drawMarks });
    this.context = canvas.getContext("2d");
    this.pointers = new Map();
    this.moved = 0;
    this.onHover = this.onClick = () => {};
    this.grab = () => null; // returns what drags at a place of the screen, if anything does
    this.listen();
  }

  // Fit the canvas to its place in the page; return its size.
  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    return { width, height };
  }

  // Draw pictures in order, {canvas, opacity, from}: `from` is the share of the width left out.
  draw(pictures) {
    const { context, camera, canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    const [left, top] = camera.toScreen(0, 0);
    const scale = ratio * camera.zoom;
    context.setTransform(scale, 0, 0, scale, ratio * left, ratio * top);
    context.imageSmoothingEnabled = scale < 1; // each pixel is a square
    context.imageSmoothingQuality = "high";
    drawPictures(context, pictures);
    context.globalAlpha = 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawMarks(context, camera);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.onHover(null));
    canvas.addEventListener("dblclick", () => this.camera.showAll());
    canvas.addEventListener("wheel", (event) => this.turn(event), { passive: false });
  }

  place(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  press(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.place(event));
    this.moved = this.pointers.size > 1 ? CLICK : 0; // two fingers do not click
    this.held = this.grab(...this.place(event));
  }

  move(event) {
    const place = this.place(event);
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.canvas.classList.toggle("grab", Boolean(this.grab(...place)));
      return this.onHover(this.camera.pixelAt(...place));
    }
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    this.pointers.set(event.pointerId, place);
    const [right, down] = [place[0] - before[0], place[1] - before[1]];
    this.moved += Math.hypot(right, down);
    if (this.held) return this.held(...place);
    if (others.length) return this.pinch(before, place, others[0][1]);
    if (this.moved >= CLICK) this.camera.panBy(right, down);
  }

  pinch(before, place, other) {
    const distance = (a, b) => Math.max(Math.hypot(a[0] - b[0], a[1] - b[1]), 1);
    const factor = distance(place, other) / distance(before, other);
    this.camera.zoomBy(factor, (place[0] + other[0]) / 2, (place[1] + other[1]) / 2);
    this.camera.panBy((place[0] - before[0]) / 2, (place[1] - before[1]) / 2);
  }

  release(event) {
    const clicked = this.pointers.delete(event.pointerId) && this.moved < CLICK && !this.held;
    this.held = null;
    const pixel = this.camera.pixelAt(...this.place(event));
    if (clicked && pixel) this.onClick(pixel);
  }

  turn(event) {
    event.preventDefault();
    this.camera.zoomBy(Math.exp(-event.deltaY / 400), ...this.place(event));
  }
}

export function drawPictures(context, pictures) {
  for (const { canvas, opacity = 1, from = 0 } of pictures) {
    const start = Math.round(from * canvas.width);
    const width = canvas.width - start;
    if (width <= 0) continue;
    context.globalAlpha = opacity;
    context.drawImage(canvas, start, 0, width, canvas.height, start, 0, width, canvas.height);
  }
}
