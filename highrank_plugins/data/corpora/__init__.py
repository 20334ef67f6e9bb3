"""Prepare the corpora of published language models: from downloads to what fairseq reads.

Importing this package is cheap: numpy, torch and fairseq are imported inside functions.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.names import did_you_mean, flag
from highrank_plugins.common.user_error import UserError

# name → module with `prepare`, which takes data, output and options and yields lines to print
CORPORA = {name: name for name in ("one_billion_word", "text8")}
CORPORA |= dict.fromkeys(("ptb", "wikitext2"), "word_corpora")


class CorpusOptions(BlockOptions):
    """Say how a published corpus is prepared."""

    vocab_size: int | None = option(
        None,
        "Keep the N most frequent words; others become <unk>. "
        "[default: all; one_billion_word: 100000]",
        ge=1,
    )
    max_train_lines: int | None = option(None, "Read only the first N training lines.", ge=1)
    other_text: bool = option(False, "Accept counts that differ from the published ones.")

    def refuse(self, corpus: str, *names: str) -> None:
        """Refuse the first of these options that is given."""
        for name in names:
            if getattr(self, name) is not None:
                raise UserError(f"{corpus} does not support {flag(name)}: remove it")

    def require_known(self, found: object, expected: object, what: str) -> None:
        """Refuse another text than the published one, unless that is accepted."""
        if found != expected and not self.other_text:
            raise UserError(
                f"{what}: expected {expected}, found {found}: this is not the published text, and "
                "perplexities cannot be compared with published ones; --other-text accepts it "
                "(in a recipe, --set corpus.other_text=true)"
            )


def prepare_corpus(name: str, data: Path, output: Path, options: CorpusOptions) -> Iterator[str]:
    """Read a corpus strictly, count it, write it below `output`, and yield the counts to print."""
    if name not in CORPORA:
        known = ", ".join(CORPORA)
        near = did_you_mean(name, CORPORA) or "; of your own: highrank new DIR --language-model"
        raise UserError(f"no corpus {name!r}{near}; there are: {known}")
    if not data.is_dir():
        raise UserError(f"--data {data}: no such folder")
    prepare: Callable[[str, Path, Path, CorpusOptions], Iterator[str]]
    prepare = import_module(f"{__name__}.{CORPORA[name]}").prepare
    output.mkdir(parents=True, exist_ok=True)
    return prepare(name, data, output, options)
