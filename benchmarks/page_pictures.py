"""Draw the pictures that the pages show.

    python benchmarks/page_pictures.py demo             # demo.jpg, of the packaged weights
    python benchmarks/page_pictures.py explorer         # explore.webp, explore-levels.webp
    python benchmarks/page_pictures.py places PHOTOS    # places.webp: solid scenes of every kind
    python benchmarks/page_pictures.py domains PHOTOS   # domains.webp: clips of every domain
    python benchmarks/page_pictures.py adapting CLIP RUN.adapt [START]   # adapting.webp

The explorer's need Playwright and a browser, Debian's `chromium`. RUN.adapt is the folder that
`dicl-flow adapt CLIP -o RUN.safetensors` leaves, START the weights it began with.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import dicl_flow
from dicl_flow.adaptation.acceptance import error_pictures
from dicl_flow.adaptation.footage import used_images
from dicl_flow.adaptation.report import pairs_sheet
from dicl_flow.adaptation.student import between
from dicl_flow.config import PLACES, RenderConfig
from dicl_flow.config.render import EFFECTS
from dicl_flow.data import demo_pairs
from dicl_flow.estimation.estimator import BothWays
from dicl_flow.evaluation import draw_demo
from dicl_flow.files import Array, decode_image, to_uint8, write_files
from dicl_flow.pictures.figures import contact_sheet, thumbnail
from dicl_flow.pictures.visualize import flow_to_rgb
from dicl_flow.render import Renderer, domain_clip, load_textures
from dicl_flow.training import RunFolder
from dicl_flow.weights import read_weights, resolve

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
EXPLORE = ("-m", "dicl_flow", "explore", "--port", "0", "--no-browser", "--json", "--device", "cpu")
SHOWN = {
    "explore.webp": ("#pair=1&layer=overlay&pixel=145,142", (1280, 720)),
    "explore-levels.webp": ("#pair=1&panel=levels", (1280, 900)),
}
"""By file: what the page shows, and the size of the window."""
SEEDS = (38, 13, 26, 0, 3, 28)  # of the scenes of each place: everything is in view
DOMAIN_SEEDS = {
    **{"thermal": 4, "underwater": 1, "endoscopic": 1},
    **{"fog": 1, "night": 0, "fluid": 1},
}
LEVEL = 5  # of the thumbnails: stride 16, after the context net


def draw_demo_picture() -> None:
    """The sheet of the film's frames."""
    pair = demo_pairs()[0]
    write(Path("demo.jpg"), draw_demo(pair, dicl_flow.load(device="cpu")(pair.image1, pair.image2)))


def write(path: Path, image: Array) -> None:
    """Write an (H, W, 3) picture, small enough for a page."""
    quality = {".jpg": (cv2.IMWRITE_JPEG_QUALITY, 88), ".webp": (cv2.IMWRITE_WEBP_QUALITY, 85)}
    write_files({path: bytes(cv2.imencode(path.suffix, image[..., ::-1], quality[path.suffix])[1])})


@contextmanager
def explorer() -> Iterator[str]:
    """Start `dicl-flow explore` on the demo; yield the address of its page."""
    with subprocess.Popen([sys.executable, *EXPLORE], stdout=subprocess.PIPE, text=True) as command:
        try:
            yield json.loads(command.stdout.readline())["address"]
        finally:
            command.terminate()


