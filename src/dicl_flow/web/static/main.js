// The explorer: opens clips and pairs, asks for estimates, keeps the panels up to date.

import { showBeliefs } from "./beliefs.js";
import { Camera } from "./camera.js";
import { listenToControls, showControls } from "./controls.js";
import { makeViews } from "./drawing.js";
import { listenToFiles } from "./files.js";
import { showFollowing } from "./following.js";
import { LAYERS } from "./layers.js";
import { showLevels } from "./levels.js";
import { find, watch } from "./page.js";
import { Pair } from "./pair.js";
import { askBeliefs, askClip } from "./server.js";
import { change, chosenPixel, chosenPoint, isTracking, onChange, state } from "./state.js";
import { listenToStrip, showStrip } from "./strip.js";
import { Track } from "./track.js";

const FLICKER = 450; // milliseconds

const app = {
  camera: new Camera(),
  clip: null,
  pair: null,
  hover: null, // the pixel under the pointer
  beliefs: [], // of the chosen pixel, by network
  level: null, // the level that is pointed at
  flicker: null, // "frame1" or "warped" while they are shown in turn
  track: null, // of the point that is followed
  pointed: null, // the frame of the track that is pointed at
  openPair,
  finishPair: () => app.pair && watch(estimateAll(app.pair)),
  toggleFlicker,
  showTrack,
  pointAt,
};
const { layOut, refresh } = makeViews(app);
let asking = new AbortController();
let opening = 0;
let flickering = 0;

async function openClip(id) {
  app.clip = await askClip(id);
  app.pair?.close();
  app.pair = null;
  const pair = Math.min(Math.max(state.pair, 0), app.clip.pairs.length - 1);
  const network = Math.min(Math.max(state.network, 0), app.clip.networks.length - 1);
  change({ clip: id, pair, network });
  showControls(app);
  follow();
  await openPair(pair);
}

// Show another pair. While playing, the one before stays until the new one is estimated.
async function openPair(number, playing = false) {
  const turn = ++opening;
  const pair = await Pair.open(app.clip, number);
  if (playing && needsFlow()) await estimate(pair, state.network);
  if (turn !== opening) return pair.close();
  app.pair?.close();
  Object.assign(app, { pair, beliefs: [], hover: null });
  app.camera.frame = pair;
  const pixel = chosenPixel();
  const isInside = pixel && pixel.x < pair.width && pixel.y < pair.height;
  change({ pair: number, pixel: isInside ? state.pixel : "" });
  layOut();
  showTrack();
  if (playing) showAll();
  else await estimateAll(pair);
}

// While a point is followed, the frames are shown at once, without their flow.
function needsFlow() {
  return !(isTracking() && ["frame1", "frame2"].includes(state.layer) && !app.flicker);
}

// The shown network first; then its occlusion, then the others.
async function estimateAll(pair) {
  const others = app.clip.networks.map((_, k) => k).filter((k) => k !== state.network);
  showAll();
  if (!needsFlow()) return;
  for (const network of [state.network, ...others]) {
    await estimate(pair, network);
    if (pair !== app.pair) return;
    showAll();
    if (network !== state.network) continue;
    await pair.addOcclusion(network);
    refresh();
  }
}

async function estimate(pair, network) {
  const { name } = app.clip.networks[network];
  const start = Date.now();
  const tick = () => {
    const seconds = Math.round((Date.now() - start) / 1000);
    find("status").textContent = `Estimating with ${name} … ${seconds} s`;
  };
  const ticking = setInterval(tick, 250);
  tick();
  try {
    await pair.estimate(network);
  } finally {
    clearInterval(ticking);
    find("status").textContent = "";
  }
}

function showAll() {
  showControls(app);
  showLevels(app.pair, app.clip);
  watch(findBeliefs());
}

async function findBeliefs() {
  asking.abort();
  asking = new AbortController();
  const { pair, clip } = app;
  const pixel = chosenPixel();
  const asked = clip.networks.map((_, network) =>
    pixel && pair.estimates[network]
      ? askBeliefs(clip.id, pair.number, network, pixel, asking.signal)
      : null,
  );
  app.beliefs = await Promise.all(asked);
  const truth = pixel && pair.look(pixel, state.network)?.truth;
  showBeliefs(clip.networks, state.network, app.beliefs, pixel, truth, (level) => {
    if (app.level === level) return;
    app.level = level;
    refresh();
  });
  refresh();
}

// Follow the chosen point; what was being followed is given up.
function follow() {
  app.track?.close();
  const point = isTracking() && chosenPoint();
  const track = point ? new Track(point) : null;
  Object.assign(app, { track, pointed: null });
  find("status").textContent = "";
  showTrack();
  if (!track) return;
  const show = () => track === app.track && showTrack();
  watch(track.follow(app.clip.id, state.network, show));
}

function showTrack() {
  const { track } = app;
  showStrip(app, state.pair);
  if (isTracking()) showFollowing(app, state.pair);
  if (track) {
    const { isDone, places, size } = track;
    find("status").textContent = isDone ? "" : `Following … ${places.size} of ${size} frames`;
  }
  refresh();
}

function pointAt(frame) {
  if (frame === app.pointed) return;
  app.pointed = frame;
  showTrack();
}

async function chooseLevel() {
  if (state.layer !== "level" || !app.pair.estimates[state.network]) return;
  await app.pair.level(state.network, state.level);
  refresh();
}

function toggleFlicker() {
  clearInterval(flickering);
  const show = (name) => {
    app.flicker = name;
    showControls(app);
    refresh();
  };
  if (app.flicker) return show(null);
  show("warped");
  flickering = setInterval(() => show(app.flicker === "warped" ? "frame1" : "warped"), FLICKER);
}

onChange((changed) => {
  if (!app.pair) return;
  showControls(app);
  if (["point", "panel", "network"].some((name) => changed.has(name))) follow();
  const isLacking = needsFlow() && !app.pair.estimates[state.network];
  const changesView = ["layer", "panel"].some((name) => changed.has(name));
  if (changed.has("network") || (changesView && isLacking)) watch(estimateAll(app.pair));
  if (["maximum", "panel", "level", "layer"].some((name) => changed.has(name))) {
    showLevels(app.pair, app.clip);
  }
  if (["network", "level", "layer"].some((name) => changed.has(name))) watch(chooseLevel());
  if (changed.has("pixel")) watch(findBeliefs());
  refresh();
});

// A link to a clip that the server does not have any more shows the first one.
async function openFirst() {
  if (state.clip === "0") return openClip("0");
  try {
    await openClip(state.clip);
  } catch (error) {
    change({ clip: "0", pair: 0, pixel: "", point: "" });
    await openClip("0");
    throw error;
  }
}

if (!(state.layer in LAYERS || state.level)) change({ layer: "flow" });
listenToControls(app);
listenToStrip(app, (frame) => app.goTo(frame), pointAt);
listenToFiles((id) => {
  change({ pair: 0, pixel: "", point: "", zoom: 0 });
  return openClip(id);
});
watch(openFirst());
