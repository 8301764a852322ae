// The pairs of a clip in order: go to one, or play them.

import { find, watch } from "./page.js";
import { state } from "./state.js";

const SLOWEST = 4; // pairs per second of images, which have no rate

let playing = false;

export function listenToTimeline(app) {
  const step = (by) => go(app, Math.min(Math.max(state.pair + by, 0), last(app)));
  const play = () => {
    playing = !playing && last(app) > 0;
    showTimeline(app);
    if (playing) watch(run(app)).finally(() => stop(app));
  };
  find("previous").addEventListener("click", () => step(-1));
  find("next").addEventListener("click", () => step(1));
  find("play").addEventListener("click", play);
  find("moment").addEventListener("input", ({ target }) => go(app, Number(target.value)));
  app.goTo = (frame) => go(app, Math.min(frame, last(app)));
  return { step, play };
}

export function showTimeline(app) {
  find("timeline").hidden = last(app) < 1;
  find("moment").max = last(app);
  find("moment").value = state.pair;
  find("moment-name").textContent = `${state.pair + 1} / ${last(app) + 1}`;
  find("play").textContent = playing ? "❚❚" : "▶";
  find("play").setAttribute("aria-pressed", String(playing));
}

const last = (app) => app.clip.pairs.length - 1;

function go(app, number) {
  playing = false;
  if (number !== state.pair) watch(app.openPair(number));
}

function stop(app) {
  playing = false;
  showTimeline(app);
  app.finishPair(); // while playing, only the flow is estimated
}

async function run(app) {
  const pause = 1000 / (app.clip.rate ?? SLOWEST);
  if (state.pair === last(app)) await show(app, 0, pause);
  while (playing && state.pair < last(app)) await show(app, state.pair + 1, pause);
}

// Show a pair when it is estimated, but no sooner than the clip's rate says.
async function show(app, number, pause) {
  const enough = new Promise((resolve) => setTimeout(resolve, pause));
  await app.openPair(number, true);
  await enough;
}
