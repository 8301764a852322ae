"""The explorer's page works in a real browser."""

import re
import shutil
from base64 import b64encode
from dataclasses import replace

import cv2
import numpy as np
import pytest
from clips import KnownShifts, write_video
from fake_trees import moving_frames
from networks import explored_networks

from dicl_flow.data import FlowPair
from dicl_flow.files import decode_flow
from dicl_flow.lab.analyses import read_pixel
from dicl_flow.pictures.visualize import flow_to_rgb

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("playwright", reason="Playwright, which drives a browser, is not installed")
from playwright.sync_api import expect, sync_playwright
from servers import serving

from dicl_flow.web.clips import Clip, clip_of_arrays
from dicl_flow.web.explorer import Exploration, explorer_pages

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("browser")]

SIZE = (64, 96)
FRAMES, TRUTH = moving_frames(3, SIZE)
DROP = """files => {
  const items = new DataTransfer();
  for (const [name, type, text] of files) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    items.items.add(new File([bytes], name, { type }));
  }
  for (const kind of ["dragover", "drop"]) {
    document.body.dispatchEvent(
      new DragEvent(kind, { dataTransfer: items, bubbles: true, cancelable: true }));
  }
}"""
KEEP_MOMENTS = """() => {
  const name = document.getElementById("moment-name");
  const keep = () => document.body.dataset.moments += name.textContent;
  new MutationObserver(keep).observe(name, { childList: true });
}"""
"""What is shown while a clip plays, however short: a look from outside may miss it."""
PIXEL = "[...document.getElementById('view1').getContext('2d').getImageData(%d, %d, 1, 1).data]"


def browser_path():
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def networks():
    return explored_networks()


class Shifts(KnownShifts):
    scenes = ((FRAMES, TRUTH[0, 0]),)


@pytest.fixture(scope="module")
def server(networks):
    first = clip_of_arrays("one", *FRAMES[:2], TRUTH).pairs[0]
    second = replace(clip_of_arrays("two", *FRAMES[1:]).pairs[0], follows=True)
    exploration = Exploration(networks, Clip("moving", [first, second], 10))
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(networks["with"], pages=explorer_pages(exploration)) as running,
    ):
        patch.setattr("dicl_flow.web.tracks.FlowSequence", Shifts)
        yield running
    exploration.close()


@pytest.fixture(scope="module")
def browser():
    if browser_path() is None:
        pytest.skip("no browser: install Debian's package chromium")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser_path())
        yield started
        started.close()


