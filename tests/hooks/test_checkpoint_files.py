"""Checkpoints are written whole, hold plain options, and damage in them is named.

A full disk is played by the limit on the size of files. tests/faults has hostile checkpoints.
"""

import argparse
import errno
import io
import os
import resource
import subprocess
import sys
import zipfile
from contextlib import contextmanager, nullcontext

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager


def load(path):
    return checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_an_old_file_is_converted_as_the_message_says(language_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = {**torch.load(language_model), "args": argparse.Namespace(arch="transformer")}
    torch.save(old, "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"before torch 1\.6") as refused:
        load("old.pt")
    advice = str(refused.value).partition("from before torch 1.6: ")[2]
    code = f"old, new = 'old.pt', 'new.pt'; {advice}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert load("new.pt")["model"].keys() == old["model"].keys()


ENDLESS: dict = {}
ENDLESS["again"] = ENDLESS
CODE = [
    "__import__('os').system('true')", "lambda: 1", "[x for x in (1, 2)]", "f'{1}'", " (f)(1)",
    "2 ** 99999999", "1 << 99999999", "[0] * 10001", "[[0] * 10000] * 10000 * 10000",
]  # fmt: skip
PLAIN = [
    "(0.9, 0.98)", "[(512, 9)] * 2 + [(2048, 1)]", "8 * 1024 - 1", "True", "{'beam': 4}", "word",
    "1 +", "", "(" * 300 + ")" * 300, "-" * 9000 + "1", "1," * 6000, "1\0",
]  # fmt: skip
VALUES = [
    *((value, "omegaconf would resolve") for value in (
        "${oc.env:HOME}", {"deep": ["${..data}"]}, {"${oc.env:HOME}": 1},
        argparse.Namespace(x="${common.seed}"),
    )),
    (torch.zeros(1), "holds a Tensor"), (ENDLESS, "contains itself"),
    *((text, "run as code") for text in CODE),
    *((text, None) for text in PLAIN),
]  # fmt: skip


def test_options_that_are_not_plain_are_refused(language_model, tmp_path):
    state, path = torch.load(language_model), tmp_path / "hostile.pt"
    options = state["cfg"]["model"]
    for value, said in VALUES:
        changed = options | {"character_filters": value, "data": "corpora (1)/data-bin"}
        for place in ("cfg", "args") if said else ("cfg",):
            torch.save(state | {place: {"model": changed}}, path)
            with pytest.raises(ValueError, match=f"refused.*{said}") if said else nullcontext():
                load(path)
            path.unlink()


def test_files_that_are_not_whole_checkpoints_are_refused(language_model, tmp_path):
    content, packed, tensor = language_model.read_bytes(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(language_model) as old:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        largest = old.read(max(old.infolist(), key=lambda entry: entry.file_size))
    flipped = bytearray(content)
    flipped[content.index(largest) + len(largest) // 2] ^= 1
    torch.save(torch.zeros(3), tensor)
    for number, (bad, message) in enumerate([
        (flipped, r"damaged \(.*data/.*\): copy it again"),
        (packed.getvalue(), r"damaged \(compressed"),
        (tensor.getvalue(), "refused: it holds a Tensor"),
        (b"PK\x05\x06" + bytes(18), ""),
        (b"\x80\x02}.", ""),
        *((content[:end], "(truncated|damaged)") for end in (0, 1, 100, len(content) // 2, -1)),
    ]):  # fmt: skip
        (tmp_path / f"{number}.pt").write_bytes(bad)
        with pytest.raises(ValueError, match=rf"{number}\.pt is {message}"):
            load(tmp_path / f"{number}.pt")


OLD, NEW = {"x": torch.zeros(10)}, {"x": torch.ones(50_000)}


@contextmanager
def largest_file(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def files(tmp_path):
    """Write an old checkpoint and a new one of 200 kB next to it."""
    old, new = str(tmp_path / "checkpoint_best.pt"), str(tmp_path / "checkpoint1.pt")
    torch.save(OLD, old)
    torch.save(NEW, new)
    return old, new


def size_in(path) -> int:
    return len(torch.load(path)["x"])


def test_a_copy_is_a_hard_link_in_place_of_a_symbolic_one(files, tmp_path):
    old, new = files
    last = tmp_path / "checkpoint_last.pt"
    last.symlink_to(old)
    PathManager.copy(new, str(last), overwrite=True)
    assert (size_in(last), size_in(old)) == (50_000, 10)
    last.unlink()
    for _ in range(2):
        assert PathManager.copy(new, old, overwrite=True)
        assert os.path.samefile(new, old)
    checkpoint_utils.torch_persistent_save(OLD, new)
    assert (size_in(old), size_in(new)) == (50_000, 10)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_interrupted_copy_leaves_the_old_file(files, monkeypatch, tmp_path):
    def refuse(*args, **kwargs):  # as on a file system without hard links
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    old, new = files
    with largest_file(100_000), pytest.raises(OSError, match="limit on file sizes"):
        PathManager.copy(new, old, overwrite=True)
    assert size_in(old) == 10
    assert not list(tmp_path.glob("*.tmp"))
    PathManager.copy(new, old, overwrite=True)
    assert size_in(old) == 50_000 and not os.path.samefile(new, old)


# torch words a full disk in its own way at some sizes
@pytest.mark.parametrize("limit", [90_000, 94_096, 98_192, 1, 199_000])
def test_a_full_disk_leaves_the_old_file(files, limit):
    old, _ = files
    message = r"limit on file sizes.*B are free\. Free some space.*best\.pt"
    with largest_file(limit), pytest.raises(OSError, match=message):
        checkpoint_utils.torch_persistent_save(NEW, old)
    assert size_in(old) == 10


def test_a_disk_that_stores_other_bytes_is_noticed(files, monkeypatch):
    def damage(handle, flush=os.fsync):
        flush(handle)
        os.pwrite(handle, b"x", 1000)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="not hold the written data"):
        patch.setattr(os, "fsync", damage)
        checkpoint_utils.torch_persistent_save(NEW, files[0])
    assert size_in(files[0]) == 10


@pytest.mark.parametrize("is_async", [False, True])
def test_a_second_attempt_writes_a_complete_file(monkeypatch, files, tmp_path, is_async):
    save, calls = torch.save, []

    def fail_once(obj, file):
        calls.append(obj)
        if len(calls) == 1:
            file.write(b"half a checkpoint")
            raise OSError("the network disk is away")
        save(obj, file)

    monkeypatch.setattr(torch, "save", fail_once)
    checkpoint_utils.torch_persistent_save(NEW, files[0], async_write=is_async)
    assert len(calls) == 2 and size_in(files[0]) == 50_000
    assert not list(tmp_path.glob("*.tmp"))


def test_data_and_name_are_flushed_in_order(monkeypatch, tmp_path):
    calls = []
    for name in ("fsync", "posix_fadvise", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, f=real: (calls.append(n), f(*a))[1])
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        checkpoint_utils.torch_persistent_save({"f": lambda: 0}, str(tmp_path / "checkpoint1.pt"))
    assert not calls and list(tmp_path.iterdir()) == []
    checkpoint_utils.torch_persistent_save(OLD, str(tmp_path / "checkpoint_last.pt"))
    assert calls == ["fsync", "posix_fadvise", "replace", "fsync"]
