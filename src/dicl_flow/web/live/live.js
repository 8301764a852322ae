"use strict";

const numbers = document.getElementById("numbers");
const picture = document.getElementById("picture");

function described(state) {
  const rate = state.frames_per_second.toFixed(1);
  const delay = (state.latency_ms / 1000).toFixed(2);
  return `${rate} flows per second, ${delay} s behind, frames of ${state.size}, ` +
    `${state.dropped} of ${state.frames} skipped`;
}

function show(state) {
  numbers.textContent = described(state);
  if (picture.hidden) {
    picture.src = "pictures";
    picture.hidden = false;
  }
}

async function refresh() {
  try {
    const state = await (await fetch("state")).json();
    if (state.flows) show(state);
    setTimeout(refresh, 500);
  } catch {
    numbers.textContent += " (ended)";
  }
}

refresh();