@pytest.fixture
def page(browser, server):
    """The page with its first flow; any error of its scripts fails the test."""
    errors = []
    context = browser.new_context(viewport={"width": 1280, "height": 720}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(10_000)
    opened = context.new_page()
    opened.on("pageerror", lambda error: errors.append(error))
    opened.goto(f"http://{server.host}:{server.port}/")
    expect(opened.locator("#maximum")).not_to_have_attribute("placeholder", "auto")
    yield opened
    context.close()
    assert errors == []


def png(image):
    return bytes(cv2.imencode(".png", image[..., ::-1])[1])


def place(page, x, y):
    """The middle of a pixel of frame 1, on the screen; the whole frame is shown."""
    box = page.locator("#view1").bounding_box()
    scale = min(box["width"] / SIZE[1], box["height"] / SIZE[0])
    left = box["x"] + (box["width"] - scale * SIZE[1]) / 2
    top = box["y"] + (box["height"] - scale * SIZE[0]) / 2
    return left + (x + 0.5) * scale, top + (y + 0.5) * scale


def shown_color(page, x, y):
    """The colour on the screen at the middle of a pixel of frame 1."""
    screen_x, screen_y = place(page, x, y)
    box = page.locator("#view1").bounding_box()
    script = PIXEL % (screen_x - box["x"], screen_y - box["y"])
    page.evaluate("() => new Promise(requestAnimationFrame)")
    return page.evaluate(script)[:3]


def readout(page, name):
    return page.locator(f"[data-name={name}] dd").inner_text()


def numbers(text):
    return [float(word) for word in text.replace("−", "-").replace(",", " ").split()[:2]]


def test_hovering_reads_a_pixel(page, networks):
    result = networks["with"](*FRAMES[:2], backward=True)
    page.mouse.move(*place(page, 70, 20))
    assert readout(page, "Pixel") == "70, 20"
    flow, confidence = result.flow[20, 70], result.confidence[20, 70]
    assert numbers(readout(page, "Flow")) == pytest.approx(flow, abs=0.006)
    assert numbers(readout(page, "Match")) == pytest.approx([70 + flow[0], 20 + flow[1]], abs=0.006)
    assert float(readout(page, "Confidence")) == pytest.approx(confidence, abs=6e-4)
    hidden = "hidden" if result.occlusion[20, 70] else "visible"
    expect(page.locator("[data-name=Occlusion] dd")).to_have_text(hidden)
    error = np.hypot(*(flow - TRUTH[20, 70]))
    assert readout(page, "Error") == f"{error:.2f} px"


def check_map(page, canvas, pixel_map):
    """Point at a corner of a map and at its best cell, and compare what the page tells."""
    cells = len(pixel_map.probability)
    side, radius = canvas.bounding_box()["width"] / cells, cells // 2
    for u, v in ((radius, -radius), pixel_map.displacement):
        canvas.hover(position={"x": (u + radius + 0.5) * side, "y": (v + radius + 0.5) * side})
        told = page.locator("#beliefs .note").inner_text().replace("−", "-")
        assert told.startswith(f"Stride {pixel_map.stride}, displacement ({u:+}, {v:+}): ")
        found = float(told.split(": ")[1])
        assert found == pytest.approx(pixel_map.probability[u + radius, v + radius], abs=6e-5)


def test_clicking_shows_the_beliefs_of_analyze_pixel(page, networks, tmp_path):
    files = [tmp_path / "one.png", tmp_path / "two.png"]
    for file, frame in zip(files, FRAMES, strict=False):
        file.write_bytes(png(frame))
    expected = read_pixel(networks, FlowPair("one", *files), 33, 40)
    page.mouse.click(*place(page, 33, 40))
    for name, stage, label in [
        ("with", "before", "with, before DAP"),
        ("with", "after", "with, after DAP"),
        ("without", "before", "without, without DAP"),
    ]:
        maps = page.locator(f"[data-network={name}] [data-stage={stage}] canvas")
        expect(maps).to_have_count(2)
        for canvas, pixel_map in zip(maps.all(), expected[label], strict=True):
            check_map(page, canvas, pixel_map)
    expect(page).to_have_url(re.compile("pixel=33%2C40"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    expect(page).to_have_url(re.compile("pixel=34%2C50"))
    expect(page.locator("#beliefs h2")).to_have_text("Beliefs about pixel 34, 50")


def test_layers_have_the_colours_of_the_command_line(page, networks):
    flow = networks["with"](*FRAMES[:2]).flow
    colors = flow_to_rgb(flow)
    for x, y in ((60, 21), (81, 33)):  # not below the captions
        assert shown_color(page, x, y) == pytest.approx(colors[y, x], abs=1)
    page.keyboard.press("1")
    assert shown_color(page, 60, 21) == [*FRAMES[0][21, 60]]
    page.keyboard.press("2")
    assert shown_color(page, 60, 21) == [*FRAMES[1][21, 60]]
    for _ in range(5):
        page.keyboard.press(",")  # half of frame 2 over frame 1
    half = (FRAMES[0][21, 60].astype(int) + FRAMES[1][21, 60]) / 2
    assert shown_color(page, 60, 21) == pytest.approx(half, abs=2)
    page.locator("#wipe").fill("0.75")  # frame 1 to the left of it
    assert shown_color(page, 60, 21) == [*FRAMES[0][21, 60]]
    for key in "345678":
        page.keyboard.press(key)
        assert page.locator("#layers [aria-checked=true]").get_attribute("data-id")


def test_weights_levels_and_pairs_are_changed(page):
    page.keyboard.press("n")
    expect(page.locator("#weights [aria-checked=true]")).to_have_text("without")
    page.keyboard.press("l")
    thumbnails = page.locator("#panel-levels button")
    thumbnails.nth(1).locator("b").wait_for()  # the error of the level
    assert thumbnails.count() == 4
    thumbnails.nth(1).click()
    expect(page.locator("#caption1")).to_have_text("Flow of stride 8, after context")
    page.keyboard.press("]")
    expect(page.locator("#title")).to_contain_text("/ two")
    expect(page.locator("#moment-name")).to_have_text("2 / 2")
    assert page.locator("[data-id=error]").is_disabled()
    page.evaluate(KEEP_MOMENTS)
    page.keyboard.press(" ")  # plays from the start to the end
    expect(page.locator("body")).to_have_attribute("data-moments", re.compile("1 / 2.*2 / 2$"))


def test_keys_zoom_flicker_and_help(page):
    page.mouse.click(*place(page, 33, 40))
    page.keyboard.press("c")
    expect(page).to_have_url(re.compile("zoom=16"))
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("zoom"))
    page.keyboard.press("f")
    expect(page.locator("#caption1")).to_have_text("Frame 1")
    page.keyboard.press("f")
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    assert page.locator("#keys dt").count() == 21
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()
    expect(page).to_have_url(re.compile("pixel"))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("pixel"))
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_a_point_is_followed_over_the_timeline(page):
    right, down = TRUTH[0, 0].tolist()
    page.keyboard.press("p")
    expect(page.locator("#caption1")).to_have_text("Frame 1")
    assert page.locator("#track").is_hidden()
    page.mouse.click(*place(page, 40, 30))
    expect(page.locator("#strip rect.visible")).to_have_count(3)
    expect(page).to_have_url(re.compile("point=0%2C40%2C30"))
    expect(page.locator("#track-note")).to_have_text("Frame 0: 40.0, 30.0 · the point itself")
    box = page.locator("#strip rect").last.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    where = f"{40 + 2 * right:.1f}, {30 + 2 * down:.1f}"
    expect(page.locator("#track-note")).to_have_text(
        re.compile(rf"Frame 2: {where} · visible · expected error [\d.]+ px · flow over \d frame")
    )
    expect(page.locator("#panel-track [data-track=Position]")).to_contain_text(f"{40 + 2 * right}")
    flows = page.locator("#panel-track tbody tr").count()
    assert page.locator("#strip .arc").count() == flows > 0
    page.mouse.click(box["x"] + 3, box["y"] + 3)  # the last pair shows the last frame
    expect(page.locator("#moment")).to_have_value("1")
    page.mouse.move(*place(page, 40 + 2 * right, 30 + 2 * down))
    expect(page.locator("#track-note")).to_contain_text(f"Frame 2: {where}")
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("point=0%2C41%2C30"))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("point"))
    assert page.locator("#track").is_hidden()
    page.keyboard.press("p")
    expect(page.locator("#caption1")).to_have_text("Flow")


