"""Archives made here: whole, damaged and hostile ones."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import archives
from highrank_plugins.data.archives import extract

FILES = {"top.txt": b"one\n", "folder/below.txt": b"two\n" * 100_000}


def write(path, files=FILES, more=()):
    """Write an archive of the kind that its name says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
            for entry in more:
                zipped.writestr(entry, "/etc/passwd")
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for entry in more:
            tar.addfile(entry)
    return path


def content_of(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out" / "new"


def refused(path, folder, message, wanted=None):
    with pytest.raises(UserError, match=message):
        extract(path, folder, wanted)
    assert not any(folder.parent.glob("*"))


def test_all_files_are_extracted_or_only_wanted_ones_and_a_folder_is_left_alone(tmp_path, folder):
    for number, name in enumerate(["a.tar.gz", "a.tgz", "a.tar", "a.zip"]):
        all_of_it, some = folder.with_name(f"all{number}"), folder.with_name(f"some{number}")
        extract(write(tmp_path / name), all_of_it)
        assert content_of(all_of_it) == FILES
        files, below = {f"./{name}": content for name, content in FILES.items()}, "folder/below.txt"
        extract(write(tmp_path / name, files), some, frozenset({below, "other"}))
        assert content_of(some) == {below: FILES[below]}
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"a b\n"))
    extract(tmp_path / "train.txt.gz", folder)
    with pytest.raises(UserError, match="exists already: name another"):
        extract(tmp_path / "a.zip", folder)
    assert content_of(folder) == {"train.txt": b"a b\n"} and len([*folder.parent.iterdir()]) == 9
    (tmp_path / "a.rar").write_bytes(b"x")
    with pytest.raises(UserError, match=r"expected a name that ends with \.tar\.gz"):
        extract(tmp_path / "a.rar", folder)
    with pytest.raises(FileNotFoundError):
        extract(tmp_path / "b.zip", folder.with_name("b"))


def member(kind, target="", **headers):
    found = tarfile.TarInfo("link")
    found.type, found.linkname, found.pax_headers = kind, target, headers
    return found


LINK = zipfile.ZipInfo("link")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16
OUTSIDE, KIND = "would lie outside of the folder", "link is a link, a device or a sparse"
SPARSE = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0",
          "GNU.sparse.size": str(8 << 30)}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "files", "more", "message"),
    [
        *((archive, {name: b"x"}, (), OUTSIDE) for archive in ("a.tar.gz", "a.zip")
          for name in ("/tmp/evil", "../evil", "a/../../evil")),
        *(("a.tar.gz", FILES, [member(*kind)], KIND)
          for kind in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.SYMTYPE, "top.txt"),
                       (tarfile.LNKTYPE, "top.txt"), (tarfile.CHRTYPE,))),
        ("a.tar.gz", FILES, [member(tarfile.REGTYPE, **SPARSE)], KIND),
        ("a.zip", {}, [LINK], KIND),
        ("a.tgz", {"a" * (2 << 20): b""}, (), "a header of 2,"),
    ],
)  # fmt: skip
def test_hostile_archives_are_refused(tmp_path, folder, name, files, more, message):
    path = write(tmp_path / name, files, more)
    refused(path, folder, rf"{name}: .*{message}")
    if message == OUTSIDE:  # a bad name is refused even if the file is not wanted
        refused(path, folder, message, frozenset(FILES))
    assert not (tmp_path / "evil").exists()


DAMAGE = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "flip": lambda whole: whole[: (n := len(whole) // 2)] + bytes([whole[n] ^ 64]) + whole[n + 1 :],
    "empty": lambda whole: b"",
    "text": lambda whole: b"<html>not found</html>",
}


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip", "b.gz"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_archives_are_named_with_the_remedy(tmp_path, folder, name, damage):
    path = write(tmp_path / name)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    refused(path, folder, r"damaged.*; delete it and fetch it again")


def test_damage_that_looks_like_the_end_is_found(tmp_path, folder):
    """gzip reads its checksum last; tarfile takes a damaged header for the end."""
    path = write(tmp_path / "a.tar.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + bytes(4) + whole[-4:])
    refused(path, folder, "CRC")
    plain = write(tmp_path / "plain.tar", {"one": b"1", "two": b"2", "three": b"3"})
    content = bytearray(plain.read_bytes())
    for byte in (b"\0", b"\xff"):
        content[1024:1536] = byte * 512
        plain.write_bytes(content)
        path.write_bytes(gzip.compress(content))
        refused(plain, folder, "damaged")
        refused(path, folder, "damaged")


def test_bombs_and_what_cannot_be_unpacked_are_named(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives, "SMALLEST_LIMIT", 1000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10**6)))
    for name in ("bomb.zip", "bomb.tgz"):
        write(tmp_path / name, {"zeros": bytes(10**6)})
    for name in ("bomb.zip", "bomb.tgz", "bomb.gz"):
        refused(tmp_path / name, folder, r"unpacks to more than .* 200 times its size")
    path = write(tmp_path / "a.zip", {"a": b"text" * 100})
    whole = path.read_bytes()
    entry, listed = whole.index(b"PK\3\4"), whole.index(b"PK\1\2")
    for places, value, message in (
        ([listed + 8], 1, "damaged .* is encrypted"), ([entry + 8, listed + 10], 99, "damaged"),
    ):  # fmt: skip
        data = bytearray(whole)
        for place in places:
            data[place] = value
        path.write_bytes(data)
        refused(path, folder, message)
