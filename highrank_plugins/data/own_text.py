"""Take a text of the user's own: find or make its three parts, check them, count what is left out.

The text of a translator has two files for each part, that of a language model one. Training text is
cleaned; given validation and test text stays as it is. Memory is bounded by `MOST_LINES`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from highrank_plugins.analysis.scored_text import Tokens, bleu_tokens
from highrank_plugins.common.files import write_json
from highrank_plugins.common.text_lines import MAX_WORDS, UNKNOWN, TextError, byte_lines
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.binarising import PARTS
from highrank_plugins.data.corpora.word_corpora import WordCounts, read_words, write_words
from highrank_plugins.data.own_files import ALL, OwnLines, TextCounts, find_parts, read_own
from highrank_plugins.data.parallel import KEPT

MOST_LINES = 2_000_000
LEAST_LINES = 1_000  # of the training text
LEAST_HELD_OUT = 10  # lines of validation and of test, or as many times 10 words
HELD_OUT = 500  # lines of validation and of test, if they are between 2 and 10 % of the text
_KNOWN_SHARE = 0.01  # of the held-out lines, that may be in the training text


def check_recipe(options: Mapping[str, str]) -> Iterator[str]:
    """Check the text that the options of a recipe name, as the recipe will; yield what it reads."""
    data = options.get("data") or "embedded"
    if "overlap" not in options or data == "embedded":  # it reads no text of the user's
        return iter(())
    pair = options.get("source", ""), options.get("target", "")
    endings = pair if any(pair) else ("txt",)
    own = OwnText(
        Path(data), endings, options.get("order") == "stream", cast(Any, options["overlap"]),
        int(options["limit"]) if options.get("limit") else None, options.get("units") == "words",
        cast(Any, options.get("bleu_tokens") or None),
    )  # fmt: skip
    return own.take()


def part_of(source: str, percent: int = 2) -> str:
    """Return the part of a line by its hash, with `percent` each for validation and test."""
    return _of_place(int(hashlib.sha256(source.encode()).hexdigest(), 16) % 100, percent)


def _of_place(place: int, percent: int) -> str:
    return PARTS[(place >= 100 - 2 * percent) + (place >= 100 - percent)]


def digest(*lines: str) -> bytes:
    """Return eight bytes that stand for lines in a set."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest()


