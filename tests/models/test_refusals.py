"""Options out of range, or of another layer, and unsorted dictionaries are refused by name."""

import pytest
from fairseq.data import Dictionary

from highrank_plugins.models.head_from_options import require_sorted_by_count
from tests.models.small import build

MT, LM, AWD, LSTM = ("transformer_{}_tiny", "transformer_lm_{}", "awd_lstm_lm_{}", "lstm_{}")
CLIP = ["--rel-pos-clip", 3]


@pytest.mark.parametrize(
    ("trunk", "token", "words", "message"),
    [
        (MT, "mixtape", ["--head-context-scale", "0"], r"--head-context-scale must be .* than 0"),
        (LM, "mixtape", ["--head-components", "3"], r"--head mixtape: --head-components .*got 3"),
        (MT, "mixtape", ["--head-frequent-ratio", "1.5"], r"--head-frequent-ratio.*\[0, 1\]"),
        (LM, "mos", ["--head-bias", "yes"], "--head-bias.*true"),
        (MT, "mos", ["--head", "mtos"], "mos"),
        (LM, "mos", ["--head", "sigsoftmax"], "--head-pointwise sigsoftmax"),
        (LM, "mos", ["--head-embed-dim", "0"], "--head-embed-dim must be at least 1, got 0"),
        (MT, "softmax", ["--head-embed-dim", "8"], r"--head softmax: --head-embed-dim .*32"),
        (LM, "mos", ["--head-loss-memory", "0"], "--head-loss-memory must be at least 1"),
        (LM, "mos_plif", ["--head-plif-knots", "0"], "-pointwise plif: --head-plif-knots .*0"),
        (MT, "plif", ["--head-plif-lr", "0"], "--head-plif-lr must be above 0, got 0"),
        (LM, "plif", ["--head-plif-lr", "inf"], "--head-plif-lr inf: expected a finite"),
        (MT, "mos", ["--adaptive-softmax-cutoff", "[20]"], "--adaptive-softmax-cutoff: a head n"),
        (LM, "mos", ["--head-z-loss=-1"], "--head-z-loss must be at least 0, got -1"),
        (LM, "mos", ["--head-z-loss=inf"], "--head-z-loss inf: expected a finite number"),
        (LM, "mos", ["--head-z-loss=nan"], "--head-z-loss nan: expected a"),
        (MT, "mos", ["--quant-noise-scalar", "0.5"], "--quant-noise-scalar has no effect on th"),
        (MT, "mos", ["--rel-pos-clip", -1], "--rel-pos-clip must be at least 0"),
        (MT, "mos", ["--rel-pos-in", "encoder"], "--rel-pos-in encoder needs --rel-pos-clip"),
        (MT, "mos", [*CLIP, "--quant-noise-pq", 0.1], "does not work with --quant-noise-pq"),
        (MT, "mos", [*CLIP, "--cross-self-attention"], "does not work with --cross-self-attention"),
        (LM, "mos", [*CLIP, "--rel-pos-in", "encoder"], "-pos-in encoder: a language model has"),
        (LSTM, "mos", ["--adaptive-softmax-cutoff", "10,20"], "--adaptive-softmax-cutoff: a he"),
        (LSTM, "mos", ["--share-all-embeddings", "--head-embed-dim", "8"], "--share-all|-dim 8"),
        (LSTM, "mos", ["--encoder-layers", "2"], "--encoder-layers must match --decoder-layers"),
        (AWD, "mos", ["--wdrop", "1"], r"--wdrop must lie in \[0, 1\), got 1"),
        (AWD, "mos", ["--dropouti", "-0.1"], "--dropouti must lie in"),
        (AWD, "mos", ["--embed-noise", "-1"], "--embed-noise must not be negative"),
        (AWD, "mos", ["--decoder-embed-dim", "0"], "--decoder-embed-dim must be at least 1, got 0"),
        (AWD, "mos", ["--decoder-layers", "0"], "--decoder-layers must be at least 1, got 0"),
        (AWD, "mos", ["--head-embed-dim", "8"], "--head-embed-dim 8: the shared .*--separate-emb"),
        (AWD, "softmax", ["--decoder-last-hidden-size", "24"], "--head softmax: .*32.*24"),
        (AWD, "softmax", ["--head-dropout", "0.1"], "--head-dropout: --head softmax .*no such opt"),
    ],
    ids=str,
)
def test_invalid_values_are_refused(trunk, token, words, message, mt_data, lm_data):
    data = lm_data if "_lm_" in trunk else mt_data
    with pytest.raises(ValueError, match=message):
        build(data, trunk.format(token), *words)


# -- Mixtape's frequent classes need a dictionary that is sorted by count ----------------------

PADDING = [("madeupword0000", 0), ("madeupword0001", 0)]


def dictionary(words):
    """Return a dictionary of words with counts; a number is the count of the next word."""
    made = Dictionary()
    for i, word in enumerate(words):
        made.add_symbol(*(word if isinstance(word, tuple) else (f"word{i}", word)))
    return made


@pytest.mark.parametrize(
    "words",
    [[9, 5, 5, 1, *PADDING], [3, *PADDING], [*PADDING], [9, 5, *PADDING, ("<lang:de>", 1)]],
    ids=str,
)
def test_sorted_counts_pass(words):
    """The last symbol is a task's, which needs no count."""
    require_sorted_by_count(dictionary(words), "it matters")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([9, 5, 7, 1], r"line 3 \('word2'\) has 7, .*, but it matters.*sort"),
        ([*PADDING[::-1], ("the", 3), ("a", 9)], r"line 4 \('a'\) has 9, the word before 3"),
        # padding among the words does not end the check, and only that of count 0 is left out
        ([9, 5, *PADDING, ("late", 7)], r"line 5 \('late'\) has 7, the word before 5"),
        ([9, 5, ("madeupword0000", 7)], r"line 3 \('madeupword0000'\) has 7"),
        ([1, 1, 1], r"(?s)all 3 counts are 1.*[Rr]ecount"),
    ],
    ids=str,
)
def test_other_orders_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        require_sorted_by_count(dictionary(words), "it matters")


@pytest.fixture
def unsorted_data(mt_data, tmp_path):
    for file in mt_data.iterdir():
        (tmp_path / file.name).symlink_to(file)
    lines = (mt_data / "dict.de.txt").read_text().splitlines(keepends=True)
    lines[0], lines[20] = lines[20], lines[0]
    (tmp_path / "dict.de.txt").unlink()
    (tmp_path / "dict.de.txt").write_text("".join(lines))
    return tmp_path


def test_only_mixtape_with_frequent_classes_needs_sorted_words(unsorted_data):
    build(unsorted_data, "transformer_mos_tiny")
    build(unsorted_data, "transformer_mixtape_tiny", "--head-frequent-ratio", "0")
    with pytest.raises(ValueError, match=r"not sorted by count: line 2.*--head-frequent-ratio 0"):
        build(unsorted_data, "transformer_mixtape_tiny")
