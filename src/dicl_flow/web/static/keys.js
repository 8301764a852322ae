// Keys for everything; `?` lists them.

import { find, make } from "./page.js";

// [keys, what they do, action]; long rows of keys are listed as the first … the last.
export function listenToKeys(actions) {
  const byKey = new Map();
  const list = find("keys").querySelector("dl");
  for (const [keys, purpose, action] of actions) {
    const listed = keys.length > 4 ? [keys[0], "…", keys.at(-1)] : keys;
    const names = listed.flatMap((key) => [make("kbd", {}, NAMES[key] ?? key), " "]);
    list.append(make("div", {}, make("dt", {}, ...names), make("dd", {}, purpose)));
    for (const key of keys) byKey.set(key, action);
  }
  document.addEventListener("keydown", (event) => {
    const action = byKey.get(event.key);
    if (!action || event.ctrlKey || event.metaKey || event.altKey || isUsed(event)) return;
    event.preventDefault();
    action(event);
  });
}

const NAMES = {
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  " ": "space",
  Escape: "Esc",
};

// Keys that a field or a button in focus needs itself.
function isUsed({ key, target }) {
  if (target.closest("dialog")) return key !== "?"; // the browser closes it with Esc
  if (target.matches("input[type=number]")) return true;
  if (target.matches("input[type=range]")) return key.startsWith("Arrow");
  return target.matches("button, summary") && (key === " " || key === "Enter");
}
