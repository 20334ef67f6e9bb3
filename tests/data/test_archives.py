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
NAMES = ["a.tar.gz", "a.tgz", "a.tar", "a.zip"]


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


@pytest.mark.parametrize("name", NAMES)
def test_all_files_are_extracted_or_only_wanted_ones(tmp_path, folder, name):
    extract(write(tmp_path / name), folder)
    assert content_of(folder) == FILES
    assert list(folder.parent.iterdir()) == [folder]
    files = {f"./{name}": content for name, content in FILES.items()}
    wanted = frozenset({"folder/below.txt", "other"})
    extract(write(tmp_path / name, files), folder.with_name("some"), wanted)
    assert content_of(folder.with_name("some")) == {"folder/below.txt": FILES["folder/below.txt"]}


def test_a_single_compressed_file_is_extracted_and_a_folder_left_alone(tmp_path, folder):
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"a b\n"))
    extract(tmp_path / "train.txt.gz", folder)
    with pytest.raises(UserError, match="exists already: name another"):
        extract(write(tmp_path / "a.tar.gz"), folder)
    assert content_of(folder) == {"train.txt": b"a b\n"}


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


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip", "b.gz"])
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_damaged_archives_are_named_with_the_remedy(tmp_path, folder, name, damage):
    path = write(tmp_path / name)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "cut": whole[:middle],
            "flip": whole[:middle] + bytes([whole[middle] ^ 64]) + whole[middle + 1 :],
            "empty": b"",
            "text": b"<html>not found</html>",
        }[damage]
    )
    refused(path, folder, r"damaged.*; delete it and fetch it again")


def test_the_checksum_at_the_very_end_is_read(tmp_path, folder):
    path = write(tmp_path / "a.tar.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + bytes(4) + whole[-4:])
    refused(path, folder, "CRC")


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_broken_header_is_not_taken_for_the_end(tmp_path, folder, suffix, byte):
    """Damage a header that tarfile takes for the end, unless it is the first."""
    plain = write(tmp_path / "plain.tar", {"one": b"1", "two": b"2", "three": b"3"})
    content = bytearray(plain.read_bytes())
    content[1024:1536] = byte * 512
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix == "tar.gz" else content)
    refused(path, folder, "damaged")


def test_other_kinds_of_files_are_refused(tmp_path, folder):
    (tmp_path / "a.rar").write_bytes(b"x")
    with pytest.raises(UserError, match=r"expected a name that ends with \.tar\.gz"):
        extract(tmp_path / "a.rar", folder)
    with pytest.raises(FileNotFoundError):
        extract(tmp_path / "a.zip", folder)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives, "SMALLEST_LIMIT", 1000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10**6)))
    for name in ("bomb.zip", "bomb.tgz"):
        write(tmp_path / name, {"zeros": bytes(10**6)})
    for name in ("bomb.zip", "bomb.tgz", "bomb.gz"):
        refused(tmp_path / name, folder, r"unpacks to more than .* 200 times its size")


@pytest.mark.parametrize(
    ("places", "value", "message"),
    [
        ({b"PK\1\2": 8}, 1, "a is encrypted"),
        ({b"PK\3\4": 8, b"PK\1\2": 10}, 99, "damaged"),  # an unknown compression method
    ],
)
def test_an_encrypted_file_and_an_unknown_method_are_named(
    tmp_path, folder, places, value, message
):
    path = write(tmp_path / "a.zip", {"a": b"text" * 100})
    data = bytearray(path.read_bytes())
    for signature, place in places.items():
        start = data.index(signature) + place
        data[start : start + 2] = value.to_bytes(2, "little")
    path.write_bytes(data)
    refused(path, folder, message)
