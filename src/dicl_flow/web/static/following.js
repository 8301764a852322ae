// The inspector's panel of a track: the point, the frame that is shown, and the chain of flows.

import { find, make, makeRows } from "./page.js";

const INVITATION =
  "Click a point to follow it through the clip. Each position comes from a chain of flows: " +
  "of all chains, the one with the lowest expected error.";

export function showFollowing({ track, pointed }, present) {
  const panel = find("panel-track");
  if (!track) return panel.replaceChildren(make("p", { class: "hint" }, INVITATION));
  const { frame, x, y } = track.point;
  const about = make("small", {}, `of pixel ${x}, ${y} in frame ${frame}`);
  const chain = track.chain(pointed ?? present);
  const parts = chain.length ? [numbers(chain[0]), flows(chain)] : [];
  panel.replaceChildren(make("h2", {}, "Track ", about), ...parts, summary(track));
}

function numbers({ frame, x, y, visible, error }) {
  const texts = [
    ["Frame", frame],
    ["Position", `${x.toFixed(2)}, ${y.toFixed(2)}`],
    ["Seen", visible ? "visible" : "hidden"],
    ["Error", error === null ? "–" : `${error.toFixed(2)} px expected`],
  ];
  return make("dl", { class: "rows" }, ...makeRows(texts, "data-track"));
}

// A row for each flow of the chain, the latest first.
function flows(chain) {
  const names = ["flow", "frames", "position", "error, px"];
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  const body = chain.slice(0, -1).map(({ frame, from, x, y, error }) => {
    const cells = [
      Math.abs(frame - from),
      `${x.toFixed(1)}, ${y.toFixed(1)}`,
      error?.toFixed(2) ?? "–",
    ].map((text) => make("td", {}, String(text)));
    return make("tr", {}, make("th", { scope: "row" }, `${from} to ${frame}`), ...cells);
  });
  const count = chain.length - 1;
  const text = count ? `Chain of ${count} ${count === 1 ? "flow" : "flows"}` : "The point itself";
  const parts = count ? [make("thead", {}, head), make("tbody", {}, ...body)] : [];
  return make("table", {}, make("caption", {}, text), ...parts);
}

function summary(track) {
  const seen = track.inOrder.filter(({ visible }) => visible).length;
  const counted = `Visible in ${seen} of ${track.places.size} frames.`;
  const among = `Flows span ${track.intervals.join(", ")} frames, or start at the point itself.`;
  const reach = Math.max(track.last - track.point.frame, track.point.frame - track.first);
  const cropped = track.isCropped ? ` At most ${reach} frames on either side.` : "";
  return make("p", { class: "note" }, `${counted} ${among}${cropped}`);
}
