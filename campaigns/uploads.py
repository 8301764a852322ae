"""Send a server damaged images and clips, and bad decoders, for a time: only they may be lost.

    python -m campaigns.uploads --minutes 60 -o report.json

Two senders take turns with images that are damaged, clips that are damaged, and images whose
decoder crashes, hangs, takes memory or processor time, opens a socket, a file or a program, or
answers nonsense. A third sends good pairs all the time: each must be answered with the same
bytes.

The largest pairs that are taken come first, in several sizes. At the end, the server must have as
many open files and child processes as after these, as much memory in use, and the same peak.
"""

import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

from dicl_flow.files import encode_image

from .formats import images, videos
from .inputs import moving_frames, small_weights
from .report import Options, Part, main
from .upload_server import MEGAPIXELS

FAULTS = ("crash", "hang", "spin", "eat", "connect", "write", "read", "execute", "fork", "kill")
FAULTS += ("lie",)
REFUSALS = (400, 413, 415)
_LINE = "a-line-between-parts"
_PARTS = ("largest", "good", "images", "videos", "decoders", "server")
_IMAGES = ("png", "jpg", "tiff", "webp", "bmp", "ppm")
_WAIT = 120  # seconds for an answer
_MORE = 60.0  # MB more that may be in use at the end
_MORE_AT_PEAK = 200.0  # MB: malloc keeps freed memory for seconds


class Client:
    """Sends requests, and counts what is answered."""

    def __init__(self, address: str, parts: dict[str, Part]) -> None:
        split = urlsplit(address)
        self._place, self._parts, self._lock = (split.hostname, split.port), parts, Lock()

    def ask(
        self, method: str, path: str, files: dict[str, bytes] | None = None
    ) -> tuple[int, bytes]:
        """Send a request; return status and body."""
        line = http.client.HTTPConnection(*self._place, timeout=_WAIT)
        try:
            kind = {"Content-Type": f"multipart/form-data; boundary={_LINE}"}
            line.request(method, path, _form(files) if files else None, kind if files else {})
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    def count(self, part: str, outcome: str, failure: str = "") -> None:
        """Count an outcome, or a failure."""
        with self._lock:
            if failure:
                self._parts[part].failures.append(failure)
            else:
                self._parts[part].outcomes[outcome] += 1

    def refused(self, part: str, number: object, status: int, body: bytes) -> None:
        """Count the answer to a bad request: a flow, or one sentence with 4xx."""
        if status in (200, 202, 204):
            self.count(part, "answered")
        elif status in REFUSALS and list(json.loads(body)) == ["error"]:
            self.count(part, f"refused, {status}")
        else:
            self.count(part, "", f"{number}: {status} {body[:200]!r}")


def _form(files: dict[str, bytes]) -> bytes:
    parts = []
    for name, data in files.items():
        head = f'Content-Disposition: form-data; name="{name}"; filename="{name}.bin"'
        parts += [f"--{_LINE}\r\n{head}\r\n\r\n".encode(), data, b"\r\n"]
    return b"".join([*parts, f"--{_LINE}--\r\n".encode()])


class Sender:
    """Sends bad requests, one after the other."""

    def __init__(self, client: Client, dice: Random, good: bytes) -> None:
        self._client, self._dice, self._good = client, dice, good
        self._seeds = {name: images.FORMATS[name].seeds() for name in _IMAGES}
        self._clips = videos.FORMATS["video"].seeds()

    def send(self, number: int) -> None:
        """Send one request, and follow a video until it is done."""
        kind = self._dice.choice(("images", "images", "images", "videos", "decoders"))
        getattr(self, f"_send_{kind}")(number)

    def _send_images(self, number: int) -> None:
        name = self._dice.choice(_IMAGES)
        bad = images.FORMATS[name].mutated(self._dice, self._seeds[name])
        # two of one size reach the network, if they can be read
        answer = self._pair(bad, bad if self._dice.random() < 0.5 else self._good)
        self._client.refused("images", number, *answer)

    def _send_decoders(self, number: int) -> None:
        name = self._dice.choice(FAULTS)
        status, body = self._pair(self._good + f"fault:{name}".encode(), self._good)
        if status == 400 and b"decoder" in body:
            self._client.count("decoders", name)
        else:
            self._client.count("decoders", "", f"{number}: {name}: {status} {body[:200]!r}")

    def _send_videos(self, number: int) -> None:
        bad = videos.FORMATS["video"].mutated(self._dice, self._clips)
        status, body = self._client.ask("POST", "/video?format=npy", {"video": bad})
        if status != 202:
            self._client.refused("videos", number, status, body)
            return
        told, end = json.loads(body), time.monotonic() + _WAIT
        place = f"/video/{told['id']}"
        while told["state"] in ("waiting", "running") and time.monotonic() < end:
            time.sleep(0.05)
            told = json.loads(self._client.ask("GET", place)[1])
        failed = "the server failed" in told.get("error", "") or told["state"] not in (
            "done",
            "failed",
        )
        self._client.count("videos", told["state"], f"{number}: {told}" if failed else "")
        self._client.ask("DELETE", place)

    def _pair(self, *pair: bytes) -> tuple[int, bytes]:
        mixed = self._dice.sample(pair, 2)
        files = dict(zip(("image1", "image2"), mixed, strict=True))
        return self._client.ask("POST", "/flow", files)


