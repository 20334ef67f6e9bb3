"""How fairseq-interactive cuts text into pieces by a file of `highrank pieces`."""

from pathlib import Path


def piece_options(file: Path, place: str) -> list[tuple[str, str]]:
    """Options of fairseq and their values.

    Args:
        place: where the file will be, for the options.
    Raises:
        ValueError: neither a model of SentencePiece nor codes of subword-nmt.
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        start = opened.read(8)
    if start == b"#version":  # the first line of codes
        return [("--tokenizer", "moses"), ("--bpe", "subword_nmt"), ("--bpe-codes", place)]
    if file.suffix == ".model":
        return [("--bpe", "sentencepiece"), ("--sentencepiece-model", place)]
    raise ValueError(
        f"--pieces {file}: neither a model of SentencePiece (NAME.model) nor codes of subword-nmt "
        "(their first line begins with #version)"
    )
