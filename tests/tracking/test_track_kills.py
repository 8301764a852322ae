"""A run of the tracker that is killed before any change of a file goes on to the same bytes."""

import pytest
from children import SUPPORT, run_forked_child


@pytest.mark.parametrize(
    "step",
    [pytest.param(29, marks=pytest.mark.heavy), pytest.param(1, marks=pytest.mark.slow)],
)
def test_killed_before_some_changes_of_files_and_before_all(tmp_path, step):
    child = run_forked_child(SUPPORT / "track_kills_child.py", tmp_path, step)
    assert child.returncode == 0, child.stderr
