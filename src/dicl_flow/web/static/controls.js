// Buttons, sliders and keys: all of them change the state, or tell the explorer what to do.

import { drawExport } from "./drawing.js";
import { save, saveAddress } from "./files.js";
import { listenToKeys } from "./keys.js";
import { LAYERS } from "./layers.js";
import { find, makeSegments, showChosen, tell, watch } from "./page.js";
import { flowFile } from "./server.js";
import { change, chosenPixel, chosenPoint, isTracking, link, state } from "./state.js";
import { listenToTimeline, showTimeline } from "./timeline.js";

const PANELS = { pixel: "Pixel", levels: "Levels", track: "Track" };
const ZOOM_STEP = Math.SQRT2;

let layerBefore = "flow"; // the one that was shown before a point was followed

export function listenToControls(app) {
  makeSegments(find("layers"), LAYERS, (layer) => change({ layer }));
  makeSegments(find("panels"), PANELS, choosePanel);
  for (const name of ["opacity", "wipe", "maximum"]) {
    find(name).addEventListener("input", ({ target }) =>
      change({ [name]: Math.max(Number(target.value), 0) }),
    );
  }
  const buttons = {
    flicker: app.toggleFlicker,
    "save-picture": () => watch(savePicture(app)),
    "save-flow": () => saveFlow(app),
    "copy-link": () => watch(copyLink()),
    theme: changeTheme,
    help: toggleHelp,
  };
  for (const [id, act] of Object.entries(buttons)) find(id).addEventListener("click", act);
  const { step, play } = listenToTimeline(app);
  listenToKeys(actions(app, step, play));
  readTheme();
}

// Show the state in the controls.
export function showControls(app) {
  const { clip, pair } = app;
  if (!clip) return;
  const networks = Object.fromEntries(clip.networks.map(({ name }, k) => [k, name]));
  const weights = find("weights");
  if (weights.children.length !== clip.networks.length) {
    makeSegments(weights, networks, (id) => change({ network: Number(id) }));
  }
  weights.hidden = clip.networks.length < 2;
  showChosen(weights, state.network);
  showChosen(find("layers"), state.layer);
  showChosen(find("panels"), state.panel);
  find("layers").querySelector("[data-id=error]").disabled = !clip.pairs[state.pair]?.truth;
  find("panel-pixel").hidden = state.panel !== "pixel";
  find("panel-levels").hidden = state.panel !== "levels";
  find("panel-track").hidden = !isTracking();
  find("opacity").value = state.opacity;
  find("wipe").value = state.wipe;
  if (document.activeElement !== find("maximum")) find("maximum").value = state.maximum || "";
  const isKnown = pair?.estimates[state.network];
  find("maximum").placeholder = isKnown ? pair.fullColor(state.network, 0).toFixed(1) : "auto";
  find("flicker").setAttribute("aria-pressed", String(Boolean(app.flicker)));
  find("caption1").textContent = caption(app);
  find("title").textContent = title(app);
  document.title = `${clip.name} – dicl-flow`;
  showTimeline(app);
}

function caption(app) {
  if (app.flicker) return app.flicker === "warped" ? "Frame 2, warped" : "Frame 1";
  if (!app.pair?.estimates[state.network] && state.layer !== "frame2") return LAYERS.frame1;
  if (state.layer !== "level") return LAYERS[state.layer];
  const [stride, stage] = state.level.split(" ");
  return `Flow of stride ${stride}, ${stage === "matched" ? "matched" : "after context"}`;
}

function title({ clip, pair }) {
  const several = clip.pairs.length > 1 ? ` / ${clip.pairs[state.pair].name}` : "";
  const size = pair ? ` · ${pair.width}×${pair.height}` : "";
  const weights = clip.networks.length > 1 ? "" : ` · ${clip.networks[0].name}`;
  return `${clip.name}${several}${size}${weights}`;
}

