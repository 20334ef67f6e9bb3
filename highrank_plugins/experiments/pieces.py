"""SentencePiece: learn pieces from training text, and write text as pieces."""

from collections.abc import Iterator
from pathlib import Path


def learn_pieces(
    texts: list[Path], prefix: Path, *, vocab_size: int, character_coverage: float = 1.0
) -> Path:
    """Learn one set of BPE pieces for all texts and return its model, `prefix.model`.

    Characters stay as they are (no Unicode normalisation), so that translations can be compared
    with untouched references; only white space is folded.

    Raises:
        ValueError: the text does not allow that many pieces.
    """
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in folded_lines(text)),
            model_prefix=str(prefix),
            vocab_size=vocab_size,
            model_type="bpe",
            character_coverage=character_coverage,
            normalization_rule_name="identity",
            max_sentence_length=1 << 20,  # longer lines are skipped; the default is 4,192 bytes
            minloglevel=1,
        )
    except RuntimeError as error:
        raise ValueError(f"data.vocab_size {vocab_size} does not fit the text: {error}") from None
    return prefix.with_name(f"{prefix.name}.model")


def encode(model: Path, text: Path, output: Path) -> None:
    """Write each line of `text` as its pieces with spaces between them."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    with output.open("w", encoding="utf-8", newline="\n") as file:
        for line in folded_lines(text):
            file.write(" ".join(processor.encode(line, out_type=str)) + "\n")


def folded_lines(text: Path) -> Iterator[str]:
    """Lines with runs of white space as one space: fairseq splits pieces at any kind of it."""
    with text.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield " ".join(line.split())
