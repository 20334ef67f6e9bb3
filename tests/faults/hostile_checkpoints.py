"""Checkpoints that try to run code, read secrets, or take all memory."""

import argparse
import copy
import io
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.faults.hostile_files import _member, _tar
from tests.faults.observing import CANARY

Writer = Callable[[Path], None]
# arguments → functions by which a pickle runs or writes something; {} is the canary's path
GROUPS: list[tuple[tuple, str]] = [
    (("touch {}",), "os.system posix.system subprocess.getoutput"),
    (("open('{}', 'w')",), "builtins.eval builtins.exec timeit.timeit"),
    (("antigravity",), "builtins.__import__"),
    (("{}",), "pathlib.PosixPath torch.load fairseq.file_io.PathManager.mkdirs"),
    (("{}", "w"), "builtins.open"),
    (("/etc/hostname", "{}"), "shutil.copyfile"),
    (("x: {}",), "omegaconf.OmegaConf.create"),
    ((os.system, "__self__"), "builtins.getattr"),
    ((b"cos\nsystem\n(S'touch {}'\ntR.",), "pickle.loads"),
    ((argparse.Namespace(user_dir="{}"),), "fairseq.utils.import_user_module"),
    ((b"/bin/touch", [b"touch", b"{}"], []), "multiprocessing.util.spawnv_passfds"),
]
CALLS = [(name, arguments) for arguments, names in GROUPS for name in names.split()]
PLACES = ("model", "cfg", "args", "extra_state", "optimizer_history", "task_state")
EVIL = "[open('{}', 'w').close()]"
# configurations that stock fairseq evaluates, resolves, reads files of, or builds in full
FIELDS: dict[str, dict[str, object]] = {
    "eval in adaptive_softmax_cutoff": {"adaptive_softmax_cutoff": EVIL},
    "resolves the environment": {"encoder_embed_path": "${oc.env:HOME}"},
    "reads endless embeddings": {"encoder_embed_path": "/dev/zero"},
    "an unknown model": {"_name": "os.system"},
    "large: 10⁹ layers": {"decoder_layers": 10**9},
    "10⁹ positions": {"max_source_positions": 10**9, "encoder_learned_pos": True},
    "large: 10⁹ knots": {"head_pointwise": "plif", "head_plif_knots": 10**9},
    "negative dimensions": {"decoder_embed_dim": -32},
    "dimensions of text": {"decoder_embed_dim": "32; touch {}"},
}


class _Named:
    """Pickle as the global `module.name`, or as its call, whether it exists here or not."""

    def __init__(self, name: str, args: tuple | None = None) -> None:
        self.name, self.args = name.rpartition("."), args


class _Pickler(pickle._Pickler):
    """Pickle in Python, and write `_Named` as a global."""

    def save(self, obj, save_persistent_id=True):
        if not isinstance(obj, _Named):
            return super().save(obj, save_persistent_id)
        self.write(f"c{obj.name[0]}\n{obj.name[2]}\n".encode())
        if obj.args is not None:
            self.save(obj.args)
            self.write(b"R")


def _filled(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return value.replace("{}", path)
    if isinstance(value, bytes):
        return value.replace(b"{}", path.encode())
    if isinstance(value, dict):
        return {key: _filled(part, path) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(part, path) for part in value)
    return value


class _Module:
    """Stand for the module pickle in torch.save."""

    Pickler = _Pickler
    dump, dumps, load, loads = pickle.dump, pickle.dumps, pickle.load, pickle.loads


def hostile_checkpoints(sound: Path, canary: Path) -> Iterator[tuple[str, Writer]]:
    """Yield name and writer of each hostile checkpoint."""
    state = torch.load(sound, weights_only=True)
    for number, (name, args) in enumerate(CALLS):
        call = {"x": _Named(name, _filled(args, str(canary)))}
        yield f"calls {name}", _saved(state | {PLACES[number % len(PLACES)]: call})
    for name, fields in FIELDS.items():
        changed = copy.deepcopy(state)
        changed["cfg"]["model"].update(_filled(fields, str(canary)))
        yield name, lambda path, changed=changed: torch.save(changed, path)
    changed = copy.deepcopy(state)
    module = canary.parent / "hostile_module"
    module.mkdir(exist_ok=True)
    (module / "__init__.py").write_text(f"open({str(canary)!r}, 'w')")
    changed["cfg"]["common"]["user_dir"] = str(module)
    yield "names a user_dir", lambda path: torch.save(changed, path)
    yield from _files(sound, state, canary)


def _saved(state: dict, **options: object) -> Writer:
    return lambda path: torch.save(state, path, pickle_module=_Module, **options)


def _files(sound: Path, state: dict, canary: Path) -> Iterator[tuple[str, Writer]]:
    """Yield files that are damaged or are of another format."""
    call = _Named("os.system", (f"touch {canary}",))
    bomb: object = "x" * 1000
    for _ in range(30):
        bomb = [bomb] * 10
    _Pickler(buffer := io.BytesIO(), 2).dump(call)
    yield "plain pickle", lambda path: path.write_bytes(buffer.getvalue())
    yield "legacy format", _saved(state | {"x": call}, _use_new_zipfile_serialization=False)
    members = [_member(name, buffer.getvalue()) for name in ("pickle", "storages", "tensors")]
    yield "tar", lambda path: _tar(path, *members)
    yield "folder", Path.mkdir
    yield "pipe", lambda path: os.mkfifo(path)
    yield "pipe without end", lambda path: path.symlink_to("/dev/zero")
    yield "empty", lambda path: path.write_bytes(b"")
    yield "half", lambda path: path.write_bytes(sound.read_bytes()[: sound.stat().st_size // 2])
    nested, huge = b"](" * 1_000_000, struct.pack("<I", 0xFFFFFFF0)
    deflated = zipfile.ZIP_DEFLATED
    yield "compressed zeros", lambda path: _rezip(sound, path, bytes(1 << 28), deflated)
    yield "pickle of nested lists", lambda path: _rezip(sound, path, b"\x80\x02" + nested + b"e.")
    yield "string of 4 GB", lambda path: _rezip(sound, path, b"\x80\x02X" + huge + b".")
    yield "10³⁰ values", lambda path: torch.save(state | {"cfg": bomb}, path)
    yield "names above the folder", lambda path: (
        shutil.copyfile(sound, path), zipfile.ZipFile(path, "a").writestr(f"../../{CANARY}", "x")
    )  # fmt: skip
    wide = torch.zeros(1).expand(10**6, 10**6)
    yield "declares 10¹² numbers", lambda path: _weights(state, path, lambda _: wide)
    yield "NaN", lambda path: _weights(state, path, lambda t: t.fill_(float("nan")))
    yield "integers", lambda path: _weights(state, path, lambda t: t.to(torch.int32))
    yield "sparse", lambda path: _weights(state, path, lambda t: t.to_sparse())
    yield "an element for all", lambda path: _weights(state, path, lambda t: t[:1, :1])


def _rezip(sound: Path, path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> None:
    """Put other content in place of the pickle in a checkpoint."""
    with zipfile.ZipFile(sound) as old, zipfile.ZipFile(path, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith("data.pkl") else old.read(name))


def _weights(state: dict, path: Path, change: Callable) -> None:
    model = {
        key: change(value.clone()) if value.dim() == 2 else value
        for key, value in state["model"].items()
    }
    torch.save(state | {"model": model}, path)
