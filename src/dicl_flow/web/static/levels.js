// The flow of each level side by side: one sees which level fails.

import { meanError } from "./layers.js";
import { find, make, prepare, watch } from "./page.js";
import { change, state } from "./state.js";

const STAGES = { matched: "matched", refined: "after context" };
const GAP = 12;

// Show the panel again: for another pair, network or colour scale.
export function showLevels(pair, clip) {
  const panel = find("panel-levels");
  if (state.panel !== "levels" || !pair?.estimates[state.network]) return;
  const { strides } = clip.networks[state.network];
  const width = Math.floor((panel.clientWidth - GAP) / 2);
  const heads = Object.values(STAGES).map((name) => make("p", { class: "stage" }, name));
  const grid = make("div", { class: "levels" }, ...heads);
  for (const stride of strides) {
    for (const stage of Object.keys(STAGES)) grid.append(level(pair, stride, stage, width));
  }
  const hint = "Choose one to see it in the view.";
  panel.replaceChildren(make("p", { class: "hint" }, hint), grid);
}

function level(pair, stride, stage, width) {
  const name = `${stride} ${stage}`;
  const canvas = make("canvas");
  const caption = make("span", {}, `stride ${stride}`);
  const chosen = state.layer === "level" && state.level === name;
  const label = `Flow of stride ${stride}, ${STAGES[stage]}`;
  const button = make("button", { "aria-pressed": chosen, "aria-label": label }, canvas, caption);
  button.addEventListener("click", () => change({ layer: "level", level: name }));
  const height = Math.round((width * pair.height) / pair.width);
  const context = prepare(canvas, width, height);
  const network = state.network;
  watch(
    pair.level(network, name).then((flow) => {
      const picture = pair.picture(name, network, state.maximum);
      context.imageSmoothingQuality = "high";
      context.drawImage(picture, 0, 0, width, height);
      if (!pair.truth) return;
      caption.append(make("b", {}, `${meanError(flow, pair.truth).toFixed(2)} px`));
    }),
  );
  return button;
}