def draw_places(photos: Path) -> None:
    """Two frames, flow, distance and occlusion of a scene in every kind of place."""
    textures = load_textures(photos)
    rows = []
    for number, kind in enumerate(PLACES):
        clear = dict.fromkeys(EFFECTS, (0.0, 0.0))
        config = RenderConfig(tiny_share=0.0, motion=0.6, **clear).only(kind)
        scene = Renderer(config, (240, 400), textures, seed=SEEDS[number]).render(1, 0)
        sample = scene.to_samples()[0]
        near = np.exp(-scene.distance[0].numpy() / 15)
        distance = cv2.applyColorMap((255 * near).astype(np.uint8), cv2.COLORMAP_MAGMA)[..., ::-1]
        hidden = np.repeat(np.where(sample.occluded, 255, 0).astype(np.uint8)[..., None], 3, axis=2)
        flow = np.where(sample.valid[..., None], sample.flow, np.float32(np.nan))
        pictures = [sample.image1, sample.image2, flow_to_rgb(flow), distance, hidden]
        rows.append([thumbnail(picture) for picture in pictures])
    columns = ("frame 1", "frame 2", "flow", "distance", "hidden in frame 2")
    write(Path("places.webp"), contact_sheet(rows, list(PLACES), columns))


def draw_domains(photos: Path) -> None:
    """Two frames and the flow of a clip of every domain, in two columns of three."""
    textures = load_textures(photos, limit=60)
    cells = []
    for name, seed in DOMAIN_SEEDS.items():
        clip = domain_clip(name, (240, 320), textures, 2, seed=seed)
        flow = clip.flow(0, 1)
        known = np.where(clip.valid(flow)[..., None], flow.permute(1, 2, 0).numpy(), np.nan)
        frames = [to_uint8(frame) for frame in clip.frames().permute(0, 2, 3, 1).numpy()]
        pictures = [*frames, flow_to_rgb(known.astype(np.float32))]
        cells.append([thumbnail(picture, 240, 180) for picture in pictures])
    names, columns = [*DOMAIN_SEEDS], ("frame 1", "frame 2", "flow")
    halves = [contact_sheet(cells[half::2], names[half::2], columns, 240, 180) for half in range(2)]
    write(Path("domains.webp"), np.concatenate(halves, 1))


def draw_adapting(clip: str, run: Path, start: str = "rendered") -> None:
    """The held-back pair with the largest warping error before, before and after."""
    report = json.loads((run / "report.json").read_text())
    worst = max(report["pairs"], key=lambda pair: pair["before"][0])
    before, end = map(read_weights, (resolve(start), RunFolder(run / "student").weights))
    after = between(before, end, report["share"])
    numbers = {worst["first"], worst["second"]}
    frames = [image for _, image in used_images(clip, numbers, before.config.max_pixels)]
    networks = [BothWays(dicl_flow.load(weights)) for weights in (before, after)]
    label = f"frames {worst['first']} and {worst['second']}: warping error "
    label += "{:.3f} before, {:.3f} after".format(worst["before"][0], worst["after"][0])
    sheet = pairs_sheet([(label, frames[0], *error_pictures(networks, *frames))])
    write(Path("adapting.webp"), decode_image(sheet, "the sheet"))


def draw_explorer_pictures() -> None:
    """Screenshots of the page."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit("error: no browser; install Debian's package chromium")
    with sync_playwright() as driver, explorer() as address:
        browser = driver.chromium.launch(executable_path=path)
        for name, (state, (width, height)) in SHOWN.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark"
            )
            page.set_default_timeout(120_000)
            page.goto(f"{address}{state}")
            show(page, name)
            data = np.frombuffer(page.screenshot(), np.uint8)
            write(Path(name), cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1])
            page.close()
        browser.close()


def show(page: Any, name: str) -> None:
    """Wait for the flow, then for what the picture is about."""
    page.locator("#maximum:not([placeholder=auto])").wait_for()
    if "levels" in name:
        page.locator("#panel-levels button").nth(LEVEL).click()
    else:
        page.locator("#panel-pixel figure canvas").first.wait_for()
    page.wait_for_load_state("networkidle")


DRAW = {"demo": draw_demo_picture, "explorer": draw_explorer_pictures}

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["places", photos]:
            draw_places(Path(photos))
        case ["domains", photos]:
            draw_domains(Path(photos))
        case ["adapting", clip, run, *start] if len(start) < 2:
            draw_adapting(clip, Path(run), *start)
        case [name] if name in DRAW:
            DRAW[name]()
        case _:
            sys.exit("error: expected what the first lines of this file list")
