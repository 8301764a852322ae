// What the views show: pictures, and marks over them; and the picture that is saved.

import { Camera } from "./camera.js";
import { drawLegend } from "./legend.js";
import { drawArrows, drawPath, drawWindow, drawWipe, markPixel, markPlace } from "./marks.js";
import { find } from "./page.js";
import { showReadout } from "./readout.js";
import { change, chosenPixel, isTracking, state } from "./state.js";
import { drawTrack } from "./trail.js";
import { drawPictures, View } from "./view.js";

const HOVER = "#ffffff";
const TRACK_REACH = 10; // screen pixels around a place of a track
const WIPE_REACH = 9; // screen pixels around the line of the wipe

// Make both views; return functions that lay them out, and that draw them again soon.
export function makeViews(app) {
  const { camera } = app;
  const view1 = new View(find("view1"), camera, (context) => drawMarks1(app, context));
  const view2 = new View(find("view2"), camera, (context) => drawMarks2(app, context));
  let drawing = 0;

  function refresh() {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      if (app.pair) draw(app, view1, view2);
    });
  }

  // Next to each other or one above the other, whichever shows more.
  function layOut() {
    const views = find("views");
    const { width, height } = views.getBoundingClientRect();
    const { frame } = camera;
    const stacked = Math.min(width / frame.width, height / 2 / frame.height);
    const adjacent = Math.min(width / 2 / frame.width, height / frame.height);
    views.classList.toggle("stacked", stacked > adjacent);
    camera.view = view1.resize();
    view2.resize();
    refresh();
  }

  view1.onHover = (pixel) => {
    app.hover = pixel;
    const near = pixel && app.track?.nearest(pixel, TRACK_REACH / camera.zoom);
    app.pointAt(near?.frame ?? null);
    refresh();
  };
  view1.onClick = ({ x, y }) =>
    change(isTracking() ? { point: `${state.pair},${x},${y}` } : { pixel: `${x},${y}` });
  view1.grab = (x) => grabWipe(camera, x);
  new ResizeObserver(() => {
    layOut();
    app.showTrack();
  }).observe(find("views"));
  return { layOut, refresh };
}

function grabWipe(camera, x) {
  const { width } = camera.frame;
  const [line] = camera.toScreen(state.wipe * width, 0);
  if (!state.wipe || Math.abs(x - line) > WIPE_REACH) return null;
  const share = (place) => Math.min(Math.max(camera.toFrame(place, 0)[0] / width, 0.001), 1);
  return (place) => change({ wipe: share(place) });
}

function draw(app, view1, view2) {
  const { pair, camera } = app;
  view1.draw(shownPictures(app));
  view2.draw([{ canvas: pair.picture("frame2") }]);
  showReadout(pair, app.hover ?? chosenPixel());
  const layer = pair.estimates[state.network] ? state.layer : "";
  drawLegend(find("legend"), layer, pair.fullColor(state.network, state.maximum));
  find("views").classList.toggle("zoomed", state.zoom > 0);
  find("zoom").textContent = `${Math.round(100 * camera.zoom)} %`;
}

// What view 1 shows, from bottom to top.
function shownPictures({ pair, flicker }) {
  const picture = (name) => pair.picture(name, state.network, state.maximum);
  const base = { canvas: picture("frame1") };
  if (flicker) return [{ canvas: picture(flicker) ?? base.canvas }];
  const layer = picture(state.layer === "level" ? state.level : state.layer);
  return layer ? [base, { canvas: layer, opacity: state.opacity, from: state.wipe }] : [base];
}

function drawMarks1(app, context) {
  const { camera, hover } = app;
  drawVectors(app, context, camera);
  if (state.wipe) drawWipe(context, camera, state.wipe);
  if (app.track) drawTrack(context, camera, app, state.pair);
  const chosen = !isTracking() && chosenPixel();
  if (chosen) markPixel(context, camera, chosen);
  if (hover) markPixel(context, camera, hover, HOVER);
}

// The arrows, to the right of the wipe.
function drawVectors({ pair, flicker }, context, camera) {
  const estimate = pair.estimates[state.network];
  if (state.layer !== "arrows" || !estimate || flicker) return;
  const [left] = camera.toScreen(state.wipe * pair.width, 0);
  context.save();
  context.beginPath();
  context.rect(state.wipe ? left : 0, 0, camera.view.width, camera.view.height);
  context.clip();
  context.globalAlpha = state.opacity;
  drawArrows(context, camera, pair, estimate, pair.fullColor(state.network, state.maximum));
  context.restore();
}

function drawMarks2(app, context) {
  const { pair, camera, hover, beliefs, level } = app;
  if (app.track) drawTrack(context, camera, app, state.pair + 1);
  if (isTracking()) return;
  const chosen = chosenPixel();
  const found = beliefs[state.network];
  if (chosen && found) {
    if (level) drawWindow(context, camera, chosen, level);
    drawPath(context, camera, chosen, found.levels);
    markMatch(context, camera, pair, chosen);
  }
  if (hover) markMatch(context, camera, pair, hover, HOVER);
}

function markMatch(context, camera, pair, { x, y }, color) {
  const found = pair.look({ x, y }, state.network);
  if (found) markPlace(context, camera, x + found.u, y + found.v, color);
}

// The shown picture at the size of the frame, without marks, as a PNG file.
export function drawExport(app) {
  const { width, height } = app.pair;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  drawPictures(context, shownPictures(app));
  context.globalAlpha = 1;
  const whole = new Camera({ zoom: 0 });
  whole.frame = whole.view = { width, height };
  drawVectors(app, context, whole);
  return canvas.convertToBlob({ type: "image/png" });
}
