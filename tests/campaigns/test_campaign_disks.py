"""A slice of the campaign `disks` that needs neither a compiler nor root: files may not grow."""

import pytest

pytest.importorskip("resource", reason="this system has no limits")

from campaigns.disk_place import LIMIT
from campaigns.disk_writers import make_inputs
from campaigns.disks import prepare
from campaigns.report import Options

pytestmark = [pytest.mark.xdist_group("disks"), pytest.mark.heavy]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("disks") / "in").parent


@pytest.mark.parametrize("name", ["show", "video.npy", "video.mp4"])
def test_a_full_disk_is_one_sentence_and_the_same_command_repairs_it(name, folder):
    if name == "video.mp4":
        pytest.importorskip("av", reason="the extra video is not installed")
    cases = [(LIMIT, 0), (LIMIT, 1)]
    attempt = prepare(name, Options(None, seed=24), cases, str(folder), "")
    found = [attempt(number) for number in range(len(cases))]
    assert [one.failure for one in found] == ["", ""]
    assert found[0].outcome == "refused"
