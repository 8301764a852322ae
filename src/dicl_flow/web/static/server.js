// What the page asks the server for.

async function ask(path, options = {}) {
  const response = await fetch(path, options);
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Error(answer.error ?? `the server answered ${response.status}`);
}

const place = (clip, pair) => `explore/clips/${clip}/${pair}`;

export async function askClip(clip) {
  return (await ask(`explore/clips/${clip}`)).json();
}

// A frame as ImageData, with the exact values of its pixels.
export async function askFrame(clip, pair, number, signal) {
  const response = await ask(`${place(clip, pair)}/frame${number}.png`, { signal });
  const exact = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(await response.blob(), exact);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

async function askPlanes(path, count, signal) {
  const response = await ask(path, { signal });
  const all = new Float32Array(await response.arrayBuffer());
  const size = all.length / count;
  return Array.from({ length: count }, (_, k) => all.subarray(k * size, (k + 1) * size));
}

export async function askEstimate(clip, pair, network, signal) {
  const path = `${place(clip, pair)}/estimate?network=${network}`;
  const [u, v, confidence] = await askPlanes(path, 3, signal);
  return { u, v, confidence };
}

export async function askOcclusion(clip, pair, network, signal) {
  const response = await ask(`${place(clip, pair)}/occlusion?network=${network}`, { signal });
  return new Uint8Array(await response.arrayBuffer());
}

export async function askTruth(clip, pair, signal) {
  const [u, v] = await askPlanes(`${place(clip, pair)}/truth`, 2, signal);
  return { u, v };
}

export async function askLevel(clip, pair, network, stride, stage, signal) {
  const query = new URLSearchParams({ network, stride, stage });
  const [u, v] = await askPlanes(`${place(clip, pair)}/level?${query}`, 2, signal);
  return { u, v };
}

export async function askBeliefs(clip, pair, network, { x, y }, signal) {
  const query = new URLSearchParams({ network, x, y });
  return (await ask(`${place(clip, pair)}/beliefs?${query}`, { signal })).json();
}

// The lines of a track, as they are computed.
export async function* askTrack(clip, { frame, x, y }, network, signal) {
  const query = new URLSearchParams({ network, x, y });
  const response = await ask(`${place(clip, frame)}/track?${query}`, { signal });
  const texts = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await texts.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

export const flowFile = (clip, pair, network) =>
  `${place(clip, pair)}/flow.flo?network=${network}`;

// Send two images or a video; return the id of the new clip.
export async function sendFiles(files) {
  const form = new FormData();
  const [first, second] = files;
  if (second) {
    form.append("image1", first);
    form.append("image2", second);
  } else {
    form.append("video", first);
  }
  const query = new URLSearchParams({ name: first.name, kind: second ? "pair" : "video" });
  const response = await ask(`explore/clips?${query}`, { method: "POST", body: form });
  return (await response.json()).id;
}
