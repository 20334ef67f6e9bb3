"""Options out of range, or of another layer, and unsorted dictionaries are refused by name.

The table has those of models, criteria, tasks and optimizers.
"""

from contextlib import nullcontext

import pytest
import torch
from fairseq import optim
from fairseq.data import Dictionary
from fairseq.optim import lr_scheduler

from highrank_plugins.models.head_from_options import require_sorted_by_count
from tests.models.small import build
from tests.tasks import built as streams

MT, LM, AWD, LSTM = ("transformer_{}_tiny", "transformer_lm_{}", "awd_lstm_lm_{}", "lstm_{}")
CLIP = ["--rel-pos-clip", 3]
# a task of streams, its optimizer nt_asgd, and another with a schedule
STREAMS = "streams of awd_lstm_lm_{}"
NOAM = "--optimizer adam --lr-scheduler t2t_noam --noam-dim 16 --warmup-updates 5".split()
NO_STATE = "--decoder-embed-dim 8 --decoder-attention-heads 1 --decoder-layers 1".split()


RANGES = {
    LM: """head-embed-dim=0 head-loss-memory=0 head-z-loss=-1 rel-pos-clip=-1 label-smoothing=1
        label-smoothing=nan teacher-weight=1.5 teacher-temperature=0""",
    STREAMS: """wdrop=1 decoder-embed-dim=0 bptt=0 bptt-max-delta=-1 eval-streams=0 ar-alpha=-2
        tar-beta=nan nonmono=-1 asgd-at-epoch=-1""",
}


