"""common/names.py: which numbers are better, and that options cannot turn it round."""

import pytest

from highrank_plugins.common.names import criterion, direction
from highrank_plugins.common.options import WrongNumbers, check_ranges

LOWER = """loss nll_loss ppl wer uer raw_wer ter c_error bt_nll_loss f0_loss accuracy_loss
    weighted_lm_ppl test_perplexity_before_finetuning valid_bits top_1_error mse rmse mae kld
    kld_loss bpw top1_err""".split()
HIGHER = """bleu BLEU4 sacrebleu chrf2 accuracy n_correct acc_and_f1 mAP test_top_5
    word_similarity pearson spearman pearson_and_spearman em exact_match comet bertscore rougeL
    rouge_l cider auroc iou""".split()
UNKNOWN = """latency code_perplexity test_kld test_retention test_rank my_number after neg_loss
    inverse_ppl error_reduction bleu_gap 1-wer accuracy_at_loss""".split()


@pytest.mark.parametrize("names, expected", [(LOWER, -1), (HIGHER, 1), (UNKNOWN, 0)])
def test_the_name_of_a_metric_gives_its_direction(names, expected):
    assert {name: direction(name) for name in names} == dict.fromkeys(names, expected)


def options(metric: str, maximise: bool) -> dict:
    return {"best_checkpoint_metric": metric, "maximize_best_checkpoint_metric": maximise}


@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("metric", [*LOWER, *HIGHER, *UNKNOWN])
def test_a_flag_against_the_direction_is_refused(metric, maximise):
    given, flag = options(metric, maximise), 1 if maximise else -1
    assert criterion(given) == (metric, direction(metric) or flag)
    if direction(metric) == -flag:
        with pytest.raises(WrongNumbers, match=f"--(maximize-)?best-checkpoint-metric.*{metric}"):
            check_ranges(given)
    else:
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


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("error_top_5", -1), ("wer_top1", -1), ("top_5", 1), ("acc_top_1", 1),
     ("loss_acc", 0), ("no_match", 0), ("self_bleu", 0)],
)  # fmt: skip
def test_words_that_contradict_each_other_say_nothing(metric, expected):
    assert direction(metric) == expected
