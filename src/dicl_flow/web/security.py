"""Who may ask, and which headers every answer has."""

import secrets
from collections.abc import Collection, Iterable
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import InputError

COOKIE = "dicl_flow_token"
OPEN = ("/health",)
"""What can be asked without a token."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests of strangers before the application sees them.

    The name in the Host header must be known: a page of another site can let its own name point
    to this machine (DNS rebinding), and then read the answers. Addresses of IP are always known,
    because such a page has a name. Requests that a page of another site sends are refused too.
    """

    def __init__(self, app: ASGIApp, token: str | None, allowed_hosts: Iterable[str] = ()) -> None:
        self.app, self.token = app, token
        self.hosts = {"localhost", *(host.lower() for host in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, protected)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not _is_known(host, self.hosts):
            return error(421, "the server does not answer to this name; see the allowed hosts")
        if _is_foreign(headers, host):
            return error(403, "pages of other sites may not use this server")
        if self.token is None or scope["path"] in OPEN:
            return None
        return self._check_token(scope, headers, self.token)

    def _check_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(given.strip(), token):
            return None
        if _equal(_cookie(headers), token):
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["method"] == "GET" and _equal(asked, token):
            # the address that was printed: the token moves from there into a cookie
            answer = RedirectResponse("/" + scope["path"].lstrip("/"), 303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        message = "give the token that the server printed: Authorization: Bearer TOKEN"
        return error(401, message, {"WWW-Authenticate": "Bearer"})


def error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the answer to what cannot be done: one sentence."""
    return JSONResponse({"error": message}, status, headers)


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token that requests must have; a server that others can reach needs one."""
    if token is None and not is_loopback(host):
        return secrets.token_urlsafe(24)
    if token is not None and not (len(token) >= 16 and token.isascii() and token.isprintable()):
        raise InputError("`token` must have at least 16 characters, all of them ASCII")
    return token


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach a server on `host`."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_known(host: str, names: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_foreign(headers: Headers, host: str) -> bool:
    """Whether a page of another site sent the request; a link on one may be followed."""
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        return True
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    return site in ("cross-site", "same-site") and mode != "navigate"


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _equal(given: str, token: str) -> bool:
    return compare_digest(given.encode(), token.encode())
