"""What a launch needs of this machine, before anything starts."""

import shutil
from collections import namedtuple

import pytest

from highrank_plugins.training.launch.plan import check_disk


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 10**8))
    with pytest.raises(OSError, match=f"{tmp_path}/logs: only 100.0 MB are free on its disk"):
        check_disk(tmp_path / "logs")


def test_enough_disk_space_passes(tmp_path):
    check_disk(tmp_path / "logs", gigabytes=0)
