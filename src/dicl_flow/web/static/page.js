// Small helpers for elements, numbers and messages.

export const find = (id) => document.getElementById(id);

// Make an element: make("dd", { class: "number" }, "text", child, …).
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Rows of a definition list: [name, text]; each can be found by its name.
export function makeRows(texts, attribute) {
  return texts.map(([name, text]) =>
    make("div", { [attribute]: name }, make("dt", {}, name), make("dd", {}, String(text))),
  );
}

// Numbers with a sign of fixed width, so that columns do not jump.
export const signed = (value, digits = 2) =>
  (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
export const vector = ([u, v], digits = 2) => `${signed(u, digits)}, ${signed(v, digits)}`;

let hiding = 0;

export function tell(text) {
  const message = find("message");
  message.textContent = text;
  message.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => (message.hidden = true), 6000);
}

// Show the error of a promise, unless it was aborted because nobody needs it any more.
export function watch(promise) {
  return promise.catch((error) => {
    if (error.name !== "AbortError") tell(error.message);
  });
}

// Buttons of which one is chosen: {id: label}.
export function makeSegments(parent, labels, choose) {
  const buttons = Object.entries(labels).map(([id, label]) => {
    const button = make("button", { role: "radio", "data-id": id }, label);
    button.addEventListener("click", () => choose(id));
    return button;
  });
  parent.replaceChildren(...buttons);
}

export function showChosen(parent, id) {
  for (const button of parent.children) {
    button.setAttribute("aria-checked", String(button.dataset.id === String(id)));
  }
}

// Give a canvas the size of the screen's pixels, and return its context in CSS pixels.
export function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
