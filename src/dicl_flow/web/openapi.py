"""The description of the interface: as OpenAPI, and as a page made from it."""

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
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
_FILE = {"type": "string", "format": "binary"}


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
            "/video/{id}": {
                "get": _about_video(
                    "The progress of a video: state (waiting, running, done, failed), flows done.",
                    {200: "The progress, as JSON."},
                ),
                "delete": _about_video(
                    "Stop a video and remove its files.", {204: "It is removed."}
                ),
            },
            "/video/{id}/result": {
                "get": _about_video(
                    "What was made of a video.",
                    {200: "The file.", 409: "It is not done."},
                    VIDEO_FORMATS.values(),
                )
            },
            "/health": {"get": _operation("Whether the server runs. Needs no token.", {200: "ok"})},
            "/metrics": {"get": _operation("Numbers of the server for Prometheus.", {200: "text"})},
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _flow() -> Json:
    formats = "; ".join(f"{name}: {known.meaning}" for name, known in FORMATS.items())
    return _operation(
        "The flow from image1 to image2.",
        {200: "The flow.", 406: "No format has an accepted media type.", **_ERRORS},
        content=[known.media_type for known in FORMATS.values()],
        parameters=[
            _query("format", f"{formats}. Without it, the header Accept decides.", [*FORMATS]),
            *(_query(key, f"npz only: {text}", ["true", "false"]) for key, text in EXTRAS.items()),
        ],
        requestBody=_form({"image1": "first frame", "image2": "second frame, of the same size"}),
    )


def _create_video() -> Json:
    answers = {202: "Accepted; the header Location has its address."}
    return _operation(
        "Take a video; its flow is estimated when its turn comes.",
        {**answers, 507: "The disk space for videos is full.", **_ERRORS},
        parameters=[
            _query("format", "File to make; default: mp4.", [*VIDEO_FORMATS]),
            _query("show", f"Pictures, with commas, of {', '.join(PANELS)}; default: wheel."),
            _query("cuts", "Flow where a new scene starts.", [*CUTS]),
        ],
        requestBody=_form({"video": "MP4, MOV, Matroska, WebM, AVI, MPEG or GIF"}),
    )


def _operation(
    summary: str, answers: dict[int, str], content: Iterable[str] = (), **request: Any
) -> Json:
    """Describe what an address does; `content` has the media types of the answer 200."""
    responses: Json = {str(status): {"description": text} for status, text in answers.items()}
    if content:
        responses["200"]["content"] = {kind: {"schema": _FILE} for kind in content}
    return {"summary": summary, **request, "responses": responses}


def _about_video(summary: str, answers: dict[int, str], content: Iterable[str] = ()) -> Json:
    number = _query("id", "The id that the upload was answered with.")
    answers = {**answers, 404: "There is no such video."}
    return _operation(
        summary, answers, content, parameters=[{**number, "in": "path", "required": True}]
    )


def _query(name: str, meaning: str, values: list[str] | None = None) -> Json:
    schema: Json = {"type": "string", **({"enum": values} if values else {})}
    return {"name": name, "in": "query", "description": meaning, "schema": schema}


def _form(fields: dict[str, str]) -> Json:
    files = {name: {**_FILE, "description": meaning} for name, meaning in fields.items()}
    schema = {"type": "object", "required": [*fields], "properties": files}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return JSONResponse(describe_interface())


async def docs(request: Request) -> Response:
    """Return the page."""
    return HTMLResponse("\n".join(_page(describe_interface())))


async def docs_style(request: Request) -> Response:
    """Return the style of the page."""
    return FileResponse(Path(__file__).with_name("docs.css"))


ROUTES = [Route("/openapi.json", openapi), Route("/docs", docs), Route("/docs.css", docs_style)]


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
            for title, rows in _tables(operation).items():
                if rows:
                    yield f"<h3>{title}</h3><table>"
                    for name, meaning in rows.items():
                        yield f"<tr><td><code>{escape(name)}</code><td>{escape(meaning)}"
                    yield "</table>"


def _tables(operation: Json) -> dict[str, dict[str, str]]:
    """Names and meanings, by the title of their table."""
    parameters, form = {}, operation.get("requestBody", {}).get("content", {})
    for known in operation.get("parameters", []):
        choices = ", ".join(known["schema"].get("enum", []))
        parameters[known["name"]] = known["description"] + (f" ({choices})" if choices else "")
    fields = form.get("multipart/form-data", {}).get("schema", {}).get("properties", {})
    answers = sorted(operation["responses"].items())
    return {
        "Parameters": parameters,
        "Fields of the form": {name: known["description"] for name, known in fields.items()},
        "Answers": {
            status: " ".join([known["description"], *known.get("content", {})])
            for status, known in answers
        },
    }
