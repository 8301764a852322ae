"""A slice of the campaign `uploads`: a few seconds of damaged uploads and bad decoders."""

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("av", reason="the extra video is not installed")

from campaigns.report import Options
from campaigns.uploads import upload
from dicl_flow.fence import can_fence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("fence"),
    pytest.mark.skipif(not can_fence(), reason="this system cannot fork or pass files"),
]


def test_only_bad_requests_are_lost():
    parts = upload(Options(None, 3, more={"--minutes": "0.05", "--largest": "1"}))
    assert {name: part.failures for name, part in parts.items() if part.failures} == {}
    assert all(parts[name].tried for name in ("largest", "good", "images"))
