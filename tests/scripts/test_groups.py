"""Tests of a group run one after the other in one worker: they share fixtures of minutes, or ports.

pytest 9.2 ignores the names that pytest-xdist 3.8 gives to groups, without a word.
"""

import os

import pytest


@pytest.mark.xdist_group("together")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one worker needs no groups")
def test_tests_of_a_group_share_a_worker(request):
    assert request.node.nodeid.endswith("@together")
