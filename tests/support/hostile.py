"""Uploads that no one should send: mutated files and forms, wrong headers, slow senders."""

import json
import random
import socket
from types import SimpleNamespace

import cv2
from clips import write_video
from golden import formula
from servers import BOUNDARY, form

from dicl_flow.estimation.inputs import Feeding

ENDINGS = (".png", ".jpg", ".webp", ".bmp", ".tiff", ".ppm", ".hdr", ".gif")
CLIPS = {".mp4": "libx264", ".mkv": "libx264", ".avi": "mpeg4", ".mpg": "mpeg2video"}
REFUSALS = {400, 403, 404, 405, 406, 408, 413, 415, 421, 422, 503}
"""What may be answered to nonsense; 500 may not."""


class StandIn:
    """An estimator that takes no time: all stands still."""

    engine = SimpleNamespace(pairs_together=lambda: 8)
    plan = SimpleNamespace(largest=Feeding("replicate", 0, 1))

    def fits(self, image):
        return True

    def __call__(self, images1, images2, *, backward=False):
        import numpy as np

        from dicl_flow.estimation.result import FlowResult

        shape = (len(images1), *images1[0].shape[:2])
        there = FlowResult(np.zeros((*shape, 2), np.float32), np.ones(shape, np.float32))
        if not backward:
            return there
        hidden = np.zeros(shape, bool)
        return FlowResult(there.flow, there.confidence, hidden, there)


def pictures():
    """A small image in each format that OpenCV writes."""
    image = formula.pair(24, 32)[0]
    encoded = (cv2.imencode(ending, image) for ending in ENDINGS)
    return [bytes(data) for written, data in encoded if written]


def videos(folder):
    frames = list(formula.pair(32, 48)) * 2
    return [
        write_video(
            folder / f"x{ending}", frames, codec=codec, pix_fmt="yuv420p", rate=25
        ).read_bytes()
        for ending, codec in CLIPS.items()
    ]


def mutated(data, dice):
    """Some bytes changed, cut off, inserted, repeated or moved."""
    data = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        place = dice.randrange(len(data) + 1)
        kind = dice.randrange(6)
        if kind == 0:
            data[place : place + 1] = bytes([dice.randrange(256)])
        elif kind == 1:
            data[place : place + 4] = dice.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4))
        elif kind == 2:
            del data[place : place + dice.randrange(64)]
        elif kind == 3:
            data[place:place] = dice.randbytes(dice.randrange(64))
        elif kind == 4:
            data[place:place] = data[place : place + dice.randrange(256)]
        elif dice.random() < 0.3:
            del data[place:]
    return bytes(data)


def hostile_request(seeds, dice):
    """The bytes of a request, and whether its sender leaves before the answer."""
    image1, image2 = dice.choice(seeds), dice.choice(seeds)
    kind = dice.choice(("image", "image", "image", "form", "header", "length", "target"))
    files = {"image1": mutated(image1, dice), "image2": mutated(image2, dice)}
    if dice.random() < 0.3:
        files = {"image1": image1, "image2": mutated(image1, dice)}
    body = form(files)
    if kind == "form":
        body = mutated(form({"image1": image1, "image2": image2}), dice)
    head = {
        "Host": "127.0.0.1",
        "Connection": "close",
        "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
        "Content-Length": str(len(body)),
    }
    target = "/flow"
    if kind == "header":
        name = dice.choice([*head, "Accept", "Origin", "Cookie", "Authorization", "X"])
        known = head.get(name, "x").encode()
        value = dice.choice((mutated(known, dice), b"x" * dice.choice((9000, 70_000))))
        head[name] = value.decode("latin-1").replace("\r", "").replace("\n", "")
    if kind == "length":
        head["Content-Length"] = str(len(body) + dice.choice((-50, 50, 10**9, 10**20)))
    if kind == "target":
        words = (
            "format",
            "backward",
            "occlusion",
            "\u00e9",
            "%00",
            "..",
            "/",
            "?",
            "&",
            "=",
            "npz",
        )
        target += "".join(dice.choices(words, k=6))
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    leaves = kind == "length" or dice.random() < 0.02
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body, leaves


def sent(server, request, leaves):
    """Send bytes; return the status and the body of the answer, if there is one."""
    with socket.create_connection((server.host, server.port), timeout=30) as line:
        try:
            line.sendall(request)
            if leaves:
                line.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        except ConnectionError:  # refused before all was sent
            return None, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else None), body


def check_answer(status, body):
    """An answer is a flow, one sentence, or none to who has left."""
    assert status in REFUSALS | {200, None}, (status, body)
    if status in REFUSALS:
        assert list(json.loads(body)) == ["error"]


def dice(seed):
    return random.Random(seed)