function actions(app, step, play) {
  const { camera } = app;
  const layers = Object.keys(LAYERS);
  const nudge = (name, by) => {
    const value = Math.round(100 * (state[name] + by)) / 100;
    change({ [name]: Math.min(Math.max(value, 0), 1) });
  };
  return [
    [layers.map((_, k) => String(k + 1)), "choose the layer", ({ key }) => choose(layers[key - 1])],
    [[",", "."], "less or more opacity", ({ key }) => nudge("opacity", key === "." ? 0.1 : -0.1)],
    [["<", ">"], "move the wipe", ({ key }) => nudge("wipe", key === ">" ? 0.05 : -0.05)],
    [["f"], "flicker between frame 1 and warped frame 2", app.toggleFlicker],
    [["+", "="], "zoom in", () => camera.zoomBy(ZOOM_STEP)],
    [["-"], "zoom out", () => camera.zoomBy(1 / ZOOM_STEP)],
    [["0"], "show the whole frame", () => camera.showAll()],
    [
      ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"],
      "move the chosen pixel; with shift by ten",
      (event) => movePixel(app, event),
    ],
    [["c"], "look at the chosen pixel closely", () => lookClosely(app)],
    [["Escape"], "choose no pixel", () => change(isTracking() ? { point: "" } : { pixel: "" })],
    [["l"], "levels or pixel", () => choosePanel(state.panel === "pixel" ? "levels" : "pixel")],
    [["p"], "follow a point", () => choosePanel(isTracking() ? "pixel" : "track")],
    [["n"], "next weights", () => changeNetwork(app)],
    [["[", "]"], "previous or next pair", ({ key }) => step(key === "]" ? 1 : -1)],
    [[" "], "play", play],
    [["o"], "open two images or a video", () => find("files").click()],
    [["s"], "save the shown picture", () => watch(savePicture(app))],
    [["d"], "save the flow file", () => saveFlow(app)],
    [["u"], "copy a link to this view", () => watch(copyLink())],
    [["t"], "light or dark", changeTheme],
    [["?"], "this list", toggleHelp],
  ];
}

function choose(layer) {
  if (!find("layers").querySelector(`[data-id=${layer}]`).disabled) change({ layer });
}

// A point is followed on the frames themselves, which need no flow.
function choosePanel(panel) {
  if (panel === state.panel) return;
  const isLeaving = isTracking();
  const layer = isLeaving && state.layer === "frame1" ? layerBefore : state.layer;
  if (panel === "track") layerBefore = state.layer;
  change({ panel, layer: panel === "track" ? "frame1" : layer });
}

function changeNetwork({ clip }) {
  change({ network: (state.network + 1) % clip.networks.length });
}

function movePixel({ pair, camera }, { key, shiftKey }) {
  if (!pair) return;
  const by = shiftKey ? 10 : 1;
  const [right, down] = {
    ArrowLeft: [-by, 0],
    ArrowRight: [by, 0],
    ArrowUp: [0, -by],
    ArrowDown: [0, by],
  }[key];
  const point = chosenPoint();
  const chosen = isTracking() ? point : chosenPixel();
  const start = chosen ?? { x: pair.width >> 1, y: pair.height >> 1 };
  const x = Math.min(Math.max(start.x + right, 0), pair.width - 1);
  const y = Math.min(Math.max(start.y + down, 0), pair.height - 1);
  const frame = point?.frame ?? state.pair;
  change(isTracking() ? { point: `${frame},${x},${y}` } : { pixel: `${x},${y}` });
  camera.reveal({ x, y });
}

function lookClosely({ camera, track }) {
  const pixel = isTracking() ? track?.places.get(state.pair) : chosenPixel();
  if (pixel) camera.look(pixel.x + 0.5, pixel.y + 0.5, Math.max(camera.zoom, 16));
}

async function savePicture(app) {
  if (!app.pair) return;
  const name = state.layer === "level" ? `level-${state.level.replace(" ", "-")}` : state.layer;
  save(await drawExport(app), `${name}.png`);
}

function saveFlow({ clip, pair }) {
  if (pair) saveAddress(flowFile(clip.id, pair.number, state.network), "flow.flo");
}

async function copyLink() {
  await navigator.clipboard.writeText(link());
  tell("Link copied");
}

function toggleHelp() {
  const dialog = find("keys");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

function readTheme() {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
}

function changeTheme() {
  const { dataset } = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  dataset.theme = (dataset.theme ?? dark) === "dark" ? "light" : "dark";
  localStorage.setItem("theme", dataset.theme);
}
