"""The HTTP server: flow of uploaded images and videos, and the pages that other modules add."""

from importlib.util import find_spec

from ..errors import InputError


def check_installed() -> None:
    """Refuse to start without the libraries of the extra `web`."""
    if not all(map(find_spec, ("python_multipart", "starlette", "uvicorn"))):
        raise InputError(
            "the server needs Starlette, uvicorn and python-multipart: pip install 'dicl-flow[web]'"
        )
