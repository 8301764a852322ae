"""Other names, sites and missing tokens are refused, and every response has its headers."""

import re

import pytest
from conftest import SMALL

from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build

pytest.importorskip("starlette", reason="the extra web is not installed")
from servers import serving
from starlette.responses import HTMLResponse
from starlette.routing import Route

from dicl_flow.web.limits import HEADERS, choose_token, is_loopback

TOKEN = "0123456789abcdef"


async def _page(request):
    return HTMLResponse("<p>a page", headers={"Cache-Control": "max-age=60"})


@pytest.fixture(scope="module")
def server():
    estimator = FlowEstimator(build(SMALL), "cpu", "fp32", "plain")
    options = {"token": TOKEN, "allowed_hosts": ["flow.example"], "pages": [Route("/", _page)]}
    with serving(estimator, **options) as running:
        yield running


def asked(server, path="/metrics", **headers):
    return server.get(path, **{"Authorization": f"Bearer {TOKEN}"} | headers)


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "localhost:80", "[::1]:9", "192.0.2.1", "FLOW.example"]
)
def test_known_names_of_the_server(server, name):
    assert asked(server, Host=name).status == 200


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "", "[", "127.0.0.1.x"])
def test_other_names_are_refused(server, name):
    """A page of evil.example could let its name point to 127.0.0.1, and read the answers."""
    answer = asked(server, Host=name)
    assert (answer.status, "name" in answer.error) == (421, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_pages_of_other_sites_are_refused(server, headers):
    answer = asked(server, **headers)
    assert (answer.status, "other sites" in answer.error) == (403, True)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_own_page_and_links_to_it_are_not(server):
    own = f"http://{server.host}:{server.port}"
    assert asked(server, Origin=own, **{"Sec-Fetch-Site": "same-origin"}).status == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert asked(server, "/", **link).status == 200


@pytest.mark.parametrize(
    "given", [{}, {"Authorization": "Bearer x"}, {"Cookie": "dicl_flow_token=x"}]
)
def test_the_token_is_needed(server, given):
    answer = server.get("/metrics", **given)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert TOKEN not in answer.error
    assert b'endpoint="none",status="401"' in asked(server).body
    assert server.get("/health", **given).status == 200


def test_a_browser_gets_the_token_as_a_cookie(server):
    answer = server.get(f"/?token={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert server.get("/", Cookie=cookie.partition(";")[0]).status == 200
    assert server.get(f"//evil.example/?token={TOKEN}").headers["location"] == "/evil.example/"
    assert server.get("/?token=wrong").status == 401
    assert server.ask("POST", f"/flow?token={TOKEN}").status == 401


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/none", "/metrics"])
def test_every_answer_has_the_headers(server, path):
    for answer in (asked(server, path), server.get(path), asked(server, path, Host="evil.example")):
        for name, value in HEADERS.items():
            if (name, path, answer.status) != ("Cache-Control", "/", 200):
                assert answer.headers[name.lower()] == value
        assert "server" not in answer.headers
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"unsafe|\*|http", policy)


def test_a_page_may_be_kept_by_the_browser(server):
    assert asked(server, "/").headers["cache-control"] == "max-age=60"


def test_a_server_that_others_reach_has_a_token():
    assert choose_token("127.0.0.1", None) is None
    assert choose_token("::1", None) is None
    assert choose_token("localhost", TOKEN) == TOKEN
    made = {choose_token("0.0.0.0", None), choose_token("192.0.2.1", None), choose_token("x", None)}
    assert len(made) == 3
    assert min(map(len, made)) >= 32
    for weak in ("", "short", "ü" * 20, "0123456789abcde\n"):
        with pytest.raises(InputError, match="at least 16 characters"):
            choose_token("127.0.0.1", weak)
    assert not is_loopback("0.0.0.0")
