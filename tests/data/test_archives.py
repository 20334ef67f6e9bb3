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


def write_tar(path, files=FILES, more=(), mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for entry in more:
            tar.addfile(entry)
    return path


def write_tar_plain(path, files=FILES):
    return write_tar(path, files, mode="w")


def write_zip(path, files=FILES):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    return path


def content_of(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out" / "new"


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.tar.gz", write_tar),
        ("a.tgz", write_tar),
        ("a.tar", write_tar_plain),
        ("a.zip", write_zip),
    ],
)
def test_all_files_are_extracted(tmp_path, folder, name, write):
    extract(write(tmp_path / name), folder)
    assert content_of(folder) == FILES
    assert list(folder.parent.iterdir()) == [folder]


def test_a_single_compressed_file_is_extracted(tmp_path, folder):
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"a b\n"))
    extract(tmp_path / "train.txt.gz", folder)
    assert content_of(folder) == {"train.txt": b"a b\n"}


def test_an_existing_folder_is_left_alone(tmp_path, folder):
    folder.mkdir(parents=True)
    with pytest.raises(FileExistsError, match="exists already; delete it first"):
        extract(write_tar(tmp_path / "a.tar.gz"), folder)
    assert list(folder.iterdir()) == []


def member(kind, target="", **headers):
    found = tarfile.TarInfo("link")
    found.type, found.linkname, found.pax_headers = kind, target, headers
    return found


def link_in_zip(path):
    found = zipfile.ZipInfo("link")
    found.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr(found, "/etc/passwd")
    return path


def encrypted_zip(path):
    """Set the flag of an encrypted file."""
    content = bytearray(write_zip(path, {"a": b"x"}).read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    return path


OUTSIDE, KIND = "would lie outside of the folder", "link is a link, a device or a sparse"
SPARSE = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0",
          "GNU.sparse.size": str(8 << 30)}  # fmt: skip
HOSTILE = [
    *((write, {name: b"x"}, OUTSIDE) for write in (write_tar, write_zip)
      for name in ("/tmp/evil", "../evil", "a/../../evil")),
    *((write_tar, [member(*kind)], KIND)
      for kind in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.SYMTYPE, "top.txt"),
                   (tarfile.LNKTYPE, "top.txt"), (tarfile.CHRTYPE,))),
    (write_tar, [member(tarfile.REGTYPE, **SPARSE)], KIND),
    (link_in_zip, None, KIND),
    (encrypted_zip, None, "a is encrypted"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "content", "message"), HOSTILE)
def test_hostile_archives_are_refused(tmp_path, folder, write, content, message):
    path = tmp_path / ("a.tar.gz" if write is write_tar else "a.zip")
    if isinstance(content, list):
        write(path, FILES, content)
    else:
        write(path, *([content] if content else []))
    with pytest.raises(UserError, match=rf"{path.name}: .*{message}"):
        extract(path, folder)
    assert list(folder.parent.iterdir()) == []
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("name", "write"), [("a.tar.gz", write_tar), ("a.zip", write_zip), ("b.gz", write_tar)]
)
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_damaged_archives_are_named_with_the_remedy(tmp_path, folder, name, write, damage):
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
    with pytest.raises(UserError, match=r"damaged.*; delete it and fetch it again"):
        extract(path, folder)
    assert list(folder.parent.iterdir()) == []


def test_the_checksum_at_the_very_end_is_read(tmp_path, folder):
    path = write_tar(tmp_path / "a.tar.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + bytes(4) + whole[-4:])
    with pytest.raises(UserError, match="CRC"):
        extract(path, folder)


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_broken_header_is_not_taken_for_the_end(tmp_path, folder, suffix, byte):
    """Damage a header that tarfile takes for the end, unless it is the first."""
    plain = write_tar_plain(tmp_path / "plain.tar", {"one": b"1", "two": b"2", "three": b"3"})
    content = bytearray(plain.read_bytes())
    content[1024:1536] = byte * 512
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix == "tar.gz" else content)
    with pytest.raises(UserError, match="damaged"):
        extract(path, folder)
    assert not folder.exists()


def test_other_kinds_of_files_are_refused(tmp_path, folder):
    (tmp_path / "a.rar").write_bytes(b"x")
    with pytest.raises(UserError, match=r"expected a name that ends with \.tar\.gz"):
        extract(tmp_path / "a.rar", folder)
    with pytest.raises(FileNotFoundError):
        extract(tmp_path / "a.zip", folder)


@pytest.mark.parametrize(
    ("name", "write"), [("a.tgz", write_tar), ("a.tar", write_tar_plain), ("a.zip", write_zip)]
)
def test_only_wanted_files_are_written(tmp_path, folder, name, write):
    files = {f"./{name}": content for name, content in FILES.items()}
    extract(write(tmp_path / name, files), folder, frozenset({"folder/below.txt", "other"}))
    assert content_of(folder) == {"folder/below.txt": FILES["folder/below.txt"]}


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_a_bad_name_of_an_unwanted_file_is_refused(tmp_path, folder, name):
    write = write_tar if name == "a.tgz" else write_zip
    archive = write(tmp_path / name, FILES | {"../evil.txt": b""})
    with pytest.raises(UserError, match=r"evil\.txt would lie outside"):
        extract(archive, folder, frozenset(FILES))
    assert not folder.exists()


def test_a_name_of_megabytes_is_refused(tmp_path, folder):
    write_tar(tmp_path / "a.tgz", {"a" * (2 << 20): b""})
    with pytest.raises(UserError, match="a header of 2,"):
        extract(tmp_path / "a.tgz", folder)
    assert not folder.exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives, "SMALLEST_LIMIT", 1000)
    write_zip(tmp_path / "bomb.zip", {"zeros": bytes(10**6)})
    write_tar(tmp_path / "bomb.tgz", {"zeros": bytes(10**6)})
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10**6)))
    for name in ("bomb.zip", "bomb.tgz", "bomb.gz"):
        with pytest.raises(UserError, match=r"unpacks to more than .* 200 times its size"):
            extract(tmp_path / name, folder)
        assert not folder.exists() and list(folder.parent.iterdir()) == []


def test_an_unknown_compression_method_counts_as_damage(tmp_path, folder):
    path = write_zip(tmp_path / "a.zip", {"a": b"text" * 100})
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        start = data.index(signature) + place
        data[start : start + 2] = (99).to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        extract(path, folder)
