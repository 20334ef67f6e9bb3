"""Pairs that are kept, and the reasons of those that are not."""

import pytest

from highrank_plugins.data.parallel import KEPT, Cleaner, Rules


def clean(*pairs: tuple[str | bytes, str | bytes], **rules: object):
    cleaner = Cleaner(Rules(**rules))
    encoded = [
        tuple(line if isinstance(line, bytes) else line.encode() for line in pair) for pair in pairs
    ]
    return [kept for pair in encoded if (kept := cleaner(pair))], cleaner.counts


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ((b"caf\xe9", "Kaffee"), "not UTF-8"),
        (("", "leer"), "empty"),
        (("empty", "\u2003\r"), "empty"),
        (("a\0", "\x07"), "empty"),
        (("a " * 4, "b " * 4), "longer than 3 words"),
        (("a", "b b b"), "with one side 2 times longer than the other"),
        (("a a a", "b"), "with one side 2 times longer than the other"),
    ],
)
def test_a_dropped_pair_is_counted_with_its_reason(pair, reason):
    kept, counts = clean(pair, ("yes", "ja"), max_words=3, max_ratio=2.0)
    assert kept == [("yes", "ja")]
    assert counts == {reason: 1, KEPT: 1}


@pytest.mark.parametrize("pair", [("a a a", "b b b"), ("a a", "b"), ("a", "b b")])
def test_pairs_at_the_limits_are_kept(pair):
    assert clean(pair, max_words=3, max_ratio=2.0)[0] == [pair]


def test_white_space_is_folded_and_control_characters_are_dropped():
    kept, _ = clean((" a\u00a0b\u2028c\rd ", "e\0f\ue000 g\u200dh\u00adi"))
    assert kept == [("a b c d", "ef g\u200dh\u00adi")]  # a joiner and a soft hyphen are text


def test_duplicates_are_dropped_only_on_request():
    pairs = [("a", "b"), ("a", "c"), (" a", "b "), ("a", "b")]
    assert len(clean(*pairs)[0]) == 4
    kept, counts = clean(*pairs, drop_duplicates=True)
    assert kept == [("a", "b"), ("a", "c")]
    assert counts["duplicate"] == 2


def test_words_are_counted_by_reason():
    cleaner = Cleaner(Rules(max_words=3))
    for pair in (
        (b"a b", b"c"),
        (b"", b"d e"),
        (b"f g h i", b"j"),
        (b"caf\xe9 k", b"l"),
        (b"m", b"n"),
    ):
        cleaner(pair)
    source, target = cleaner.words
    assert source == {KEPT: 3, "empty": 0, "longer than 3 words": 4, "not UTF-8": 2}
    assert target == {KEPT: 2, "empty": 2, "longer than 3 words": 1, "not UTF-8": 1}


def test_the_line_break_between_the_sides_matters_for_duplicates():
    kept, _ = clean(("a b", "c"), ("a", "b c"), drop_duplicates=True)
    assert len(kept) == 2
