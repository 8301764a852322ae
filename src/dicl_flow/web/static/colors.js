// Colours of flow, errors and probabilities, as the command line draws them.

const CORNERS = [
  [255, 0, 0],
  [255, 255, 0],
  [0, 255, 0],
  [0, 255, 255],
  [0, 0, 255],
  [255, 0, 255],
];
const STEPS = [15, 6, 4, 11, 13, 6];
const WHEEL = makeWheel();
const OUT_OF_RANGE = 0.75; // vectors beyond the maximum are darkened
const CALMEST = 1; // px: shorter vectors do not get full colour
const UNKNOWN = 1e9;
const INFERNO = Uint8Array.from(
  atob(
    "AAAEAQAFAQEGAQEIAgEKAgIMAgIOAwIQBAMSBAMUBQQXBgQZBwUbCAUdCQYfCgciCwckDAgmDQgpDgkrEAkt" +
      "EQowEgoyFAs0FQs3Fgs5GAw8GQw+GwxBHAxDHgxFHwxIIQxKIwxMJAxPJgxRKAtTKQtVKwtXLQtZLwpbMQpc" +
      "MgpeNApfNglhOAliOQljOwlkPQllPglmQApnQgpoRApoRQppRwtqSQtqSgxrTAxrTQ1sTw1sUQ5sUg5tVA9t" +
      "VQ9tVxBuWRBuWhFuXBJuXRJuXxNuYRNuYhRuZBVuZRVuZxZuaRZuahdubBhubRhubxlucRluchpudBpudRtu" +
      "dxxteBxteh1tfB1tfR5tfx5sgB9sgiBshCBrhSFrhyFriCJqiiJqjCNpjSNpjyRpkCVokiVokyZnlSZnlydm" +
      "mCdmmihlmylknSlknypjoCpjoitioyxhpSxgpi1gqC5fqS5eqy9erTBdrjBcsDFbsTJaszJatDNZtjRYtzVX" +
      "uTVWujZVvDdUvThTvzlSwDpRwTpQwztPxDxOxj1Nxz5MyD9LykBKy0FJzEJIzkNHz0RG0EVF0kZE00dD1EhC" +
      "1UpB10s/2Ew+2U092k4821A73VE63lI431M34FU24VY14lc041kz5Fox5Vww5l0v514u6GAt6WEr6mMq62Qp" +
      "62Yo7Gcm7Wkl7mok72wj724h8G8g8XEf8XMd8nQc83Yb83gZ9HkY9XsX9X0V9n4U9oAT94IS94QQ+IUP+IcO" +
      "+IkM+YsL+YwK+Y4J+pAI+pIH+pQH+5YG+5cG+5kG+5sG+50H/J8H/KEI/KMJ/KUK/KYM/KgN/KoP/KwR/K4S" +
      "/LAU/LIW/LQY+7Ya+7gd+7of+7wh+74j+sAm+sIo+sQq+sYt+ccv+cky+cs1+M03+M8699E999NA9tVD9tdG" +
      "9dlJ9dtM9N1P9N9T9OFW8+Na8+Vd8uZh8uhl8upp8ext8e1x8e918fF58vJ98vSC8/WG8/aK9PiO9fmS9vqW" +
      "+Pua+fyd+v2h/P+k",
  ),
  (letter) => letter.charCodeAt(0),
);

function makeWheel() {
  return CORNERS.flatMap((start, corner) => {
    const end = CORNERS[(corner + 1) % CORNERS.length];
    return Array.from({ length: STEPS[corner] }, (_, step) => {
      const ramp = Math.floor((255 * step) / STEPS[corner]) / 255;
      return start.map((from, channel) => (from + (end[channel] - from) * ramp) / 255);
    });
  });
}

export const isKnown = (u, v) => Math.abs(u) < UNKNOWN && Math.abs(v) < UNKNOWN;

// The length in px with full colour: the longest known vector, at least 1.
export function fullColor({ u, v }) {
  let most = 0;
  for (let i = 0; i < u.length; i++) {
    if (isKnown(u[i], v[i])) most = Math.max(most, u[i] * u[i] + v[i] * v[i]);
  }
  return Math.max(Math.sqrt(most), CALMEST);
}

// Write the colour of a vector into `target` at `place`.
export function colorVector(target, place, u, v, maximum) {
  if (!isKnown(u, v)) {
    target[place] = target[place + 1] = target[place + 2] = 0;
    return;
  }
  const saturation = Math.hypot(u, v) / maximum;
  const position = ((Math.atan2(-v, -u) / Math.PI + 1) / 2) * (WHEEL.length - 1);
  const below = Math.floor(position);
  const fraction = position - below;
  const one = WHEEL[below];
  const two = WHEEL[(below + 1) % WHEEL.length];
  for (let channel = 0; channel < 3; channel++) {
    const hue = (1 - fraction) * one[channel] + fraction * two[channel];
    const color = saturation <= 1 ? 1 - saturation * (1 - hue) : hue * OUT_OF_RANGE;
    target[place + channel] = Math.floor(255 * color);
  }
}

export function vectorColor(u, v, maximum) {
  const color = [0, 0, 0];
  colorVector(color, 0, u, v, maximum);
  return `rgb(${color})`;
}

// Black is 0, bright is 1.
export function inferno(share) {
  const place = 3 * Math.round(255 * Math.min(Math.max(share, 0), 1));
  return [INFERNO[place], INFERNO[place + 1], INFERNO[place + 2]];
}
