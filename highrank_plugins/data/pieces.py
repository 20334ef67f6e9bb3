"""Learn pieces of words from training text, and write text with them.

They are SentencePiece's, or those of published translation models: Moses' tokens, then subword-nmt.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from io import BytesIO
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, Literal

from highrank_plugins.common import text_lines
from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.processes import batches, ordered_map
from highrank_plugins.common.text_lines import byte_lines, decoded, fold
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.binarising import BATCH, PARTS

# how often a piece is in the training text on average, below which most are hardly learnt
LEAST_TIMES = 20
Encoder = Callable[[list[str]], list[str]]


class PieceSettings(BlockOptions):
    """Say how parallel text becomes pieces."""

    vocab_size: int = option(..., "Number of pieces, shared by all languages.", ge=1)
    character_coverage: float = option(
        1.0, "Share of characters that SentencePiece covers; rarer ones become unknown.",
        ge=0.98, le=1,
    )  # fmt: skip
    algorithm: Literal["sentencepiece", "subword_nmt"] = option(
        "sentencepiece",
        "Algorithm. subword_nmt tokenises like Moses, and learns --vocab-size merges.",
    )
    sample: int | None = option(None, "Learn from N lines of each training text.", ge=1)


def split_texts(
    text: Path, output: Path, languages: list[str], settings: PieceSettings, processes: int
) -> Iterator[str]:
    """Write {train,valid,test}.LANGUAGE as pieces of the training text, and yield what was done."""
    ours, trained = settings.algorithm == "sentencepiece", Counter[str]()
    if not ours and settings.character_coverage < 1:
        raise UserError(
            "data.character_coverage (--character-coverage): subword_nmt covers all characters; "
            "leave it out"
        )
    training = {name: text / f"train.{name}" for name in languages}
    lines = {}
    for part in PARTS:
        files = [text / f"{part}.{name}" for name in training]
        lines[part] = text_lines.check_texts(files, text_lines.PARALLEL)
    yield from _overlap(text, languages[0], lines)
    yield f"learning from {lines['train']:,} lines of training text"
    if ours:
        model = learn_pieces([*training.values()], output / "pieces", settings)
        encoders = dict.fromkeys(training, encoder(model))
    else:
        codes = learn_codes(training, output / "codes", settings, processes)
        encoders = {name: code_encoder(codes, name) for name in training}
    for name, encode in encoders.items():
        known = Counter[str]()
        for file in (f"{part}.{name}" for part in PARTS):
            counts = write_pieces(encode, text / file, output / file, processes)
            known = known or counts
            new = sum(n for piece, n in counts.items() if piece not in known)
            yield (
                f"{file}: {counts.total():,} pieces of {len(counts):,} types"
                + (f", {new / counts.total():.2%} new" if counts is not known else "")
            )
        trained += known
    times = trained.total() / len(trained)
    fewer = 100 * max(trained.total() // (200 * LEAST_TIMES), 1)
    if times < LEAST_TIMES and fewer < settings.vocab_size:
        yield (
            f"a piece is in the training text {times:.0f} times on average: fewer pieces learn "
            f"more; try --vocab-size {fewer}"
        )


def _overlap(text: Path, language: str, lines: dict[str, int]) -> Iterator[str]:
    """Yield how many lines of validation and test are in the training text, too."""
    parts = {part: text / f"{part}.{language}" for part in PARTS}
    held = {line for part in PARTS[1:] for line in folded_lines(parts[part])}
    known = held.intersection(folded_lines(parts["train"])) - {""}
    for part in PARTS[1:]:
        if count := sum(line in known for line in folded_lines(parts[part])):
            yield f"{part}: {count:,} of {lines[part]:,} lines are in the training text, too"


def learn_pieces(texts: list[Path], prefix: Path, settings: PieceSettings) -> Path:
    """Learn one set of BPE pieces for all texts and return its model, `prefix.model`.

    The same text gives the same bytes, whatever its path. Characters stay as they are (no Unicode
    normalisation), so that translations can be compared with untouched references.
    """
    import sentencepiece

    model, sample = prefix.with_suffix(".model"), settings.sample
    written = BytesIO()  # in memory, because SentencePiece stores the path of a file in it
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in sampled_lines(text, sample)),
            model_writer=written,
            vocab_size=settings.vocab_size,
            model_type="bpe",
            character_coverage=settings.character_coverage,
            normalization_rule_name="identity",
            max_sentence_length=1 << 20,  # longer lines are skipped; the default is 4,192 bytes
            minloglevel=1,
        )
    except RuntimeError as error:
        most = re.search(r"to a value <= (\d+)", str(error))
        why = f"the text has {most[1]} pieces at most" if most else error
        raise ValueError(
            f"data.vocab_size (--vocab-size) {settings.vocab_size} does not fit the text: {why}"
        ) from None
    model.write_bytes(written.getvalue())
    return model


def encoder(model: Path) -> Encoder:
    """Return a function that encodes lines by a SentencePiece model; it can be pickled."""
    return partial(_encode, str(model))


@cache
def _processor(model: str) -> Any:
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=model)


def _encode(model: str, lines: list[str]) -> list[str]:
    # one call for all, because each call into C++ is slow
    return [" ".join(pieces) for pieces in _processor(model).encode(lines, out_type=str)]


def write_pieces(encode: Encoder, text: Path, output: Path, processes: int = 1) -> Counter[str]:
    """Write each line of `text` as its pieces with spaces between them, and count the pieces."""
    from tqdm import tqdm

    counts, total = Counter[str](), -(-sum(1 for _ in byte_lines(text)) // BATCH)
    with output.open("w", encoding="utf-8", newline="\n") as file:
        done = ordered_map(encode, batches(folded_lines(text), BATCH), processes)
        for lines in tqdm(done, output.name, total, unit="batch", **bar_options()):
            counts.update(chain.from_iterable(map(str.split, lines)))
            file.writelines(f"{line}\n" for line in lines)
    return counts


def folded_lines(text: Path) -> Iterator[str]:
    """Yield lines with white space folded to one space: fairseq splits pieces at any kind of it."""
    return (fold(decoded(f"{text}:{number}", line)) for number, line in byte_lines(text))


def sampled_lines(text: Path, sample: int | None) -> Iterable[str]:
    """Return `sample` lines, spread evenly; all if the text has no more, or for None."""
    lines = folded_lines(text)
    if sample is None:
        return lines
    count = sum(1 for _ in byte_lines(text))
    if count <= sample:
        return lines
    chosen = ((n + 1) * sample // count > n * sample // count for n in range(count))
    return compress(lines, chosen)


@cache
def _tools(language: str) -> tuple[Any, Any]:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ModuleNotFoundError:
        raise ValueError(
            "Moses' tokens need sacremoses: pip install sacremoses subword-nmt"
        ) from None
    return MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)


def normalise_and_tokenise(line: str, language: str) -> str:
    """Apply normalize-punctuation.perl, then tokenizer.perl -a, as fairseq's examples do."""
    folded = fold(line)  # normalisation would drop some white space
    return tokenise(_tools(language)[0].normalize(folded), language, aggressive_dash_splits=True)


