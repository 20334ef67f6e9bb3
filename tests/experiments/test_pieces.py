"""SentencePiece as recipes use it: nothing is lost but extra white space."""

import pytest
import sentencepiece

from highrank_plugins.experiments.pieces import encode, learn_pieces

TEXT = "Größe: 5 cm² – „ganz“ genau…\nDie Größe   ist\u00a0genau 5 cm².\nx\u2028y fi Å\n"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "train.de"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_pieces_decode_to_the_line_with_folded_space(text, tmp_path):
    model = learn_pieces([text], tmp_path / "pieces", vocab_size=60)
    encode(model, text, tmp_path / "out.de")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    lines = (tmp_path / "out.de").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    decoded = [processor.decode(line.split(" ")) for line in lines]
    assert decoded == [
        "Größe: 5 cm² – „ganz“ genau…",
        "Die Größe ist genau 5 cm².",
        "x y fi Å",  # neither the ligature nor the Ångström sign is normalised
    ]


def test_long_lines_are_learnt_from_too(text, tmp_path):
    text.write_text("ab " * 3000 + "Ω\n", encoding="utf-8")
    model = learn_pieces([text], tmp_path / "pieces", vocab_size=10)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert processor.piece_to_id("Ω") != processor.unk_id()


def test_too_few_pieces_for_the_characters_is_an_error(text, tmp_path):
    with pytest.raises(ValueError, match=r"data\.vocab_size 5 does not fit the text"):
        learn_pieces([text], tmp_path / "pieces", vocab_size=5)
