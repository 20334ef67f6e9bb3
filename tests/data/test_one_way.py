"""Text reaches a translator in use by the way of its training text, for every algorithm."""

import re
import shlex
import sys

import pytest

from highrank_plugins.common.text_lines import TextError, fold
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.pieces import code_encoder as encoder_of_codes
from highrank_plugins.data.pieces import encoder
from highrank_plugins.models.transformer import TransformerHeadModel
from tests.cli import highrank as command
from tests.fairseq_cli import attempt, run
from tests.trainings import last, train

BLANKS = [chr(c) for c in range(sys.maxunicode) if chr(c).isspace() and chr(c) != "\n"]
MARKS = "\"'`´‘’‚“”„«»‹›–—―‐‑−-…·•&<>|[]{}()%/\\@#*_~^=+;:!?¿¡,.°§$€£½²"
ODD = [
    "", " ", "a", "-", "a - b", "rich-text", "state-of-the-art", "a-", "-a", "--",
    "a--b", "a @-@ b", "x@@ y", "a@@", "▁", "▁a ▁b", "a▁b", "&quot; a", "&amp;",
    "&#124;", "<b>x</b>", "<unk>", "< s >", "http://a.b/c?d=e&f", "a@b.c",
    "z.B. so", "Mr. Smith", "Dr. Abc.", "3.14", "1,000", "1 000", "5%", "don't",
    "l'eau", "it's", "O'Neil's", "e\u0301", "é", "ﬁ", "Ⅳ", "ｆｕｌｌ", "İi", "ßẞ", "Ǆ",
    "日本語", "ไทย", "한국어", "עברית", "العربية", "👍🏽", "🏳️‍🌈", "\u200b", "a\u200bb",
    "a\u00adb", "a\ufeff b", "a\u2060b", "\u202eab", "a\x01b", "a\x7fb", "...",
    "!!!", "a . b", "( a )", "„so“", "a" * 300,
]  # fmt: skip
LINES = [f"orange{c}hat" for c in BLANKS] + [f"a {c} b{c}" for c in MARKS] + ODD
assert len(BLANKS) == 28 and len(ODD) >= 60