def upload(options: Options) -> dict[str, Part]:
    """Run the server and the senders."""
    parts = {name: Part() for name in _PARTS}
    seconds = 60 * float(options.more["--minutes"])
    with tempfile.TemporaryDirectory() as name:
        weights = small_weights(Path(name) / "small.safetensors")
        start = f"from campaigns.upload_server import serve; serve({str(weights)!r})"
        words = [sys.executable, "-c", start]
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env={**os.environ, **paths}
        ) as server:
            try:
                assert server.stdout is not None
                parts["server"].measured["fence"] = server.stdout.readline().strip()
                address = server.stdout.readline().strip()
                _run(Client(address, parts), options, parts, server, seconds)
            finally:
                server.send_signal(signal.SIGTERM)
                if server.wait(_WAIT):
                    parts["server"].failures.append(f"ended with {server.returncode}")
    return parts


def _run(
    client: Client,
    options: Options,
    parts: dict[str, Part],
    server: "subprocess.Popen[str]",
    seconds: float,
) -> None:
    good = [encode_image("x.png", frame) for frame in moving_frames(2, 48, 64)]
    pair = {"image1": good[0], "image2": good[1]}
    expected, over = client.ask("POST", "/flow", pair)[1], Event()
    _send_largest(client, int(options.more["--largest"]))
    before, start, last = _in_use(client, server.pid), time.monotonic(), 0.0

    def send_good() -> None:
        while not over.is_set():
            begun = time.monotonic()
            status, body = client.ask("POST", "/flow", pair)
            same = status == 200 and body == expected
            client.count("good", "same bytes", "" if same else f"{status} {body[:200]!r}")
            slowest = parts["good"].measured.get("slowest_seconds", 0)
            parts["good"].measured["slowest_seconds"] = max(
                slowest, round(time.monotonic() - begun, 1)
            )

    def send_bad(which: int) -> None:
        sender, number = Sender(client, options.dice("sender", which), good[0]), 0
        while not over.is_set():
            sender.send(number)
            number += 1

    def guarded(name: str, work: object, *words: object) -> None:
        try:
            work(*words)  # type: ignore[operator]
        except Exception as error:
            client.count("server", "", f"{name} lost its answer: {error!r}")

    threads = [Thread(target=guarded, args=("a good sender", send_good))]
    threads += [Thread(target=guarded, args=(f"sender {n}", send_bad, n)) for n in range(2)]
    for thread in threads:
        thread.start()
    while time.monotonic() - start < seconds and server.poll() is None:
        over.wait(1)
        minute = (time.monotonic() - start) // 60
        if minute > last:
            last = minute
            counts = {name: part.tried for name, part in parts.items()}
            print(f"{minute:.0f} min: {counts} {_sample(server.pid)}", file=sys.stderr, flush=True)
    over.set()
    for thread in threads:
        thread.join()
    _judge(client, parts["server"], server.pid, before)


def _send_largest(client: Client, count: int) -> None:
    """Send pairs of the largest size that is taken: a square one, then those with most border."""
    pixels = int(MEGAPIXELS * 1e6)
    sizes = [(math.isqrt(pixels), math.isqrt(pixels))]
    for number in range(count):
        thin = (16, pixels // 16 - 16 * number)  # each of another size, as tables are kept for each
        sizes.append(thin if number % 2 else thin[::-1])
    for size in sizes[:count]:
        frames = [encode_image("x.png", frame) for frame in moving_frames(2, *size)]
        status, body = client.ask("POST", "/flow", {"image1": frames[0], "image2": frames[1]})
        refused = "" if status == 200 else f"{size}: {status} {body[:200]!r}"
        client.count("largest", "answered", refused)


def _in_use(client: Client, process: int) -> dict[str, float]:
    """A sample without the memory that was freed, but kept."""
    time.sleep(2)  # decoders end, and their successors start
    client.ask("GET", "/kept")
    return _sample(process)


def _judge(client: Client, part: Part, process: int, before: dict[str, float]) -> None:
    """Compare the server with what it was before, and ask whether anything is still held."""
    after = _in_use(client, process)
    part.measured |= {name: [before[name], after[name]] for name in before}
    text = client.ask("GET", "/metrics")[1].decode()
    for name in ("requests_in_progress", "held_bytes", "videos_bytes"):
        found = re.search(rf"^dicl_flow_{name} (\S+)$", text, re.MULTILINE)
        if found is None or float(found[1]):
            part.failures.append(f"{name}: {found and found[1]} at the end")
    for name, more in (
        ("files", 4),
        ("children", 4),
        ("memory_mb", _MORE),
        ("peak_mb", _MORE_AT_PEAK),
    ):
        if after[name] > before[name] + more:
            part.failures.append(f"{name}: {before[name]}, then {after[name]}")


def _sample(process: int) -> dict[str, float]:
    """Memory now and at its peak, open files, and processes below the server."""
    status = Path(f"/proc/{process}/status").read_text()
    memory, peak = (int(status.split(key)[1].split()[0]) / 1024 for key in ("RssAnon:", "VmHWM:"))
    below, waiting = 0, [process]
    while waiting:
        found = _children(waiting.pop())
        below, waiting = below + len(found), waiting + found
    files = len(list(Path(f"/proc/{process}/fd").iterdir()))
    sizes = {"memory_mb": round(memory, 1), "peak_mb": round(peak, 1)}
    return {**sizes, "files": files, "children": below}


def _children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


if __name__ == "__main__":
    main("uploads", __doc__, upload, more={"--minutes": "60", "--largest": "12"})