@pytest.mark.parametrize(
    ("trunk", "token", "words", "message"),
    [
        *((trunk, "softmax", [f"--{word}"], f"--{word.partition('=')[0]} (must|nan: expected)")
          for trunk, words in RANGES.items() for word in words.split()),
        (LM, "mixtape", ["--head-components", "3"], r"--head mixtape: --head-components .*got 3"),
        (LM, "mos", ["--head-bias", "yes"], "--head-bias.*true"),
        (MT, "mos", ["--head", "mtos"], "mos"),
        (MT, "softmax", ["--head-embed-dim", "8"], r"--head softmax: --head-embed-dim .*32"),
        (MT, "plif", ["--head-plif-lr", "0"], "--head-plif-lr must be above 0, got 0"),
        (MT, "mos", ["--adaptive-softmax-cutoff", "[20]"], "--adaptive-softmax-cutoff: a head n"),
        (MT, "mos", ["--quant-noise-scalar", "0.5"], "--quant-noise-scalar does not work with"),
        (LM, "mos", ["--decoder-layers-to-keep", "0"], "--decoder-layers-to-keep does not work"),
        (MT, "mos", ["--rel-pos-in", "encoder"], "--rel-pos-in encoder needs --rel-pos-clip"),
        (MT, "mos", [*CLIP, "--quant-noise-pq", 0.1], "does not work with --quant-noise-pq"),
        (MT, "mos", [*CLIP, "--cross-self-attention"], "does not work with --cross-self-attention"),
        (LM, "mos", [*CLIP, "--rel-pos-in", "encoder"], "-pos-in encoder: a language model has"),
        (LSTM, "mos", ["--share-all-embeddings", "--head-embed-dim", "8"], "--share-all|-dim 8"),
        (LSTM, "mos", ["--encoder-layers", "2"], "--encoder-layers must match --decoder-layers"),
        (AWD, "mos", ["--embed-noise", "-1"], "^--embed-noise must be at least 0"),
        (AWD, "mos", ["--decoder-layers", "0"], "^--decoder-layers must be at least 1"),
        (AWD, "mos", ["--head-embed-dim", "8"], "--head-embed-dim 8: the shared .*--separate-emb"),
        (AWD, "softmax", ["--decoder-last-hidden-size", "24"], "--head softmax: .*32.*24"),
        (AWD, "softmax", ["--head-dropout", "0.1"], "--head-dropout: --head softmax .*no such opt"),
        (LM, "softmax", ["--teacher-weight", "0.9"], "--teacher-weight"),  # of no teacher
        (LM, "softmax", ["--teacher-divergence", "back"], "--teacher-divergence"),
        (STREAMS, "softmax", ["--criterion", "cross_entropy"], "take --criterion bptt_cross_entr"),
        (STREAMS, "softmax", ["--sample-break-mode", "eos"], "--sample-break-mode eos does not"),
        (STREAMS, "softmax", ["--tokens-per-sample", 70], "--tokens-per-sample 70 .*--bptt"),
        (STREAMS, "softmax", ["--add-bos-token"], "--add-bos-token"),
        (STREAMS, "softmax", ["--shorten-method", "truncate"], "--shorten-method truncate"),
        (STREAMS, "softmax", ["--sentence-avg"], "--sentence-avg: streams have no sentences"),
        ("streams of transformer_lm_{}", "mos", NO_STATE, "TransformerLMHeadModel has none"),
        (STREAMS, "softmax", ["--nonmono-stop"], "--nonmono-stop needs --asgd-at-epoch"),
        (STREAMS, "softmax", ["--fp16"], "use --amp instead of --fp16"),
        (STREAMS, "softmax", NOAM[:4], "needs --noam-dim of at least 1, got None"),
        (STREAMS, "softmax", [*NOAM, "--warmup-updates", 0], "needs --warmup-updates of at least"),
        (STREAMS, "softmax", [*NOAM, "--lr", "1,2"], r"takes one --lr, got \[1.0, 2.0\]"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_values_are_refused(trunk, token, words, message, request):
    arch, on_streams = trunk.format(token).removeprefix("streams of "), trunk.startswith("streams")
    data = "stream_data" if on_streams else "lm_data" if "_lm_" in trunk else "mt_data"
    data = request.getfixturevalue(data)
    with pytest.raises(ValueError, match=message):
        built = streams.build(data, *words, arch=arch) if on_streams else build(data, arch, *words)
        optimizer = optim.build_optimizer(built.cfg.optimizer, [torch.nn.Parameter()])
        lr_scheduler.build_lr_scheduler(built.cfg.lr_scheduler, optimizer)


# -- Mixtape's frequent classes need a dictionary that is sorted by count ----------------------

PADDING = [("madeupword0000", 0), ("madeupword0001", 0)]


def dictionary(words):
    """Return a dictionary of words with counts; a number is the count of the next word."""
    made = Dictionary()
    for i, word in enumerate(words):
        made.add_symbol(*(word if isinstance(word, tuple) else (f"word{i}", word)))
    return made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((words, None) for words in ([9, 5, 5, 1, *PADDING], [3, *PADDING], [*PADDING])),
        ([9, 5, *PADDING, ("<lang:de>", 1)], None),  # a task's, which needs no count
        ([9, 5, 7, 1], r"line 3 \('word2'\) has 7, .*, but it matters.*sort"),
        ([*PADDING[::-1], ("the", 3), ("a", 9)], r"line 4 \('a'\) has 9, the word before 3"),
        # padding among the words does not end the check, and only that of count 0 is left out
        ([9, 5, *PADDING, ("late", 7)], r"line 5 \('late'\) has 7, the word before 5"),
        ([9, 5, ("madeupword0000", 7)], r"line 3 \('madeupword0000'\) has 7"),
        ([1, 1, 1], r"(?s)all 3 counts are 1.*[Rr]ecount"),
    ],
    ids=str,
)
def test_only_dictionaries_sorted_by_count_pass(words, message):
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        require_sorted_by_count(dictionary(words), "it matters")


def test_only_mixtape_with_frequent_classes_needs_sorted_words(mt_data, tmp_path):
    for file in mt_data.iterdir():
        (tmp_path / file.name).symlink_to(file)
    lines = (mt_data / "dict.de.txt").read_text().splitlines(keepends=True)
    lines[0], lines[20] = lines[20], lines[0]
    (tmp_path / "dict.de.txt").unlink()
    (tmp_path / "dict.de.txt").write_text("".join(lines))
    build(tmp_path, "transformer_mos_tiny")
    build(tmp_path, "transformer_mixtape_tiny", "--head-frequent-ratio", "0")
    with pytest.raises(ValueError, match=r"not sorted by count: line 2.*--head-frequent-ratio 0"):
        build(tmp_path, "transformer_mixtape_tiny")
