"""The HTTP server: flow of uploaded images and videos, and the pages that other modules add."""

from ..errors import InputError


def check_installed() -> None:
    """Refuse to start without the libraries of the extra `web`."""
    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError(
            "the server needs Starlette, uvicorn and python-multipart: pip install 'dicl-flow[web]'"
        ) from None
