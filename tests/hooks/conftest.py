"""The training runs of tests/compat, in whose process hooks are tried, too; listeners to them."""

from highrank_plugins.common.heartbeat import TrainingListener
from tests.compat.conftest import data, language_model, stock, translator

__all__ = ["data", "language_model", "listen", "stock", "translator"]


def listen(monkeypatch, owner: type, **events) -> None:
    """Make a class of fairseq a listener, with these methods for the rest of the test."""
    if not issubclass(owner, TrainingListener):
        owner.__bases__ = (TrainingListener, *owner.__bases__)  # harmless afterwards
    for name, method in events.items():
        monkeypatch.setattr(owner, name, method, raising=False)


def swap_words(dictionary) -> None:
    """Put the first two words of a dictionary in another order; numbers in the text stay."""
    first, second, *others = dictionary.read_text().splitlines(keepends=True)
    dictionary.write_text("".join([second, first, *others]))
