"""Define the options for preparing a corpus."""

from dataclasses import dataclass

from highrank_plugins.common.names import flag


class CorpusError(ValueError):
    """Report a corpus that is missing, has another version, or does not support the options."""


@dataclass(frozen=True)
class CorpusOptions:
    """Hold the options of `highrank data lm-corpus`.

    Attributes:
        vocab_size: keep this many of the most frequent words; others become <unk>. None: all
            (one_billion_word: 100,000).
        max_train_lines: read only the first N lines of the training text.
        other_text: accept a text whose counts differ from the published ones.
        workers: processes.
    """

    vocab_size: int | None = None
    max_train_lines: int | None = None
    other_text: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_train_lines", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CorpusError(f"{flag(name)} must be at least 1, got {value}")

    def refuse(self, corpus: str, *names: str) -> None:
        """Raise CorpusError for the first of these options that is given."""
        for name in names:
            if getattr(self, name) is not None:
                raise CorpusError(f"{corpus} does not support {flag(name)}: remove it")

    def require_known(self, found: object, expected: object, what: str) -> None:
        """Raise CorpusError for another text than the published one, unless that is accepted."""
        if found != expected and not self.other_text:
            raise CorpusError(
                f"{what}: expected {expected}, found {found}: this is not the published text, and "
                "perplexities cannot be compared with published ones; --other-text accepts it "
                "(in a recipe, --set corpus.other_text=true)"
            )
