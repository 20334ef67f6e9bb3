"""The user's own text: found, split, checked, counted and sized before anything is trained."""

import gzip
import json
from pathlib import Path

import pytest
import yaml

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import own_text
from highrank_plugins.data.own_files import TextCounts, choose_size
from highrank_plugins.data.own_text import OwnText, part_of
from tests.cli import highrank, refused
from tests.recipes.running import RECIPES

PAIR = ("cs", "en")
TABLES = [*RECIPES.glob("own_*/sizes*.yaml")]


def lines(count: int, word: str, first: int = 0) -> str:
    return "".join(f"{word} number {n} of many\n" for n in range(first, first + count))


def write_parts(folder: Path, train: int = 1200, others: int = 50) -> Path:
    folder.mkdir(exist_ok=True)
    places = {"train": (train, 0), "dev": (others, 5000), "test": (others, 6000)}
    for part, (count, first) in places.items():
        for language, word in (("cs", "slovo"), ("en", "word")):
            (folder / f"{part}.{language}").write_text(lines(count, word, first))
    return folder


def take(data: Path, output: Path | None = None, **choices) -> tuple[OwnText, str]:
    if output is not None:
        output.mkdir()
    own = OwnText(data, **{"endings": PAIR} | choices)
    return own, "\n".join(own.take(output))


def test_given_parts_stay_as_they_are_and_training_text_is_cleaned(tmp_path):
    data = write_parts(tmp_path / "mine")
    for language in PAIR:
        path = data / f"train.{language}"
        first = path.read_text().partition("\n")[0]
        path.write_text(f"{path.read_text()}{first}\n\n")
    (data / "test.en.gz").write_bytes(gzip.compress((data / "test.en").read_bytes()))
    (data / "test.en").unlink()
    _, said = take(data, tmp_path / "out")
    assert "train: 1,200 lines, 6,000 words; left out: 1 repeated, 1 empty" in said
    assert "test: 50 lines, 250 words; nothing is left out" in said
    assert (tmp_path / "out" / "valid.cs").read_text() == (data / "dev.cs").read_text()
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())["train.cs"]
    assert counts["in"]["sentences"] == 1202 and counts["out"]["sentences"] == 1200
    assert counts["left out"] == {
        "repeated": {"sentences": 1, "words": 5}, "empty": {"sentences": 1, "words": 0}
    }  # fmt: skip


def test_the_command_writes_a_new_folder_and_never_over_the_text_that_it_reads(tmp_path):
    data, before = write_parts(tmp_path / "mine"), lines(1200, "slovo")
    (table,) = [path for path in TABLES if path.name == "sizes.yaml"]
    own = ("data", "own-text", data, "--source", "cs", "--target", "en", "--sizes", table)
    refused(f"{data} exists already: name another folder", *own, "--output", data)
    assert (data / "train.cs").read_text() == before
    # after all has been written
    refused("--size tinny: expected auto", *own, "--output", tmp_path / "out", "--size", "tinny")
    assert not (tmp_path / "out").exists()
    assert "max_update=800\n" in highrank(*own, "--output", tmp_path / "out").stdout
    assert (tmp_path / "out" / "train.cs").read_text() == before


@pytest.mark.parametrize(("name", "stem"), [("", "corpus"), ("corpus", "corpus"), ("", "train")])
def test_one_pair_is_split_and_no_source_line_is_in_two_parts(tmp_path, name, stem):
    data = tmp_path / "mine"
    data.mkdir()
    for language, word in (("cs", "slovo"), ("en", "word")):
        twice = lines(1500, word) + lines(1500, f"other {word}" if word == "word" else word)
        (data / f"{stem}.{language}").write_text(twice)
    _, said = take(data / name, tmp_path / "out")
    assert "one text, split by a hash of each line: 10 % each for valid and test" in said
    parts = [set((tmp_path / "out" / f"{p}.cs").read_text().split("\n")) - {""}
             for p in own_text.PARTS]  # fmt: skip
    assert sum(map(len, parts)) == len(set().union(*parts)) == 1500
    assert all(part_of(line, 10) == name for name, part in zip(own_text.PARTS, parts, strict=True)
               for line in part)  # fmt: skip
    with pytest.raises(UserError, match=r"no such folder, and no files .*mine/b\.\{cs,en\}$"):
        take(data / "b")
    for language in PAIR:
        (data / f"b.{language}").write_text("x\n")
    if stem == "train":  # by its name the one to split
        assert "one text, split by a hash" in take(data)[1]
        return
    with pytest.raises(UserError, match=r"or one text alone, which is then split"):
        take(data)


