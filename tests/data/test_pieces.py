"""Pieces lose nothing but extra white space; binarised, they are fairseq-preprocess's bytes."""

import re
import shutil
import subprocess

import pytest
import sentencepiece

import highrank_plugins
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import binarising, pieces
from highrank_plugins.data.pieces import (
    PieceSettings,
    encoder,
    learn_pieces,
    require_pieces_of,
    sampled_lines,
    tokenise,
    write_pieces,
)
from tests.cli import highrank
from tests.fairseq_cli import run
from tests.tiny_corpus import TEXT as TINY

highrank_plugins.register()  # the hooks look at dictionaries
TEXT = "Größe: 5 cm² – „ganz“ genau…\nDie Größe   ist\u00a0genau 5 cm².\nx\u2028y fi Å\n"


def learn(texts, prefix, size, **more):
    return learn_pieces(texts, prefix, PieceSettings(vocab_size=size, **more))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "train.de"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_pieces_decode_to_the_line_with_folded_space(text, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    models = [learn([text], tmp_path / at, 60) for at in ("a", "elsewhere/b")]
    model = models[0]
    assert model.read_bytes() == models[1].read_bytes()
    write_pieces(encoder(model), text, tmp_path / "out.de")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    lines = (tmp_path / "out.de").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    decoded = [processor.decode(line.split(" ")) for line in lines]
    assert decoded == [
        "Größe: 5 cm² – „ganz“ genau…",
        "Die Größe ist genau 5 cm².",
        "x y fi Å",  # neither the ligature nor the Ångström sign is normalised
    ]


def test_commands_say_what_they_read_and_wrote(tmp_path):
    words = [f"{a}{b}" for a in "abcdefgh" for b in "mnopqrst"]
    lines = [" ".join(words[n % 60 : n % 60 + 4]) for n in range(0, 240, 3)]
    known, new = lines[0], "am an zz"
    for part, text in {"train": lines, "valid": [known, new], "test": [known, known]}.items():
        (tmp_path / f"{part}.en").write_text("".join(f"{line}\n" for line in text))
        (tmp_path / f"{part}.de").write_text("".join(f"{line.upper()}\n" for line in text))

    def called(*words, code=0):
        done = highrank("data", *words)
        assert done.exit_code == code, done.output
        return done.output

    options = ["--languages", "en,de", "--processes", 1, "--vocab-size"]
    said = called("pieces", tmp_path, tmp_path / "out", *options, 250)
    assert "valid: 1 of 2 lines are in the training text, too" in said
    assert "fewer pieces learn more; try --vocab-size 100" in said
    assert "fewer" not in called("pieces", tmp_path, tmp_path / "less", *options, 40)
    refused = called("pieces", tmp_path, tmp_path / "o", *options, 900, code=2)
    assert "(--vocab-size) 900 does not fit the text: the text has 296 pieces" in refused
    moses = ["--algorithm", "subword_nmt", "--character-coverage", 0.99]
    refused = called("pieces", tmp_path, tmp_path / "o", *options, 40, *moses, code=2)
    assert "(--character-coverage): subword_nmt covers all characters; leave it out" in refused
    (tmp_path / "train.de").unlink()
    refused = called("pieces", tmp_path, tmp_path / "o", *options, 9, code=2)
    assert "train.de: no such file; the folder has train.en" in refused


def knows(piece, model):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return processor.piece_to_id(piece) != processor.unk_id()


def test_a_sample_is_spread_over_the_text_and_long_lines_are_read(tmp_path):
    path = tmp_path / "text"
    for count, sample, expected in (
        (10, 3, [3, 6, 9]), (10, 5, [1, 3, 5, 7, 9]), (3, 3, [0, 1, 2]), (2, 9, [0, 1]),
        (4, None, [0, 1, 2, 3]),
    ):  # fmt: skip
        path.write_text("".join(f"{n}\n" for n in range(count)))
        assert list(sampled_lines(path, sample)) == [str(n) for n in expected]
    path.write_text("aa\nbb\n" * 50)
    model = learn([path], tmp_path / "pieces", 6, sample=50)
    assert knows("b", model) and not knows("a", model)
    path.write_text("ab " * 3000 + "Ω\n", encoding="utf-8")
    assert knows("Ω", learn([path], tmp_path / "pieces", 10))


def test_subword_nmt_pieces_join_to_moses_tokens(text, tmp_path):
    codes = pieces.learn_codes({"de": text}, tmp_path / "codes", PieceSettings(vocab_size=20))
    assert codes.read_text().startswith("#version")
    (line,) = pieces.code_encoder(codes, "de")(["Die Größe ist 5-fach."])
    assert "@@ " in line
    assert line.replace("@@ ", "") == "Die Größe ist 5 @-@ fach ."
    assert tokenise("5-fach.", "de") == "5-fach ."
    text.write_text("a b c\n")
    with pytest.raises(UserError, match=r"train\.de: no word has two characters"):
        pieces.learn_codes({"de": text}, codes, PieceSettings(vocab_size=5))


@pytest.mark.parametrize("algorithm", ["sentencepiece", "subword_nmt"])
def test_only_the_pieces_of_a_dictionary_are_taken(tmp_path, algorithm):
    dictionaries, files = {}, {}
    for name, text in {"a": "the orange hat of Ann\n", "b": "reading another heater\n"}.items():
        (tmp_path / name).write_text(text * 3)
        unknown = set()
        if algorithm == "sentencepiece":
            files[name] = learn([tmp_path / name], tmp_path / f"of_{name}", 27)
            encode, unknown = encoder(files[name]), {"日本"}
        else:
            codes, texts = tmp_path / f"codes.{name}", {"en": tmp_path / name}
            files[name] = pieces.learn_codes(texts, codes, PieceSettings(vocab_size=40))
            encode = pieces.code_encoder(codes, "en")
        dictionaries[name] = unknown | {*encode([text.strip()])[0].split()}
    for name, other in ("ab", "ba"):
        require_pieces_of(files[name], tmp_path / "dict.txt", dictionaries[name])
        with pytest.raises(UserError, match="did not split the text of this model"):
            require_pieces_of(files[other], tmp_path / "dict.txt", dictionaries[name])


# -- binarised --


def content(folder):
    return {
        p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".bin", ".idx", ".txt")
    }


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Write the tiny text, with words that fairseq knows otherwise, and words of the test alone."""
    folder = tmp_path_factory.mktemp("pieces")
    for path in TINY.iterdir():
        shutil.copy(path, folder)
    for language, line in (("de", "<unk> seltsam\n"), ("en", "a  b ")):  # without a line feed
        with (folder / f"train.{language}").open("a") as file:
            file.write(line)
    return folder


@pytest.mark.timeout(120)
def test_the_files_equal_those_of_fairseq_byte_for_byte(split, tmp_path, monkeypatch):
    prefixes = [w for p in binarising.PARTS for w in (f"--{p}pref", split / p)]
    languages = ("--source-lang", "en", "--target-lang", "de", "--joined-dictionary")
    run("preprocess", *prefixes, *languages, "--destdir", tmp_path / "stock")
    stock = content(tmp_path / "stock")
    for processes, lines in ((1, 5000), (2, 99), (1, 1)):
        monkeypatch.setattr(binarising, "BATCH", lines)
        with new_folder(ours := tmp_path / f"{lines}") as new:
            list(binarising.binarise(split, new, ("en", "de"), processes))
        assert content(ours) == stock
        check = ["sha256sum", "--check", "sha256sums"]
        checked = subprocess.run(check, cwd=ours, check=True, capture_output=True)
        assert len(checked.stdout.splitlines()) == len(stock) == 14


def test_one_language_is_data_for_a_language_model(split, tmp_path):
    ours, stock = tmp_path / "ours", tmp_path / "stock"
    with new_folder(ours) as new:
        said = list(binarising.binarise(split, new, ("de",), 1))
    prefixes = [w for p in binarising.PARTS for w in (f"--{p}pref", split / f"{p}.de")]
    run("preprocess", *prefixes, "--only-source", "--padding-factor", 1, "--destdir", stock)
    assert content(ours) == content(stock) and (ours / "train.bin").exists()
    assert [line.partition(" lines")[0] for line in said[1:]] == [
        f"{part}.de: {len((split / f'{part}.de').read_text().splitlines()):,}"
        for part in binarising.PARTS
    ]
    assert said[1].endswith(" 0.04% unknown")  # its <unk>
    assert re.fullmatch(r"dictionary: [\d,]+ types of [\d,]+ tokens, by falling count", said[0])
