"""common/names.py and formatting.py: names, which numbers are better, and how they are shown."""

from pathlib import Path

import pytest

from highrank_plugins.common.formatting import cell, table
from highrank_plugins.common.names import criterion, direction, distinct_names
from highrank_plugins.common.options import WrongNumbers, check_ranges


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/mos.json", "b/softmax.json"], ["mos", "softmax"]),
        (["x/a/r.json", "y/a/r.json", "y/b/r.json"], ["x/a/r", "y/a/r", "y/b/r"]),
    ],
)
def test_names_are_as_short_as_they_can_be(paths, names):
    assert distinct_names([Path(path) for path in paths]) == names
    with pytest.raises(ValueError, match=f"{paths[0]} is given twice"):
        distinct_names([Path(path) for path in (*paths, paths[0])])


LOWER = """loss nll_loss ppl wer uer raw_wer ter c_error bt_nll_loss f0_loss accuracy_loss
    weighted_lm_ppl test_perplexity_before_finetuning valid_bits top_1_error mse rmse mae kld
    kld_loss bpw top1_err error_top_5 wer_top1""".split()
HIGHER = """bleu BLEU4 sacrebleu chrf2 accuracy n_correct acc_and_f1 mAP test_top_5
    word_similarity pearson spearman pearson_and_spearman em exact_match comet bertscore rougeL
    rouge_l cider auroc iou top_5 acc_top_1""".split()
UNKNOWN = """latency code_perplexity test_kld test_retention test_rank my_number after neg_loss
    inverse_ppl error_reduction bleu_gap 1-wer accuracy_at_loss loss_acc no_match
    self_bleu""".split()  # the last three have words that contradict each other


def options(metric: str, maximise: bool) -> dict:
    return {"best_checkpoint_metric": metric, "maximize_best_checkpoint_metric": maximise}


@pytest.mark.parametrize("names, expected", [(LOWER, -1), (HIGHER, 1), (UNKNOWN, 0)])
def test_the_name_of_a_metric_gives_its_direction_against_which_no_flag_is(names, expected):
    assert {name: direction(name) for name in names} == dict.fromkeys(names, expected)
    for metric in names:
        for maximise, flag in ((False, -1), (True, 1)):
            given = options(metric, maximise)
            assert criterion(given) == (metric, expected or flag)
            if expected != -flag:
                check_ranges(given)
                continue
            with pytest.raises(
                WrongNumbers, match=f"--(maximize-)?best-checkpoint-metric.*{metric}"
            ):
                check_ranges(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *((options(metric, maximise), f"--best-checkpoint-metric {metric}: says nothing")
          for metric in ("wps", "total", "ntokens", "lr", "train_wall")
          for maximise in (False, True)),
        ({"patience": 1, "disable_validation": True}, "--patience counts validations"),
        ({"lm_weight": 0.5, "lm_path": None}, "--lm-weight has no effect without --lm-path"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(given, message):
    with pytest.raises(WrongNumbers, match=message):
        check_ranges(given)


def test_a_cell_cannot_break_its_table():
    cells = {
        "a | b": r"a \| b", r"escaped \| already": r"escaped \| already",
        "two\r\n lines": "two lines", "`<token>` of <b>": "`<token>` of &lt;b>", 0.5: "0.5",
    }  # fmt: skip
    for text, shown in cells.items():
        assert cell(text) == shown
        assert table(["head"], [[str(text)]]).splitlines()[2:] == [f"| {shown} |"]
