"""Test compat/eval_lm.py."""

import math
import re

import pytest
import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq_cli import eval_lm

from highrank_plugins.common.user_error import UserError
from tests.compat.conftest import config


def evaluate(data, path, *options) -> dict:
    line = [data / "lm", "--path", path, "--cpu", "--num-workers", 0]
    return eval_lm.main(config("eval_lm", *line, *options))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"--tokens-per-sample \(now 1024\) to at most 16"),
        (["--tokens-per-sample", 17], "blocks are longer"),
        *(
            (["--tokens-per-sample", 16, "--post-process", name],
             f"--post-process {name} would join nothing here")
            for name in ("letter", "subword_nmt", "@@ ")
        ),
    ],
)  # fmt: skip
def test_options_that_leave_words_out_or_join_none_are_refused(
    data, language_model, words, message
):
    with pytest.raises(UserError, match=message):
        evaluate(data, language_model, *words)


def test_streams_nan_and_an_empty_split_are_refused(data, language_model, tmp_path):
    state = torch.load(language_model)
    state["task_state"] = {"carries_state": True}
    torch.save(state, tmp_path / "streams.pt")
    with pytest.raises(ValueError, match="add --task bptt_language_modeling"):
        evaluate(data, tmp_path / "streams.pt", "--tokens-per-sample", 16)

    state["task_state"] = {}
    state["model"]["decoder.output_projection.weight"].fill_(math.nan)
    torch.save(state, tmp_path / "broken.pt")
    with pytest.raises(FloatingPointError, match="infinite or NaN"):
        evaluate(data, tmp_path / "broken.pt", "--tokens-per-sample", 16)
    task = LanguageModelingTask.__new__(LanguageModelingTask)
    with pytest.raises(ValueError, match="--gen-subset is empty"):
        task.eval_lm_dataloader(dataset=[], max_positions=16)


class ForgetsAWord(torch.nn.Module):
    """Give class 5 log P = -inf, and all others -1."""

    def forward(self, src_tokens):
        return torch.zeros(*src_tokens.shape, 8), None

    def get_normalized_probs(self, net_output, log_probs, sample):
        return torch.full_like(net_output[0], -1.0).index_fill(-1, torch.tensor(5), -torch.inf)


class Vocabulary:
    def pad(self):
        return 1

    def eos(self):
        return 2


@pytest.mark.parametrize("target", [[4, 5, 2], [4, 6, 1, 1]])
def test_infinite_scores_are_refused_and_padding_is_ignored(target):
    tokens = torch.tensor([target])
    sample = {"id": torch.tensor([41]), "net_input": {"src_tokens": tokens}, "target": tokens}
    scorer = SequenceScorer(Vocabulary())
    if 5 not in target:
        found = scorer.generate([ForgetsAWord()], sample)
        assert found[0][0]["positional_scores"].tolist() == [-1, -1]
        return
    with pytest.raises(FloatingPointError, match=r"1 of 3 .*\[41\]"):
        scorer.generate([ForgetsAWord()], sample)


@pytest.mark.parametrize(("name", "context"), [("subword_nmt", 0), ("@@ ", 4)])
def test_means_are_per_word_where_pieces_are_joined(
    data, language_model, monkeypatch, caplog, name, context
):
    options = ["--tokens-per-sample", 16, "--context-window", context]
    per_piece = evaluate(data, language_model, *options)["loss"]
    stock = eval_lm.eval_lm

    def with_pieces(source_dictionary, **kwargs):
        source_dictionary.symbols[::3] = [f"{word}@@" for word in source_dictionary.symbols[::3]]
        return stock(source_dictionary=source_dictionary, **kwargs)

    monkeypatch.setattr(eval_lm, "eval_lm", with_pieces)
    caplog.set_level("INFO")
    per_word = evaluate(data, language_model, *options, "--post-process", name)["loss"]
    words = int(re.search(r"means over ([\d,]+) words", caplog.text)[1].replace(",", ""))
    pieces = int(re.search(r"Evaluated ([\d,]+) tokens", caplog.text)[1].replace(",", ""))
    assert words < pieces
    assert per_word * words == pytest.approx(per_piece * pieces, rel=1e-5)


@pytest.mark.parametrize(("form", "said"), [("{}@@", True), ("▁{}", True), ("@{}", False)])
def test_it_is_said_that_a_dictionary_holds_pieces(data, monkeypatch, caplog, form, said):
    stock = Dictionary.add_from_file

    def add(dictionary, file):
        stock(dictionary, file)
        vars(dictionary).pop("read_from", None)  # it is compared with the file
        dictionary.symbols[4:] = [form.format(word) for word in dictionary.symbols[4:]]

    monkeypatch.setattr(Dictionary, "add_from_file", add)
    caplog.set_level("INFO")
    tasks.setup_task(config("eval_lm", data / "lm", "--path", "x").task)
    assert ("the dictionary holds pieces of words" in caplog.text) == said
