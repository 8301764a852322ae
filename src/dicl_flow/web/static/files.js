// Files: opened or dropped onto the page, and saved.

import { find, tell, watch } from "./page.js";
import { sendFiles } from "./server.js";

const WANTED = "Drop two images, or one video";
const inOrder = new Intl.Collator(undefined, { numeric: true });

// Call `open` with the id of the clip when files were dropped or chosen.
export function listenToFiles(open) {
  const drop = find("drop");
  const input = find("files");
  find("open").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    watch(take([...input.files], open));
    input.value = "";
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.hidden = true;
    watch(take([...event.dataTransfer.files], open));
  });
}

async function take(files, open) {
  const images = files.filter((file) => file.type.startsWith("image/") && !isMoving(file));
  if (files.length === 2 && images.length === 2) {
    images.sort((one, two) => inOrder.compare(one.name, two.name));
    return open(await sendFiles(images));
  }
  if (files.length !== 1 || images.length) return tell(WANTED);
  return open(await sendFiles(files));
}

const isMoving = (file) => file.type === "image/gif";

export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  saveAddress(address, name);
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function saveAddress(address, name) {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}