@pytest.fixture(scope="module", params=["sentencepiece", "subword_nmt"])
def model(request, tmp_path_factory):
    """Return a folder with text, pieces, numbers, an exported model and its checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "text").mkdir()
    text = "".join(f"{line}\n".replace("\r", "") for line in LINES)
    for name in (f"{part}.{side}" for part in ("train", "valid", "test") for side in ("de", "en")):
        (folder / "text" / name).write_bytes(text.encode())
    size = 400 if request.param == "sentencepiece" else 20
    way = ["--vocab-size", size, "--algorithm", request.param, "--processes", 1]
    sides = ["--languages", "de,en"]
    highrank("data", "pieces", folder / "text", folder / "pieces", *sides, *way)
    highrank("data", "binarise", folder / "pieces", folder / "bin", *sides, "--processes", 1)
    sides = ["--source-lang", "de", "--target-lang", "en"]
    small = ["--encoder-embed-dim", 8, "--decoder-embed-dim", 8, "--max-tokens", 4000]
    train(folder / "bin", folder, "transformer_softmax", 1, *sides, *small)
    (pieces,) = (p for p in (folder / "pieces").iterdir() if p.name in ("codes", "pieces.model"))
    published = folder / "published"
    highrank("model", "export", last(folder), "--output", published, "--pieces", pieces)
    highrank("model", "import", published, "--output", folder / "published.pt")
    encode = encoder(pieces) if pieces.suffix else encoder_of_codes(pieces, "de")
    return folder, encode


def highrank(*words):
    done = command(*words)
    assert done.exit_code == 0, done.output


def options_of(folder):
    (command,) = re.findall(r"^fairseq-interactive .*", (folder / "README.md").read_text(), re.M)
    return shlex.split(command.partition(" --user-dir ")[0])[1:]


def test_interactive_and_the_hub_split_text_as_preparation_does(model, tmp_path, monkeypatch):
    folder, encode = model
    monkeypatch.chdir(folder)
    expected = [line.split() for line in encode(list(map(fold, LINES)))]
    (tmp_path / "lines").write_bytes("".join(f"{line}\n" for line in LINES).encode())
    words = [*options_of(folder / "published"), "--path", "published.pt"]
    buffer = ["--buffer-size", 100, "--batch-size", 100, "--max-len-b", 2]
    done = run("interactive", *words, "--input", tmp_path / "lines", *buffer, folder=folder)
    typed = dict(re.findall(r"^S-(\d+)\t(.*)$", done.output, re.M))
    shown = [typed[str(n)].split(" ") if typed[str(n)] else [] for n in range(len(LINES))]
    hypotheses = dict(re.findall(r"^D-(\d+)\t[^\t]*\t(.*)$", done.output, re.M))

    given = iter(words[1:])
    extra = {k.lstrip("-").replace("-", "_"): v for k, v in zip(given, given, strict=True)}
    hub = TransformerHeadModel.from_pretrained(
        ".", "published.pt", "published", **{k: v for k, v in extra.items() if k != "path"}
    )
    known = set(hub.src_dict.symbols)
    expected = [[word if word in known else "<unk>" for word in line] for line in expected]
    assert shown == expected
    assert [hub.src_dict.string(hub.encode(line)).split() for line in LINES] == expected
    empty = [n for n, line in enumerate(LINES) if not line.split()]
    assert [hypotheses[str(n)] for n in empty] == [""] * len(empty)
    assert hub.translate([LINES[n] for n in empty]) == [""] * len(empty)
    with pytest.raises(TextError, match="the word <pad>, which fairseq reserves"):
        hub.binarize("a <pad> b")
    for bad, reason in {"\ufeffa b": "byte order mark", "a\0b": "NUL", "\udcff": "UTF-8"}.items():
        with pytest.raises(TextError, match=reason):
            hub.translate([bad])


def test_words_that_are_not_split_are_refused_and_unknown_pieces_said(model, tmp_path, monkeypatch):
    folder, _ = model
    monkeypatch.chdir(folder)
    words = [*options_of(folder / "published"), "--path", "published.pt", "--max-len-b", 5]
    input = ["--input", tmp_path / "lines"]
    (tmp_path / "lines").write_text("Ж Щ Ю Я Ъ Ы\n")
    done = attempt("interactive", *words, *input, folder=folder)
    assert done.code == 0 and "are unknown to the model" in done.output
    (tmp_path / "lines").write_text("\ta\na\ta\n")  # an empty sentence with constraints
    done = run("interactive", *words, *input, "--constraints", "--beam", 2, folder=folder)
    assert re.findall(r"^D-0\t[^\t]*\t(.*)$", done.output, re.M) == [""]
    assert re.findall(r"^C-1\t(.*)$", done.output, re.M)
    (tmp_path / "lines").write_text("zanzibar quetzal\n")
    words[words.index("--bpe") : words.index("--bpe") + 4] = []
    done = attempt("interactive", *words, *input, folder=folder)
    said = "knows pieces of words, not 'zanzibar'"
    assert done.code == 2 and said in done.output and "Traceback" not in done.output
    languages = {"source_lang": "de", "target_lang": "en"}
    hub = TransformerHeadModel.from_pretrained(".", "published.pt", "published", **languages)
    with pytest.raises(UserError, match=f"the model {said}"):
        hub.encode("zanzibar quetzal")


def test_generation_reads_the_same_pieces(model):
    folder, encode = model
    words = ["--path", last(folder), "--max-len-b", 2, "--beam", 1]
    done = run("generate", folder / "bin", *words)
    found = dict(re.findall(r"^S-(\d+)\t?(.*)$", done.output, re.M))
    lines = [fold(line.replace("\r", "")) for line in LINES]
    expected = [" ".join(line.split()) for line in encode(lines)]
    assert [found[str(n)] for n in range(len(lines))] == expected
    hypotheses = dict(re.findall(r"^H-(\d+)\t[^\t]*\t?(.*)$", done.output, re.M))
    assert all(not hypotheses[str(n)] for n, line in enumerate(lines) if not line)