def tally(lines: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the entry of a run's ledger for lines with their fates, `KEPT` or a reason."""
    none = {"sentences": 0, "words": 0}
    entry: dict[str, Any] = {"in": Counter(none), "out": Counter(none), "left out": {}}
    for line, fate in lines:
        _add(entry, line, fate)
    return entry


def _add(entry: dict[str, Any], line: str, fate: str) -> None:
    out = entry["out"] if fate == KEPT else entry["left out"].setdefault(fate, Counter())
    for counts in (entry["in"], out):
        counts.update(sentences=1, words=len(line.split()))


def _left_out(entry: dict[str, Any]) -> str:
    reasons = (f"{tally['sentences']:,} {why}" for why, tally in entry["left out"].items())
    return f"; left out: {', '.join(reasons)}" if entry["left out"] else ""


def _size(entry: dict[str, Any]) -> int:
    """Return the lines that a part has; a tenth of its words, if these are more."""
    return max(entry["out"]["sentences"], entry["out"]["words"] // 10)


@dataclass
class OwnText:
    """Read a text once, decide of each line, and write it if there is a folder for it."""

    data: Path
    endings: tuple[str, ...]  # of the files: two languages, or one of any text
    stream: bool = False  # lines follow each other: the text is split by place, not by a hash
    overlap: Literal["refuse", "drop", "keep"] = "refuse"
    limit: int | None = None  # lines of the training text, or of the text to split
    words: bool = False  # a model of words needs blanks between them
    tokens: Tokens | None = None  # of sacreBLEU

    def __post_init__(self) -> None:
        self.parts = find_parts(self.data, self.endings)
        if self.overlap == "drop" and self.stream and ALL in self.parts:
            raise UserError(
                f"--overlap drop: {self.data} is a stream to split by place, which keeps all of "
                "its lines; give train, valid and test"
            )
        # endings of the written files, without what divides fairseq's names
        self.names = [ending.replace("-", "_") for ending in self.endings]
        self.counts = TextCounts()
        self.ledger = {part: [tally(()) for _ in self.endings] for part in PARTS}
        self._held_out: dict[bytes, Counter[str]] = {}  # of given parts: lines in each, by hash
        self._known: set[bytes] = set()  # held-out lines that are in the training text
        self._seen: set[bytes] = set()
        self._sample: list[str] = []  # of the test text's last side
        self._equal = 0

    def take(self, output: Path | None = None) -> Iterator[str]:
        """Read, check and count; write parts and counts.json to `output`; yield what was taken."""
        whole = self.parts.get(ALL)
        there = self._length()
        total = min(there, self.limit or there)
        percent = min(10, max(2, -(-100 * HELD_OUT // max(total, 1))))
        with ExitStack() as stack:
            files = {}
            for path in [output / f"{p}.{n}" for p in PARTS for n in self.names] if output else ():
                opened = path.open("w", encoding="utf-8", newline="\n")
                files[path.name] = stack.enter_context(opened)
            for part in ("valid", "test", "train") if not whole else (ALL,):
                last = total if part in ("train", ALL) else None
                for number, pair in enumerate(islice(read_own(self.parts[part]), last)):
                    of = part
                    if whole and self.stream:
                        of = _of_place(100 * number // total, percent)
                    elif whole:
                        of = part_of(pair[0], percent)
                    fate = self._fate(of, pair, number, given=not whole)
                    self._count(of, pair, fate)
                    for name, line in zip(self.names, pair, strict=True):
                        if fate == KEPT and files:
                            files[f"{of}.{name}"].write(f"{line}\n")
        for entry in self.ledger["train"] if total < there else ():
            entry["in"].update(sentences=there - total)
            entry["left out"]["after --limit"] = {"sentences": there - total}
        self._check()
        yield from self._report(percent if whole else None)
        if output:
            write_json(output / "counts.json", {
                f"{part}.{name}": entry for part in PARTS
                for name, entry in zip(self.names, self.ledger[part], strict=True)
            })  # fmt: skip

    def _length(self) -> int:
        """Return the lines of the training text, or of one to split; refuse empty and long ones."""
        for path in [path for files in self.parts.values() for path in files]:
            next(byte_lines(path, may_be_empty=False))
        files = self.parts.get(ALL) or self.parts["train"]
        lengths = [sum(1 for _ in byte_lines(path)) for path in files]
        first, there = files[0], lengths[0]
        if lengths[-1] != there:  # reading the lines of the first would leave out the others
            raise TextError(
                f"{files[-1]}: {lengths[-1]:,} lines, but {first} has {there:,}; line n of both "
                "must be one sentence pair"
            )
        if self.limit is None and there > MOST_LINES:
            raise UserError(
                f"{first}: {there:,} lines, and this recipe reads {MOST_LINES:,} at most: add "
                f"--limit {MOST_LINES} to take the first ones, or clean the text by `highrank data "
                "clean-texts` as the recipes of WMT do"
            )
        return there

    def _fate(self, part: str, pair: OwnLines, number: int, given: bool) -> str:
        """Return `KEPT`, or the reason to leave out a line."""
        key, is_held_out = digest(pair[0]), given and part != "train"
        blanks = [line.count(" ") for line in pair]
        is_long = max(blanks) >= MAX_WORDS
        if why := "empty" if "" in pair else f"longer than {MAX_WORDS} words" if is_long else "":
            if not is_held_out:
                return why
            path = self.parts[part][pair.index("") if "" in pair else blanks.index(max(blanks))]
            partner = " and its partner" * (len(pair) > 1)
            raise TextError(f"{path}:{number + 1}: {why}; change or remove the line{partner}")
        if is_held_out:
            self._held_out.setdefault(key, Counter())[part] += 1
            return KEPT
        if self.stream and not given:  # training text comes first
            if part == "train":
                self._seen.add(key)
            elif key in self._seen:
                self._known.add(key)
                self._held_out.setdefault(key, Counter())[part] += 1
            return KEPT
        if key in self._held_out and self.overlap == "drop":
            return "in valid or test, too"
        if len(pair) == 2:
            both = digest(*pair)
            if both in self._seen:
                return "repeated"
            self._seen.add(both)
            self._equal += part == "train" and pair[0] == pair[1]
        if key in self._held_out:
            self._known.add(key)
        return KEPT

    def _count(self, part: str, pair: OwnLines, fate: str) -> None:
        for entry, line in zip(self.ledger[part], pair, strict=True):
            _add(entry, line, fate)
        if part == "train" and fate == KEPT:
            self.counts.add(pair)
        if part == "test" and fate == KEPT and len(self._sample) < HELD_OUT:
            self._sample.append(pair[-1])

    def _check(self) -> None:
        """Refuse a text from which nothing can be learnt, or whose score would mean nothing."""
        whole, lines = self.parts.get(ALL), self.counts.lines
        train = (whole or self.parts["train"])[-1]
        if lines < LEAST_LINES:
            raise UserError(
                f"{train}: {lines:,} line{'s' * (lines != 1)} to train on"
                f"{_left_out(self.ledger['train'][0])}; the smallest model needs {LEAST_LINES:,}: "
                "give more text"
            )
        for part in ("valid", "test"):
            if _size(counts := self.ledger[part][0]) < LEAST_HELD_OUT:
                raise UserError(
                    f"{(whole or self.parts[part])[-1]}: too few lines for {part} "
                    f"({counts['out']['sentences']}): a score needs {LEAST_HELD_OUT}, better "
                    f"{HELD_OUT}; give more text"
                )
        if 2 * self._equal > lines:
            raise UserError(
                f"{train}: {self._equal:,} of {lines:,} pairs have equal sides: the files hold one "
                "language; give the file of the other"
            )
        known = self._known_lines()
        held_out = sum(self.ledger[part][0]["out"]["sentences"] for part in ("valid", "test"))
        is_much = known.total() > _KNOWN_SHARE * held_out
        if self.overlap == "refuse" and not whole and is_much:
            raise UserError(
                f"{train}: {known['test']:,} lines of test and {known['valid']:,} of valid are "
                "in the training text, too, so the score would be of known text: --overlap drop "
                "takes them out of training, --overlap keep leaves them there"
            )
        if len(self.endings) == 2:
            bleu_tokens(self._sample, self.tokens)
        elif self.words and not self.counts.has_blanks:
            raise UserError("blanks do not separate words in this text: add --units pieces")

    def _known_lines(self) -> Counter[str]:
        return sum((self._held_out[key] for key in self._known), Counter[str]())

    def _report(self, percent: int | None) -> Iterator[str]:
        if percent:
            how = "place" if self.stream else "a hash of each line"
            yield f"one text, split by {how}: {percent} % each for valid and test"
        for part in PARTS:
            counts = self.ledger[part][0]
            out, left = counts["out"], _left_out(counts) or "; nothing is left out"
            yield f"{part}: {out['sentences']:,} lines, {out['words']:,} words{left}"
        if known := self._known_lines():
            said = ", ".join(f"{known[part]:,} lines of {part}" for part in ("valid", "test"))
            yield f"in the training text, too: {said}"

    def replace_rare(self, output: Path, least_count: int, most: int) -> Iterator[str]:
        """Keep words that training has `least_count` times, `most` at most; others are <unk>."""
        paths = {part: output / f"{part}.{self.names[0]}" for part in PARTS}
        train = WordCounts().add(read_words(paths["train"]))
        frequent = sum(count >= least_count for count in train.words.values())
        size = min(frequent, most, len(train.words) - 1)
        kept = set(train.most_frequent(size))
        for part, path in paths.items():
            new = path.with_suffix(".new")
            counts = write_words(new, read_words(path), kept)
            if 2 * (unknown := counts.words[UNKNOWN]) > (total := counts.words.total()):
                raise UserError(
                    f"{part}: {unknown:,} of {total:,} words are rare and would become {UNKNOWN}: "
                    "add --units pieces"
                )
            new.replace(path)
            yield counts.report(part)