ARROW = """async ([u, v]) => {
  const { arrowScale, drawArrow } = await import("./static/marks.js");
  const calls = [];
  const context = { beginPath() {}, stroke() {}, fill() {} };
  for (const name of ["arc", "moveTo", "lineTo"]) {
    context[name] = (x, y) => calls.push([name, x, y]);
  }
  drawArrow(context, [10, 10], [u, v], arrowScale(8));
  return calls;
}"""


def test_arrows_are_to_scale_and_short_ones_dots(page):
    longest, half = (page.evaluate(ARROW, [length, 0])[1] for length in (8, 4))
    assert (longest[0], half[0]) == ("lineTo", "lineTo")
    assert longest[1] - 10 == pytest.approx(2 * (half[1] - 10))
    assert page.evaluate(ARROW, [0.8, 0]) == [["arc", 10, 10]]
    page.keyboard.press("4")
    expect(page.locator("#caption1")).to_have_text("Arrows")
    wide = page.locator("#legend").bounding_box()["width"]
    page.keyboard.press("3")
    expect(page.locator("#caption1")).to_have_text("Flow")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert page.locator("#legend").bounding_box()["width"] < wide


def test_dropped_files_and_what_cannot_be_used(page, tmp_path):
    files = [["b.png", FRAMES[2]], ["a.png", FRAMES[1]]]  # sorted by name
    dropped = [[name, "image/png", b64encode(png(f)).decode()] for name, f in files]
    page.evaluate(DROP, dropped)
    expect(page.locator("#title")).to_contain_text("a.png · 96×64")
    page.keyboard.press("1")
    assert shown_color(page, 60, 21) == [*FRAMES[1][21, 60]]
    video = write_video(tmp_path / "clip.mkv", FRAMES).read_bytes()
    page.evaluate(DROP, [["clip.mkv", "video/x-matroska", b64encode(video).decode()]])
    expect(page.locator("#title")).to_contain_text("clip.mkv / frame 0 · 96×64")
    expect(page.locator("#moment-name")).to_have_text("1 / 2")
    page.evaluate(DROP, dropped[:1])
    expect(page.locator("#message")).to_have_text("Drop two images, or one video")
    page.evaluate(DROP, [["a.mp4", "video/mp4", b64encode(b"no video").decode()]])
    expect(page.locator("#message")).to_contain_text("video is not an MP4")


def test_exports(page, networks):
    result = networks["with"](*FRAMES[:2])
    with page.expect_download() as download:
        page.click("#save-flow")
    flow = decode_flow("x.flo", download.value.path().read_bytes())
    np.testing.assert_allclose(flow, result.flow, atol=1e-5)
    with page.expect_download() as download:
        page.keyboard.press("s")
    assert download.value.suggested_filename == "flow.png"
    picture = cv2.imdecode(np.frombuffer(download.value.path().read_bytes(), np.uint8), 1)
    difference = picture[..., ::-1].astype(int) - flow_to_rgb(flow)
    assert np.abs(difference).max() <= 1
    page.keyboard.press("6")
    page.click("#copy-link")
    copied = page.evaluate("navigator.clipboard.readText()")
    page.goto("about:blank")
    page.goto(copied)
    expect(page.locator("#caption1")).to_have_text("Confidence")


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_it_fits_any_screen(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for view in ("#view1", "#view2"):
        box = page.locator(view).bounding_box()
        assert min(box["width"], box["height"]) > 180
    page.mouse.click(*place(page, 33, 40))
    page.locator("#beliefs canvas").first.wait_for()
    page.keyboard.press("p")
    page.mouse.click(*place(page, 33, 40))
    expect(page.locator("#strip rect.visible")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for view in ("#view1", "#view2"):
        box = page.locator(view).bounding_box()
        assert min(box["width"], box["height"]) > 180
    elements = "[...document.querySelectorAll('body *')]"
    sizes = page.evaluate(f"{elements}.map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
