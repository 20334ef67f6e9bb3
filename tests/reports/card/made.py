"""Cards of tiny checkpoints, and their pages as a browser takes them apart."""

from html.parser import HTMLParser

from highrank_plugins.reports.card.gather import Card, make_card
from tests.inference.checkpoints import FEW_KNOTS, write_checkpoint
from tests.models import small
from tests.tasks.built import build

VOID = {"meta", "link", "br", "img", "input", "hr"}
STOCK = ("transformer", "transformer_lm", "lstm")


def checkpoint(folder, arch, data, *words):
    """Build an untrained model of this architecture; one on streams by the prefix `streams:`."""
    words = [*words, *(FEW_KNOTS if "plif" in arch else [])]
    if arch.startswith("streams:"):
        built = build(data, *words, arch=arch.removeprefix("streams:"))
    else:
        built = small.build(
            data, arch, *(words or (["--criterion", "cross_entropy"] * (arch in STOCK)))
        )
    return write_checkpoint(folder / "a.pt", built), built


def card_of(path, data=None, split="valid", tokens=100) -> Card:
    """Return `make_card` of a few tokens."""
    return make_card(
        path, None if data is None else str(data), split, tokens, "highrank analyse card …"
    )


class Page(HTMLParser):
    """Read a page's tags, which must be closed in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.text = [], [], [], [], ""
        self.feed(html)
        self.close()
        assert self.open == [], "not closed"

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.tags.append(tag)
        self.ids += [named["id"]] if "id" in named else []
        self.links += [named[name] for name in ("src", "href", "srcset", "data") if name in named]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
