"""README, docs and docstrings are written in short sentences, without private terms."""

import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("recipes/*/README.md")),
]
PAGES = [page for page in PAGES if "generated" not in page.parts]
LONGEST = 30
MEDIAN = 18
# the beginning of a longer sentence → why it stays
EXCEPTIONS = {"What can be claimed": "a program prints it, with the names of a table's systems"}
PRIVATE = (
    "bent line|tournament|contenders?|goes? on with|go on with|gone on with|anew|thereby|so many|"
    "such a|that of those|come to lie|comes to lie|looked at|at hand|room on the disk|"
    "time and again|given up for lost"
)
# a sentence whose meaning hangs on the one before it, and machines as actors
HANGS = re.compile(
    r"^(?:That|Those)\b|\bthe (?:former|latter)\b"
    r"|\b(?:machines?|EPYCs?) (?:that we met|repeated|foretold)\b"
)
PRIVATE_IN_CODE = f"{PRIVATE}|of what|that which|to be had|one's own|on target"
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*(\[“\"]|\d)|\n\s*\n")


def sentences(page: Path) -> list[str]:
    """Return the sentences of a page: of paragraphs, of items of lists and of cells of tables."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^\| \*[^|]*", "| ", text, flags=re.MULTILINE)  # messages of the program
    text = re.sub(r"^ *(```+|~~~+).*?^ *\1", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(
        r"<!--.*?-->|^    \S.*$|!\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE
    )
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines = []
    for line in text.splitlines():
        if line.startswith("|"):
            lines += ["", *(f"{cell.strip()}\n" for cell in re.split(r"(?<!\\)\|", line)), ""]
        elif re.match(r"#|\s*(?:[-*]|\d+\.) ", line):
            lines += ["", line.lstrip("#-*0123456789. "), "" if line.startswith("#") else None]
        else:
            lines.append(line.strip())
    joined = "\n".join(line for line in lines if line is not None)
    found = (" ".join(part.split()) for part in SENTENCE_END.split(joined))
    return [sentence for sentence in found if re.search(r"[a-z]{2}", sentence)]


def words(sentence: str) -> int:
    """Return the number of words; a piece of code or an equation counts as one."""
    plain = re.sub(r"`[^`]*`|\$+[^$]+\$+", "code", sentence)
    return len([word for word in plain.split() if re.search(r"[A-Za-z]{2}|code|\b[aI]\b", word)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short_and_plain_and_titles_are_names(page):
    found = sentences(page)
    long = [text for text in found if words(text) > LONGEST]
    assert [text for text in long if not text.startswith(tuple(EXCEPTIONS))] == []
    assert re.findall(rf"\b(?:{PRIVATE})\b", "\n".join(found), re.IGNORECASE) == []
    assert [text for text in found if HANGS.search(text)] == []
    titles = re.findall(r"^#+ (.*)$", without_code(page), re.M)
    assert titles and [title for title in titles if title.endswith(("?", "."))] == []


def test_the_readme_and_most_sentences_are_short():
    """Check the median of whole sentences, which end with a full stop."""
    whole = [
        words(s) for page in PAGES for s in sentences(page) if s.endswith(".") and words(s) > 3
    ]
    assert len(whole) > 500 and statistics.median(whole) <= MEDIAN
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert lines.index("```bash") < 12


def docstring_sentences(source: str) -> Iterator[str]:
    """Yield the sentences of a module's docstrings, and each item of a list as one."""
    for docstring in re.findall(r'^ *r?"""(?=\S)(.*?)"""', source, re.DOTALL | re.MULTILINE):
        # pictures, sessions of Python, and legends in columns
        text = re.sub(r"^.*(?:[│▼]|>>>|\S {3,}\S).*$", "\n", docstring, flags=re.MULTILINE)
        text = re.sub(r"^ *(?:[\w, *]+: |[-|] |\d+\. )", "\n\n", text, flags=re.MULTILINE)
        for sentence in SENTENCE_END.split(text.replace("``", "`")):
            if re.search(r"[a-z]{2}", sentence):
                yield " ".join(sentence.split())


def test_docstrings_are_short_and_code_has_no_private_terms():
    """Check names, docstrings, comments and messages."""
    term = re.compile(rf"\b(?:{PRIVATE_IN_CODE})\b")
    rooms, found = ("highrank_plugins", "recipes", "scripts"), []
    for path in sorted(path for room in rooms for path in (ROOT / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        long = [one for one in docstring_sentences(text) if words(one) > LONGEST]
        private = [line.strip() for line in text.lower().splitlines() if term.search(line)]
        found += [f"{path.name}: {line}" for line in [*long, *private]]
    assert found == []


# -- links that work where the repository is read as plain files, and their anchors ----------------


def without_code(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    code = re.compile(r"^( *)(```+).*?^\1\2", re.DOTALL | re.MULTILINE)
    return code.sub(lambda found: "\n" * found[0].count("\n"), text)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as git hosts and the site make them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def broken(page: Path) -> list[str]:
    """Return `page:line: link` of links and images that lead nowhere, or to the built site only."""
    found, text = [], without_code(page)
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        link = match[1]
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        known = target.exists() and "generated" not in target.parts
        if not known or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}: {link}")
    return found


def test_links_lead_somewhere():
    for page in (*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"):
        assert broken(page) == []
