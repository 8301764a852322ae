"""The description of the interface: as OpenAPI, and as a page made from it."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..video import CUTS, PANELS
from .jobs import VIDEO_FORMATS
from .requests import EXTRAS, FORMATS

Json = dict[str, Any]

_ERRORS = {
    400: "A field or a parameter is wrong, or the form is damaged.",
    401: "The token is missing or wrong.",
    408: "The upload was too slow.",
    413: "Too many bytes or pixels.",
    415: "Not an image or a video in a known format.",
    503: "Too many requests in progress: wait for Retry-After seconds, then try again.",
}


def describe_interface() -> Json:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "DICL-Flow",
            "version": "1",
            "description": "Optical flow of two images, or of a video. Errors are JSON: "
            '{"error": "one sentence"}.',
        },
        "paths": {
            "/flow": {"post": _flow()},
            "/video": {"post": _create_video()},
            "/video/{id}": {"get": _video(), "delete": _delete_video()},
            "/video/{id}/result": {"get": _video_result()},
            "/health": {"get": _simple("Whether the server runs. Needs no token.", "ok")},
            "/metrics": {"get": _simple("Numbers of the server for Prometheus.", "text")},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _flow() -> Json:
    extras = {
        "backward": "add the flow from image2 to image1",
        "occlusion": "add the pixels of image1 that are hidden in image2",
        "confidence": "add the confidence of each pixel",
    }
    formats = "; ".join(f"{name}: {known.meaning}" for name, known in FORMATS.items())
    return {
        "summary": "The flow from image1 to image2.",
        "parameters": [
            _query("format", f"{formats}. Without it, the header Accept decides.", [*FORMATS]),
            *(_query(name, f"npz only: {extras[name]}", ["true", "false"]) for name in EXTRAS),
        ],
        "requestBody": _form({"image1": "first frame", "image2": "second frame, of the same size"}),
        "responses": {
            "200": {
                "description": "The flow.",
                "content": {known.media_type: _BYTES for known in FORMATS.values()},
            },
            "406": {"description": "No format has an accepted media type."},
            **_errors(400, 401, 408, 413, 415, 503),
        },
    }


def _create_video() -> Json:
    return {
        "summary": "Take a video; its flow is estimated when its turn comes.",
        "parameters": [
            _query("format", "File to make; default: mp4.", [*VIDEO_FORMATS]),
            _query("show", f"Pictures, with commas, of {', '.join(PANELS)}; default: wheel."),
            _query("cuts", "Flow where a new scene starts.", [*CUTS]),
        ],
        "requestBody": _form({"video": "MP4, MOV, Matroska, WebM, AVI, MPEG or GIF"}),
        "responses": {
            "202": {"description": "Accepted; the header Location has its address."},
            "507": {"description": "The disk space for videos is full."},
            **_errors(400, 401, 408, 413, 415, 503),
        },
    }


def _video() -> Json:
    return {
        "summary": "The progress of a video: state (waiting, running, done, failed), flows done.",
        "parameters": [_ID],
        "responses": {"200": {"description": "The progress, as JSON."}, **_MISSING},
    }


def _delete_video() -> Json:
    return {
        "summary": "Stop a video and remove its files.",
        "parameters": [_ID],
        "responses": {"204": {"description": "It is removed."}, **_MISSING},
    }


def _video_result() -> Json:
    return {
        "summary": "What was made of a video.",
        "parameters": [_ID],
        "responses": {
            "200": {
                "description": "The file.",
                "content": dict.fromkeys(VIDEO_FORMATS.values(), _BYTES),
            },
            "409": {"description": "It is not done."},
            **_MISSING,
        },
    }


def _simple(summary: str, answer: str) -> Json:
    return {"summary": summary, "responses": {"200": {"description": answer}}}


def _query(name: str, meaning: str, values: list[str] | None = None) -> Json:
    schema: Json = {"type": "string", **({"enum": values} if values else {})}
    return {"name": name, "in": "query", "description": meaning, "schema": schema}


def _form(fields: dict[str, str]) -> Json:
    files = {name: {**_FILE, "description": meaning} for name, meaning in fields.items()}
    schema = {"type": "object", "required": [*fields], "properties": files}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def _errors(*statuses: int) -> Json:
    return {str(status): {"description": _ERRORS[status]} for status in statuses}


_FILE = {"type": "string", "format": "binary"}
_BYTES: Json = {"schema": _FILE}
_ID: Json = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id that the upload was answered with.",
    "schema": {"type": "string"},
}
_MISSING: Json = {"404": {"description": "There is no such video."}}


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return JSONResponse(describe_interface())


async def docs(request: Request) -> Response:
    """Return the page."""
    return HTMLResponse("\n".join(_page(describe_interface())))


async def docs_style(request: Request) -> Response:
    """Return the style of the page."""
    style = files(__package__).joinpath("docs.css").read_text(encoding="utf-8")
    return Response(style, media_type="text/css")


ROUTES = [
    Route("/openapi.json", openapi),
    Route("/docs", docs),
    Route("/docs.css", docs_style),
]


def _page(document: Json) -> Iterator[str]:
    info = document["info"]
    yield "<!doctype html><html lang=en><meta charset=utf-8>"
    yield "<meta name=viewport content='width=device-width'>"
    yield f"<title>{escape(info['title'])}</title><link rel=stylesheet href=docs.css>"
    yield f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>"
    yield "<p>The same for programs: <a href=openapi.json>openapi.json</a></p>"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2>"
            yield f"<p>{escape(operation['summary'])}</p>"
            yield from _table("Parameters", _parameters(operation))
            yield from _table("Fields of the form", _fields(operation))
            yield from _table("Answers", _answers(operation))


def _table(title: str, rows: dict[str, str]) -> Iterator[str]:
    if rows:
        yield f"<h3>{title}</h3><table>"
        for name, meaning in rows.items():
            yield f"<tr><td><code>{escape(name)}</code><td>{escape(meaning)}"
        yield "</table>"


def _parameters(operation: Json) -> dict[str, str]:
    return {
        known["name"]: known["description"] + _choices(known["schema"].get("enum", []))
        for known in operation.get("parameters", [])
    }


def _choices(values: list[str]) -> str:
    return f" ({', '.join(values)})" if values else ""


def _fields(operation: Json) -> dict[str, str]:
    content = operation.get("requestBody", {}).get("content", {})
    properties = content.get("multipart/form-data", {}).get("schema", {}).get("properties", {})
    return {name: known["description"] for name, known in properties.items()}


def _answers(operation: Json) -> dict[str, str]:
    return {
        status: " ".join([known["description"], *known.get("content", {})])
        for status, known in sorted(operation["responses"].items())
    }
