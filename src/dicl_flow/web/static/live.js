"use strict";

const numbers = document.getElementById("numbers");

async function refresh() {
  try {
    const state = await (await fetch("state")).json();
    if (state.flows) {
      const rate = state.frames_per_second.toFixed(1);
      numbers.textContent =
        `${state.size}, ${rate} frames/s, ${state.dropped} of ${state.frames} frames dropped, ` +
        `${Math.round(state.latency_ms)} ms behind` + (state.ended ? " (ended)" : "");
    }
    setTimeout(refresh, 500);
  } catch {
    numbers.textContent = "the program has ended";
  }
}

refresh();