def test_a_stream_is_split_by_place_and_rare_words_become_unknown_in_all_parts(tmp_path):
    def taken(text):
        (tmp_path / "book.txt").write_text(text)
        out = tmp_path / f"out{len(text)}"
        own, said = take(tmp_path / "book.txt", out, endings=("txt",), stream=True, words=True)
        return out, own, said

    out, own, _ = taken(lines(2000, "word") + "a strange last line\n")
    assert (out / "train.txt").read_text() == lines(1601, "word")
    said = "\n".join(own.replace_rare(out, least_count=3, most=100))
    assert "train: 1,601 lines" in said and "16.67% unknown" in said
    assert (out / "test.txt").read_text().endswith("<unk> <unk> <unk> <unk>\n")
    assert "word number <unk> of many\n" in (out / "train.txt").read_text()
    for text in ("word\n" * 2000, "".join(f"w{n} x{n}\n" for n in range(2000))):
        out, own, said = taken(text)
        known = "in the training text, too: 200 lines of valid, 200 lines of test"
        assert (known in said) == text.startswith("word")
        with pytest.raises(UserError, match=r"train: .* words are rare .*: add --units pieces"):
            [*own.replace_rare(out, least_count=3, most=100)]


NO_BLANKS = "这是一个没有空格的很长很长很长的句子啊\n" * 1200
OF_WORDS = {"endings": ("cs",), "words": True, "overlap": "keep"}


@pytest.mark.parametrize(
    ("file", "content", "choices", "message"),
    [
        ("train.en", None, {}, "train.en missing; the folder has dev.cs"),
        ("test.cs", lines(49, "slovo") + "\n", {}, "test.cs:50: empty; change or remove the line"),
        ("test.en", "a " * 1001 + "\n" * 50, {}, "test.en:1: longer than 1000 words; change or re"),
        ("test.cs", lines(50, "slovo", 10), {}, "50 lines of test and 0 of valid are in the trai"),
        ("test.en", "これは長い日本語の文です\n" * 50, {}, "--bleu-tokens char"),
        ("train.en", lines(1200, "slovo"), {}, "1,200 of 1,200 pairs have equal sides"),
        ("valid.en", "x", {}, "has valid and dev; keep one of them"),
        ("train.cs", " \n" * 1200, {}, "train.en: 0 lines to train on; left out: 1,200 empty; the"),
        ("train.cs", NO_BLANKS, OF_WORDS, "add --units pieces"),
    ],
)
def test_bad_text_is_refused_in_one_line_with_the_remedy(tmp_path, file, content, choices, message):
    data = write_parts(tmp_path / "mine")
    (data / file).unlink(missing_ok=True)
    if content is not None:
        (data / file).write_text(content)
    with pytest.raises(UserError) as error:
        take(data, **choices)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("limit", [None, 1100])
@pytest.mark.parametrize("shorter", [0, 1])  # a short source was taken for whole
def test_files_of_unequal_length_are_refused(tmp_path, shorter, limit):
    for number, language in enumerate(PAIR):
        count = 1300 if number != shorter else 1299
        (tmp_path / f"all.{language}").write_text(lines(count, language))
    with pytest.raises(UserError, match=r"all\.en: 1,(299|300) lines, but .*all\.cs has 1,"):
        take(tmp_path / "all", limit=limit)


def test_a_handful_of_held_out_lines_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"dev\.en: too few lines for valid \(9\): a score"):
        take(write_parts(tmp_path / "mine", others=9))
    data = write_parts(tmp_path / "mine", others=10)
    assert "test: 10 lines" in take(data)[1]
    (data / "test.txt").write_text("a b " * 500 + "\n")  # a stream may be one long line
    (data / "train.txt").write_text(lines(1000, "word"))
    (data / "dev.txt").write_text(lines(20, "word", 5000))
    take(data, endings=("txt",), stream=True)