def tokenise(line: str, language: str, **options: bool) -> str:
    """Tokenise as tokenizer.perl does, whose tokens multi-bleu.perl counts."""
    words: str = _tools(language)[1].tokenize(line, return_str=True, **options)
    return words


def learn_codes(
    texts: dict[str, Path], codes: Path, settings: PieceSettings, processes: int = 1
) -> Path:
    """Learn merges for all texts (by language), and write them as subword-nmt does."""
    from subword_nmt.learn_bpe import learn_bpe

    samples = {name: sampled_lines(text, settings.sample) for name, text in texts.items()}
    tokens = (
        line
        for language, lines in samples.items()
        for part in ordered_map(partial(_tokenise, language), batches(lines, BATCH), processes)
        for line in part
    )
    with codes.open("w", encoding="utf-8", newline="\n") as file:
        try:
            learn_bpe(tokens, file, settings.vocab_size)
        except ValueError as error:  # of max(), which names no text
            why = f"{' '.join(map(str, texts.values()))}: no word has two characters to merge"
            raise error if isinstance(error, UserError) else UserError(why) from None
    return codes


def code_encoder(codes: Path, language: str) -> Encoder:
    """Return a function that tokenises and splits lines by codes; it can be pickled."""
    return partial(_split, str(codes), language)


def _tokenise(language: str, lines: list[str]) -> list[str]:
    return [normalise_and_tokenise(line, language) for line in lines]


def _split(codes: str, language: str, lines: list[str]) -> list[str]:
    return [_bpe(codes).process_line(line) for line in _tokenise(language, lines)]


@cache
def _bpe(codes: str) -> Any:
    from subword_nmt.apply_bpe import BPE

    with open(codes, encoding="utf-8") as file:
        return BPE(file)


def piece_options(file: Path, place: str) -> list[tuple[str, str]]:
    """Return fairseq-interactive's options for a file of `data pieces` that will be at `place`."""
    with file.open("rb") as opened:
        start = opened.read(8)
    if start == b"#version":  # the first line of codes
        moses = ("--tokenizer", "moses_normalised")
        return [moses, ("--bpe", "subword_nmt"), ("--bpe-codes", place)]
    if file.suffix == ".model":
        return [("--bpe", "sentencepiece"), ("--sentencepiece-model", place)]
    raise ValueError(
        f"--pieces {file} is neither a model of SentencePiece (NAME.model) nor codes of "
        "subword-nmt (their first line begins with #version)"
    )


def require_pieces_of(file: Path, dictionary: Path, words: Iterable[str]) -> None:
    """Refuse pieces that are not those of a dictionary, apart from a few words or tags in it."""
    if file.suffix == ".model":
        try:
            model = _processor(str(file))
        except (OSError, RuntimeError) as error:
            raise UserError(f"--pieces {file} is no model of SentencePiece ({error})") from None
        made = _longer(map(model.id_to_piece, range(len(model))))
        words = filter(set("".join(made)).issuperset, words)  # others are unknown characters
    else:
        lines = islice(text_lines.read_text(file), 1, None)
        merges = (line.replace(" ", "") for line in lines)
        made = _longer(m.removesuffix("</w>") if m.endswith("</w>") else f"{m}@@" for m in merges)
    longer = _longer(words)
    ours = len(longer & made)
    if 20 * ours < max(19 * len(longer), len(made)):
        raise UserError(
            f"--pieces {file} did not split the text of this model: it makes {ours:,} of "
            f"{len(longer):,} words in {dictionary}; give the file that split the training text"
        )


def _longer(words: Iterable[str]) -> set[str]:
    """Return the words of several characters, as any pieces have single ones."""
    return {word for word in words if len(word.removeprefix("▁").removesuffix("@@")) > 1}
