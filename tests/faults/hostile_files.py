"""Hostile binarised data, dictionaries, corpora, archives, YAML and exported folders."""

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Change = Callable[[Path], None]  # of a sound folder or file
SHELL = "$(touch {c}) `touch {c}`; touch {c} | touch {c}\n"


def binarised(canary: Path) -> Iterator[tuple[str, Change]]:
    """Yield changes of a folder of binarised data en-de."""
    name = "test.en-de.en"
    header = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 4)

    def index(content: bytes) -> Change:
        return _put(f"{name}.idx", content)

    yield "10¹⁸ sentences", index(header + struct.pack("<Q", 10**18))
    yield "a sentence of 2³¹ words", index(header + struct.pack("<QiQ", 1, 2**31 - 1, 0))
    yield "the old format", index(b"TNTIDX\x00\x00" + struct.pack("<QQQQ", 1, 4, 2**40, 2**40))
    yield "a pickle", index(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    yield "index is a pipe", _put(f"{name}.idx", None)
    yield "data is a pipe", _put(f"{name}.bin", None)
    yield "data is /dev/zero", _put(f"{name}.bin", "/dev/zero")
    yield "numbers beyond", lambda folder: (folder / f"{name}.bin").write_bytes(
        b"\xff\x7f" * ((folder / f"{name}.bin").stat().st_size // 2)
    )  # fmt: skip
    sums = f"{'0' * 64}  ../../etc/passwd\n{'0' * 64}  /dev/zero\n"
    yield "sums of other files", _put("sha256sums", sums.encode())
    yield "sums are a pipe", _put("sha256sums", None)


def dictionaries(canary: Path) -> Iterator[tuple[str, Change]]:
    """Yield changes of the dictionary of such a folder."""
    commands = SHELL.format(c=canary).strip().replace(" ", "_")
    contents = {
        "a negative count": b"a -5\nb 3\n",
        "an expression": b"a __import__('os').getpid()\n",
        "a word twice": b"a 3\na 2\n",
        "overwritten special words": b"</s> 3 #fairseq:overwrite\n<pad> 3 #fairseq:overwrite\n",
        "shell words": f"{commands} 3\n".encode(),
        "signs for terminals": b"\x1b]0;x\x07\x1b[2J 3\n\xe2\x80\xae 2\n",
        "a word of 8 MB": b"a" * (8 << 20) + b" 3\n",
        "empty": b"",
    }
    for name, content in contents.items():
        yield name, _put("dict.en.txt", content)
    yield "pipe", _put("dict.en.txt", None)
    yield "/dev/zero", _put("dict.en.txt", "/dev/zero")
    yield "folder", lambda folder: (
        (folder / "dict.en.txt").unlink(), (folder / "dict.en.txt").mkdir()
    )  # fmt: skip


def corpora(canary: Path) -> Iterator[tuple[str, Change]]:
    """Yield changes of a folder of text; lines stay as many where that is possible."""
    contents = {
        "shell words": (SHELL.format(c=canary) * 9).encode(),
        "expressions": f"open('{canary}', 'w') ${{oc.env:HOME}} {{{{7*7}}}} %s%n\n".encode() * 9,
        "script": f"<script>open('{canary}')</script> | --output={canary}\n".encode() * 9,
        "NUL": b"a\0b\n" * 9,
        "one line of 16 MB": b"a" * (16 << 20),
        "one line of 4,000,000 words": b"a " * 4_000_000,
        "empty": b"",
    }
    for name, content in contents.items():
        yield name, _put("train.en", content)
    yield "/dev/zero", _put("train.en", "/dev/zero")
    yield "gzip of 1 GB", lambda folder: (
        os.remove(folder / "train.en"), _gzip_zeros(folder / "train.en.gz", 1 << 30)
    )  # fmt: skip


def archives(canary: Path) -> Iterator[tuple[str, Change]]:
    """Yield writers of archives; the name has the ending."""
    above = f"../../{canary.name}"
    for kind, name in {"absolute": str(canary), "above": above, "mixed": f"a/../{above}"}.items():
        yield f"{kind}.tar.gz", lambda path, name=name: _tar(path, _member(name, b"x"))
        yield f"{kind}.zip", lambda path, name=name: _zip(path, name)
    for kind, code in {"symbolic": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}.items():
        link = _member("a", kind=code, target=str(canary.parent))
        members = link, _member(f"a/{canary.name}", b"x")
        yield f"{kind} link.tar", lambda path, members=members: _tar(path, *members)
    for kind, code in {"device": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE}.items():
        yield f"{kind}.tgz", lambda path, code=code: _tar(path, _member("a", kind=code))
    yield "a name twice.tar", lambda path: _tar(path, _member("a", b"x"), _member("a", b"y"))
    yield "bomb.gz", lambda path: _gzip_zeros(path, 1 << 30)
    yield "bomb.zip", lambda path: _zip(path, "a", bytes(1 << 29))
    yield "wrong size.zip", _overlapping
    yield "half.tar.gz", lambda path: (
        _tar(path, _member("a", os.urandom(9999))), os.truncate(path, 5000)
    )  # fmt: skip
    yield "pipe.tar", lambda path: os.mkfifo(path)
    yield "zero.tar", lambda path: path.symlink_to("/dev/zero")


def yamls(canary: Path) -> Iterator[tuple[str, str]]:
    """Yield texts of configurations."""
    nested = "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 25))
    yield "python object", f"train: !!python/object/apply:os.system ['touch {canary}']\n"
    yield "aliases", "a0: &a0 {x: 1}\n" + nested
    yield "recursive", "train: &a {lr: *a}\n"
    yield "deep mappings", "{a: " * 3000 + "}" * 3000
    yield "base is /dev/zero", "base: /dev/zero\n"
    yield "user_dir", f"train: {{user_dir: {canary.parent / 'hostile_module'}}}\n"
    yield "shell words", f"train: {{arch: 'a; touch {canary}', lr: '$(touch {canary})'}}\n"
    yield "option", f"train: {{arch: '--save-dir={canary}'}}\n"
    yield "expression", f"train: {{adam_betas: \"open('{canary}','w')\"}}\n"
    yield "an integer of 5,000 digits", f"train: {{seed: {'9' * 5000}}}\n"


def exported(canary: Path) -> Iterator[tuple[str, Change]]:
    """Yield changes of an exported folder, whose checksums are made right again."""

    def config(**changed: object) -> Change:
        def change(folder: Path) -> None:
            path = folder / "config.json"
            whole = json.loads(path.read_text())
            for key, value in changed.items():
                block, _, name = key.partition("__")
                (whole["fairseq"][block] if name else whole)[name or key] = value
            path.write_text(json.dumps(whole))

        return change

    def weights(content: bytes) -> Change:
        def change(folder: Path) -> None:
            _put("model.safetensors", content)(folder)
            config(sha256={"model.safetensors": hashlib.sha256(content).hexdigest()})(folder)

        return change

    code = f"[open('{canary}', 'w').close()]"
    pickled = b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    yield "eval", config(model__adaptive_softmax_cutoff=code)
    yield "environment", config(task__data="${oc.env:HOME}")
    yield "10⁹ layers", config(model__decoder_layers=10**9)
    yield "user_dir", config(common={"user_dir": str(canary.parent / "hostile_module")})
    yield "sums above", config(sha256={"../../../etc/passwd": "0" * 64})
    yield "deep lists", _put("config.json", b"[" * 100_000)
    yield "NaN", _put("config.json", b"NaN")
    yield "config is a pipe", _put("config.json", None)
    yield "header of 2⁶² bytes", weights(struct.pack("<Q", 2**62) + b"{}")
    yield "tensor of 10¹² numbers", weights(_tensor([10**6, 10**6], [0, 4 * 10**12]))
    yield "a pickle as weights", weights(pickled)
    yield "weights are /dev/zero", _put("model.safetensors", "/dev/zero")


def _tensor(shape: list[int], offsets: list[int]) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def _put(name: str, content: bytes | str | None) -> Change:
    """Put bytes, a link to a path, or a pipe (None) in place of a file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        if content is None:
            os.mkfifo(path)
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)

    return change


def _gzip_zeros(path: Path, size: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


def _member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(content), kind, target
    return member, content


def _tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))


def _zip(path: Path, name: str, content: bytes = b"x") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


def _overlapping(path: Path) -> None:
    _zip(path, "a", b"x" * 1000)
    content = path.read_bytes().replace(struct.pack("<I", 1000), struct.pack("<I", 2**32 - 2))
    path.write_bytes(content)