def test_known_lines_are_dropped_from_training_or_kept_and_a_huge_text_is_refused(
    tmp_path, monkeypatch
):
    data = write_parts(tmp_path / "mine")
    (data / "test.cs").write_text(lines(50, "slovo", 10))
    for overlap, kept in (("drop", 1150), ("keep", 1200)):
        own, said = take(data, overlap=overlap)
        assert own.counts.lines == kept
        assert ("50 in valid or test, too" in said) == (overlap == "drop")
        assert ("0 lines of valid, 50 lines of test" in said) == (overlap == "keep")
    monkeypatch.setattr(own_text, "MOST_LINES", 1000)
    with pytest.raises(UserError, match="1,200 lines, and this recipe reads 1,000 at most"):
        take(data)
    own, said = take(data, limit=1000, overlap="keep")
    assert own.counts.lines == 1000
    assert "train: 1,000 lines, 5,000 words; left out: 200 after --limit" in said


def counted(number: int, words: int = 12) -> TextCounts:
    counts = TextCounts(lines=number, characters=number * words * 6, words=number * words)
    counts.different = {str(n) for n in range(number)}
    counts.letters = set("abc")
    return counts


def test_the_size_follows_lines_and_pieces():
    (table,) = [path for path in TABLES if path.name == "sizes.yaml"]
    chosen = {n: choose_size(table, counted(n), "auto")[0] for n in (1000, 7999, 8001, 99_999)}
    assert chosen == {1000: "tiny", 7999: "tiny", 8001: "small", 99_999: "small"}
    assert choose_size(table, counted(7999, words=100), "auto")[0] == "small"
    _, why, options = choose_size(table, counted(3000), "auto")
    assert "3,000 lines with about 57,000 pieces; below 8,000 lines" in why
    assert options["data.vocab_size"] == 2000 and options["max_update"] == 800
    assert choose_size(table, counted(1500), "auto")[2]["data.vocab_size"] == 1000
    assert choose_size(table, counted(7999), "auto")[2]["max_update"] == 1600
    with pytest.raises(UserError, match="did you mean 'tiny'"):
        choose_size(table, counted(3000), "tinny")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("below: {lines: 8_000, ", "below: {", "sizes.yaml:5: tiny.below.lines: Field required"),
        ("epochs: 10", "", "sizes.yaml:4: tiny: epochs is missing"),
        ("max_tokens: 1000", "max_tokenz: 1000", "tiny: set.max_tokens: expected a whole number"),
        ("max_update: 800", "max_update: x", "set.max_update: expected a whole number above 0, "),
    ],
)
def test_a_mistake_in_a_table_of_sizes_is_named_with_its_line(tmp_path, old, new, message):
    (table,) = [path for path in TABLES if path.name == "sizes.yaml"]
    (changed := tmp_path / "sizes.yaml").write_text(table.read_text().replace(old, new, 1))
    with pytest.raises(ConfigurationError) as error:
        choose_size(changed, counted(3000), "auto")
    assert message in str(error.value)
    with pytest.raises(UserError, match=r"sizes.yaml: tiny: words is missing"):
        choose_size(table, counted(3000), "auto", "words")
    changed.write_text("{}\n")
    with pytest.raises(UserError, match=r"sizes.yaml: has no sizes"):
        choose_size(changed, counted(3000), "auto")


def test_a_short_stream_of_words_warms_up_in_a_quarter_of_its_updates():
    (table,) = [path for path in TABLES if "awd_lstm" in path.name]
    _, why, options = choose_size(table, counted(1000, words=6), "auto", "words")
    assert "1,000 lines with 7,000 words" in why and "data.vocab_size" not in options
    assert options["warmup_updates"] == 20 * 7000 // 350 // 4
    for size in [one for path in TABLES for one in yaml.safe_load(path.read_text()).values()]:
        options = size["set"]
        assert 4 * options["warmup_updates"] <= options.get("max_update", 10**9)
    counts = TextCounts()  # of a script without blanks, letters count
    for _ in range(1000):
        counts.add(("这是一个没有空格的很长很长很长的句子啊啊", "a sentence"))
    assert not counts.has_blanks and counts.pieces == 1000 + int(20 * 1000 / 1.5)
