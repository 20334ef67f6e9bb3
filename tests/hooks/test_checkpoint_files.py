"""Checkpoints are written whole; nothing in one is executed, damage is named.

A full disk is played by the limit on the size of files.
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
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from tests.compat.conftest import Call, train

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sentinel(tmp_path):
    """Return the path that every payload tries to create."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


def load(path):
    return checkpoint_utils.load_model_ensemble_and_task([str(path)])


def test_an_old_file_is_converted_as_the_message_says(language_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = {**torch.load(language_model), "args": argparse.Namespace(arch="transformer")}
    torch.save(old, "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"before torch 1\.6") as refused:
        load("old.pt")
    advice = str(refused.value).partition("from before torch 1.6: ")[2]
    assert advice in (ROOT / "docs" / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
    code = f"old, new = 'old.pt', 'new.pt'; {advice}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert checkpoint_utils.load_checkpoint_to_cpu("new.pt")["model"].keys() == old["model"].keys()


PICKLED = [
    lambda path: Call(os.system, f"touch {path}"),
    lambda path: Call(eval, f"open({str(path)!r}, 'w')"),
    lambda path: Call(exec, f"open({str(path)!r}, 'w')"),
    lambda path: Call(open, str(path), "w"),
    lambda path: argparse.Namespace(x=[{"y": Call(os.system, f"touch {path}")}]),
]
# configurations that stock fairseq passes to eval() while it builds the model
EVALUATED = {
    "adaptive_softmax_cutoff": {"_name": "transformer_lm"},
    "character_filters": {"_name": "transformer_lm", "character_embeddings": True},
    "decoder_layers": {"_name": "fconv_lm"},
    "decoder_attention": {"_name": "fconv_lm", "decoder_layers": "[(8, 3)]"},
}
ENDLESS: dict = {}
ENDLESS["again"] = ENDLESS
NOT_PLAIN = [
    ("${oc.env:HOME}", "omegaconf would resolve"),
    ({"deep": ["${..data}"]}, "omegaconf would resolve"),
    ({"${oc.env:HOME}": 1}, "omegaconf would resolve"),
    (argparse.Namespace(x="${common.seed}"), "omegaconf would resolve"),
    (torch.zeros(1), "holds a Tensor"),
    (ENDLESS, "contains itself"),
]
OPTIONS = [
    ({"decoder_embed_dim": 10**7}, r"decoder_embed_dim 10000000, but its weights are \d+ by"),
    ({"decoder_layers": 10**9}, r"decoder_layers 1000000000, but its weights are \d+ te"),
    ({"decoder_embed_path": "/dev/zero"}, "/dev/zero is a pipe or a device; a file is needed"),
]
WEIGHTS = [
    (torch.Tensor.to_sparse, r"hostile\.pt is refused: .*weight is a sparse tensor"),
    (lambda _: torch.zeros(1).expand(10**6, 10**6), r"refused: .* declares 4000000000000 by"),
]


def hostile(state: dict, path: Path):
    """Yield changes of a checkpoint, and what is said of them."""
    for place in "model", "cfg", "args", "extra_state", "task_state":
        for payload in PICKLED:
            yield {place: {"x": payload(path)}}, r"hostile\.pt is refused: it names"
    for place in "cfg", "args":
        for field, message in NOT_PLAIN:
            yield {place: {"task": {"data": field}}}, rf"hostile\.pt is refused.*{message}"
    code = f"[open({str(path)!r}, 'w').close()]"
    evaluated = [
        (more | {name: code}, f"has {name} .*run as code") for name, more in EVALUATED.items()
    ]
    for changed, message in OPTIONS + evaluated:
        yield {"cfg": {**state["cfg"], "model": state["cfg"]["model"] | changed}}, message
    for change, message in WEIGHTS:
        weights = {n: change(t) if t.dim() == 2 else t for n, t in state["model"].items()}
        yield {"model": weights}, message


@pytest.mark.parametrize("number", range(46))
def test_hostile_checkpoints_are_refused(number, language_model, sentinel, tmp_path):
    state = torch.load(language_model)
    rows = [*hostile(state, sentinel)]
    assert len(rows) == 46
    changed, message = rows[number]
    torch.save(state | changed, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "hostile.pt")


CODE = [
    "__import__('os').system('true')", "lambda: 1", "[x for x in (1, 2)]", "f'{1}'", " (f)(1)",
    "2 ** 99999999", "1 << 99999999", "[0] * 10001", "[[0] * 10000] * 10000 * 10000",
]  # fmt: skip
PLAIN = [
    "(0.9, 0.98)", "[(512, 9)] * 2 + [(2048, 1)]", "8 * 1024 - 1", "True", "{'beam': 4}", "word",
    "1 +", "", "(" * 300 + ")" * 300, "-" * 9000 + "1", "1," * 6000, "1\0",
]  # fmt: skip


@pytest.mark.parametrize("text", CODE + PLAIN, ids=lambda text: text[:20])
def test_a_configuration_with_code_is_refused(text, language_model, tmp_path):
    state = torch.load(language_model)
    state["cfg"]["model"] |= {"character_filters": text, "data": "corpora (1)/data-bin"}
    torch.save(state, tmp_path / "changed.pt")
    with pytest.raises(ValueError, match="run as code") if text in CODE else nullcontext():
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "changed.pt"))


def flipped(source: Path) -> bytes:
    """Flip the lowest bit in the middle of the largest tensor."""
    content = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        entry = max(archive.infolist(), key=lambda e: e.file_size)
        content[content.index(archive.read(entry)) + entry.file_size // 2] ^= 1
    return bytes(content)


def compressed(source: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            new.writestr(entry, old.read(entry))
    return packed.getvalue()


def single_tensor(_source: Path) -> bytes:
    packed = io.BytesIO()
    torch.save(torch.zeros(3), packed)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (flipped, r"damaged \(.*data/.*\): copy it again"),
        (compressed, r"damaged \(compressed"),
        (single_tensor, "refused: it holds a Tensor"),
        (lambda _: b"PK\x05\x06" + bytes(18), ""),
        (lambda _: b"\x80\x02}.", ""),
        *((lambda source, part=part: source.read_bytes()[: int(part(source.stat().st_size))],
           "(truncated|damaged)")
          for part in (lambda n: 0, lambda n: 1, lambda n: 100, lambda n: n / 2, lambda n: n - 1)),
    ],
)  # fmt: skip
def test_files_that_are_not_whole_checkpoints_are_refused(
    content, message, language_model, tmp_path
):
    (tmp_path / "other.pt").write_bytes(content(language_model))
    with pytest.raises(ValueError, match=rf"other\.pt is {message}"):
        load(tmp_path / "other.pt")


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_training_refuses_a_hostile_checkpoint_too(option, data, translator, sentinel, tmp_path):
    state = torch.load(translator)
    state["extra_state"]["x"] = Call(os.system, f"touch {sentinel}")
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=r"hostile\.pt is refused: it names"):
        train(data, tmp_path / "new", option, tmp_path / "hostile.pt")


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


def test_other_errors_of_torch_are_left_alone(tmp_path):
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        checkpoint_utils.torch_persistent_save({"f": lambda: 0}, str(tmp_path / "checkpoint1.pt"))
    assert list(tmp_path.iterdir()) == []


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
    checkpoint_utils.torch_persistent_save(OLD, str(tmp_path / "checkpoint_last.pt"))
    assert calls == ["fsync", "posix_fadvise", "replace", "fsync"]
