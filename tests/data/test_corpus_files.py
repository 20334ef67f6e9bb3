"""corpus.yaml: what it may say, and that the recipes' say where their checksums are from."""

import hashlib
from pathlib import Path

import pytest

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.data.corpus_files import UNKNOWN, check_languages, read_corpus
from tests.cli import highrank
from tests.data.serving import serving

CONTENT = b"PK\x05\x06" + bytes(18)  # an archive of nothing
SUM = hashlib.sha256(CONTENT).hexdigest()
RECIPES = Path(__file__).parents[2] / "recipes"


def entry(url="http://127.0.0.1:9/a", sha256=UNKNOWN, more=""):
    return f"files:\n  a.zip:\n    url: {url}\n    sha256: {sha256}\n    source: ours\n{more}"


@pytest.mark.parametrize(
    ("sha256", "said"),
    [
        (SUM, "fetched, its sha256 is the published one"),
        (UNKNOWN, "was recorded in"),
        ("0" * 64, f"should be {'0' * 64}"),
    ],
)
def test_the_command_downloads_files_with_the_right_checksum(tmp_path, sha256, said):
    file, folder = tmp_path / "corpus.yaml", tmp_path / "download"
    with serving(CONTENT) as server:
        file.write_text(entry(server.url, sha256, f"    size: {len(CONTENT)}\n"))
        done = highrank("data", "fetch", str(file), str(folder))
    is_right = sha256 in (SUM, UNKNOWN)
    assert done.exit_code == (0 if is_right else 2) and said in done.output
    assert {path.name for path in folder.glob("a*.zip")} == ({"a.zip"} if is_right else set())
    assert (folder / "checksums.txt").exists() == (sha256 == UNKNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry(sha256="12ab"), r"corpus\.yaml:4: files\.a\.zip\.sha256: String should match"),
        (entry(more="    sise: 3\n"), r"corpus\.yaml:6: files\.a\.zip\.sise: unknown key; did"),
        (entry().replace("    source: ours\n", ""), r"corpus\.yaml:2: files\.a\.zip\.source: Fie"),
        (entry().replace("    sha256: unknown\n", ""), "needs sha256 .* or md5"),
        (entry().replace("a.zip", "../a.zip"), r"String should match"),
        ("files: {}\n", "at least 1 item"),
        (entry() + "base: other.yaml\n", r"corpus\.yaml:6: base is not allowed here; write all v"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, message):
    (tmp_path / "corpus.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_corpus(tmp_path / "corpus.yaml")


def test_the_corpora_of_recipes_say_where_a_checksum_is_from_and_are_of_their_languages(tmp_path):
    for path in RECIPES.glob("*/corpus*.yaml"):
        corpus = read_corpus(path)
        for file in corpus.files.values():  # owner/repository and a path
            assert file.sha256 == UNKNOWN or "/" in file.source
        if path.parent.name.startswith("wmt14"):
            check_languages(path, corpus, tuple(path.parent.name.split("_")[1:]))
    for name, languages in (
        ("wmt14_en_de/corpus.yaml", ("en", "fr")), ("wmt14_en_fr/corpus_small.yaml", ("de", "en")),
        ("wmt14_en_de/corpus_multi30k.yaml", ("en", "cs")),
    ):  # fmt: skip
        message = f"{name}: .* are named as text of other languages than {' and '.join(languages)}"
        with pytest.raises(ConfigurationError, match=message):
            check_languages(RECIPES / name, read_corpus(RECIPES / name), languages)
    file = tmp_path / "corpus.yaml"  # names without a language are those of any
    file.write_text("texts: {train: [[a.src, a.tgt]], valid: [[b.en, b]], test: [[c.en, c.cs]]}\n")
    with pytest.raises(ConfigurationError, match=r"c\.en and c\.cs are named"):
        check_languages(file, read_corpus(file), ("en", "de"))
