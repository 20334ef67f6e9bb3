"""Test results/verdicts.py: what agrees, what differs, and what cannot be compared."""

import json
import re
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY

import highrank_plugins
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.results.comparison import compare_records
from highrank_plugins.results.doubts import flat_settings
from highrank_plugins.results.verdicts import _SETTINGS, _layer, judge, paper_keys
from highrank_plugins.training import configuration
from tests.cli import highrank
from tests.results.entries import record_of

CONF = Path(__file__).parents[2] / "recipes" / "ptb" / "conf"


def write(folder, system, values, conf, parameters=None, metric="test_perplexity", **changes):
    """Write records of a published configuration, one per value."""
    sets = [f"{name.replace('__', '.')}={value}" for name, value in changes.items()]
    paths = []
    for seed, value in enumerate(values, start=1):
        settings = configuration.load(CONF / f"{conf}.yaml", [*sets, f"seed={seed}"])
        record = record_of(
            {metric: value}, seed, config=settings.blocks(),
            signatures={"test_perplexity": "tokens:82430|eval:static"},
            command="fairseq-train exp/ptb/a/data-bin",
            train={"updates": 1, "words_per_second": 1, "parameters": parameters},
        )  # fmt: skip
        paths.append(folder / f"{system}-{seed}.json")
        paths[-1].write_text(json.dumps(record))
    return paths


def verdict_of(paths, paper="parthiban2021", task=None, metric=None):
    (found,) = judge(compare_records(paths, metric), paper, task)
    return found


PLIF, MIXTAPE = "parthiban2021/plif_et", "yang2019/mixtape"
RANGE = "95% of further runs lie in [56.5"


@pytest.mark.parametrize(
    ("conf", "values", "verdict", "why", "theirs"),
    [
        (PLIF, [56.75, 56.9, 56.8], "agrees", "p = ", "56.80 ± 0.11 (n = 11)"),
        (PLIF, [58.75, 58.9, 58.8], "differs", "p = ", "56.80 ± 0.11 (n = 11)"),
        (PLIF, [56.9], "agrees", RANGE, "56.80 ± 0.11 (n = 11)"),
        (PLIF, [57.9], "differs", RANGE, "56.80 ± 0.11 (n = 11)"),
        (MIXTAPE, [56.4], "not comparable", "one run each", "56.37"),
        (MIXTAPE, [56.18, 56.18], "not comparable", "no score varies over seeds", "56.37"),
    ],
)
def test_runs_with_equal_settings_are_judged(tmp_path, conf, values, verdict, why, theirs):
    paper = conf.partition("/")[0]
    found = verdict_of(write(tmp_path, "own", values, conf), paper)
    assert (found.verdict, found.theirs) == (verdict, theirs) and why in found.why
    assert found.published == {PLIF: "PLIF", MIXTAPE: "Mixtape"}[conf]
    said = found.details[-1].startswith("Mixtape: test ppl: the text has a gain of 2.8 over MoS")
    assert said == (conf == MIXTAPE)


def test_a_score_of_another_kind_is_shown_and_not_compared(tmp_path):
    conf = "../../wmt14_en_de/conf/yang2019/mixtape"
    paths = write(tmp_path, "mixtape", [29.2, 29.4], conf, metric="sacrebleu")
    found = verdict_of(paths, "yang2019", "wmt14_en_de")
    assert (found.theirs, found.verdict, found.why) == ("29.3", "not comparable", "other signature")
    signature, _, erratum = found.details
    assert [signature, erratum] == [
        "mixtape: signature: sacreBLEU (paper: BLEU of an unstated kind).",
        "Mixtape, K = 4, 0.2B parameters: unstated: the text has it above MoS, whose number is "
        "29.5.",
    ]
    found = verdict_of(write(tmp_path, "softmax", [55.1, 55.3], "kanai2018/softmax"), "kanai2018")
    assert (found.theirs, found.why) == ("50.50", "other signature")


@pytest.mark.parametrize(
    ("changes", "why", "detail"),
    [
        ({"max_epoch": 30}, "steps", f"plif: steps: max_epoch 30 ({PLIF}: 1000)."),
        ({"decoder_embed_dim": 64}, "parameters", f"decoder_embed_dim 64 ({PLIF}: unset)"),
        ({"corpus__vocab_size": 9}, "data", f"corpus.vocab_size 9 ({PLIF}: unset)"),
        ({"evaluate__fp16": True}, "scoring", f"evaluate.fp16 true ({PLIF}: unset)"),
        ({"evaluate__eval_streams": 10}, "scoring", f"evaluate.eval_streams 10 ({PLIF}: 1)"),
    ],
)
def test_verdicts_say_why_numbers_cannot_be_compared(tmp_path, changes, why, detail):
    found = verdict_of(write(tmp_path, "plif", [56.8, 56.9], PLIF, **changes))
    assert (found.verdict, found.why) == ("not comparable", f"other {why}")
    assert detail in " ".join(found.details)


def test_other_settings_are_named_but_compared(tmp_path):
    found = verdict_of(write(tmp_path, "plif", [56.8, 56.9], "parthiban2021/plif_et", dropout=0.3))
    assert found.verdict == "agrees" and found.why.endswith(", other settings")
    assert found.details == [
        "plif: settings: dropout 0.3 (parthiban2021/plif_et: unset).",
        "PLIF: settings of parthiban2021/plif_et: all others are the paper's or its code's.",
    ]


@pytest.mark.parametrize(
    ("parameters", "verdict"), [(17.5e6, "agrees"), (17.8e6, "not comparable")]
)
def test_parameters_are_compared_where_both_are_known(tmp_path, parameters, verdict):
    conf = "parthiban2021/matched_softmax_et"
    paths = write(tmp_path, "softmax", [56.4, 56.5], conf, parameters=parameters)
    found = verdict_of(paths)
    assert (found.verdict, found.published) == (verdict, "softmax, 17.56M parameters")


def test_a_size_does_not_choose_an_entry_without_one(tmp_path):
    """The paper has the same configuration once more, with one seed and without its size."""
    paths = write(tmp_path, "gss", [57.0, 57.1], "parthiban2021/gss_et", parameters=99e6)
    found = verdict_of(paths)
    assert (found.verdict, found.why) == ("not comparable", "other parameters")
    assert found.theirs.endswith("(n = 11)") and "99.00 M (paper: 24" in found.details[0]


@pytest.mark.parametrize(
    ("task", "conf", "values", "changes"),
    [  # sentences in a batch change no translation, and a paper's number of parameters is wrong
        ("wmt14_en_de", "ott2018/softmax", [29.2, 29.4],
         {"metric": "bleu_compound_split", "generate__batch_size": 8}),
        ("wikitext2", "ganea2019/softmax", [65.2, 65.3],
         {"parameters": 33556878}),
    ],
)  # fmt: skip
def test_what_changes_no_number_is_not_held_against_a_run(tmp_path, task, conf, values, changes):
    paths = write(tmp_path, "softmax", values, f"../../{task}/conf/{conf}", **changes)
    found = verdict_of(paths, conf.partition("/")[0], task)
    assert found.verdict == "agrees" and "batch_size" not in " ".join(found.details)


@pytest.mark.parametrize(
    ("paper", "conf", "changes"),
    [
        ("yang2019", "parthiban2021/gss_et", {}),
        ("merity2018", "merity2018/softmax", {"head_pointwise": "gss"}),
    ],
)
def test_a_layer_that_the_paper_lacks_is_not_comparable(tmp_path, paper, conf, changes):
    found = verdict_of(write(tmp_path, "own", [56.4], conf, **changes), paper)
    assert found.why == "the paper has no such layer"


def test_a_verdict_says_where_the_settings_come_from(tmp_path):
    paths = write(tmp_path, "mixtape", [56.4], "yang2019/mixtape", lr=5, head_gate_dropout=0.5)
    settings, origin, _ = verdict_of(paths, "yang2019").details
    assert "lr 5 (yang2019/mixtape: 20)" in settings and "paper" not in settings
    assert "head_gate_dropout 0.5 (yang2019/mixtape: 0.2)" in settings
    assert "our guesses, which the paper does not print: arch, head_gate_dim" in origin
    paths = write(tmp_path, "large", [37.2], "../../one_billion_word/conf/yang2019/mixtape")
    (origin, *_) = verdict_of(paths, "yang2019", "one_billion_word").details
    assert "lr is 10, where the paper prints 20; warmup_updates is 1000, where" in origin
    assert "our guesses, which the paper does not print: arch, head_gate_dim" in origin


def settings_of(path):
    """Return a configuration's settings with those of its architecture, which states dropouts."""
    blocks = configuration.load(path).blocks()
    config = Namespace(**blocks["train"])
    ARCH_CONFIG_REGISTRY[config.arch](config)
    return flat_settings({"config": {**blocks, "train": vars(config)}})


def test_every_origin_names_a_configuration_and_its_options():
    highrank_plugins.register()
    folder = CONF.parents[1]
    confs = [path for path in folder.glob("*/conf/*/*.yaml") if path.stem[:4] != "base"]
    names = {path: f"{path.parts[-4]}/{path.parts[-2]}/{path.stem}" for path in confs}
    for pattern, origin in read_tree(_SETTINGS).values.items():
        found = [path for path, name in names.items() if re.fullmatch(pattern, name)]
        assert found and origin.keys() <= {"departs", "source", "guesses"}, pattern
        blocks = [settings_of(path) for path in found]
        for option, (ours, printed) in origin.get("departs", {}).items():
            assert {block[f"train.{option}"] for block in blocks} == {ours} != {printed}, pattern
        for option in origin.get("guesses", []):
            name = option if "." in option else f"train.{option}"
            assert any(name in block for block in blocks), (pattern, option)


def test_a_finetuned_run_is_compared_with_a_finetuned_one(tmp_path):
    mos = verdict_of(write(tmp_path, "mos", [54.4, 54.6], "yang2018/mos"), "yang2018")
    assert (mos.published, mos.verdict) == ("MoS, K = 15, finetuned", "agrees")
    moc = verdict_of(write(tmp_path, "moc", [56.4, 56.6], "yang2018/moc"), "yang2018")
    assert (moc.verdict, moc.why) == ("not comparable", "other steps")
    assert moc.details[0] == "moc: steps: finetuned (paper: not finetuned)."
    paths = write(tmp_path, "plain", [55.9, 56.1], "yang2018/mos_k3", head_components=15)
    assert verdict_of(paths, "yang2018").published == "MoS, K = 15"


@pytest.mark.parametrize(
    ("metric", "conf", "values", "expected"),
    [
        ("test_perplexity_before_finetuning", "yang2018/moc", [57.4, 57.6], ("MoC", "57.55")),
        ("test_kld", "merity2018/softmax", [4.7, 4.8], ("softmax", "4.763")),
    ],
)
def test_every_published_kind_of_score_is_judged(tmp_path, metric, conf, values, expected):
    paths = write(tmp_path, "own", values, conf, metric=metric)
    found = verdict_of(paths, "yang2018", metric=metric)
    assert (found.published, found.theirs, found.verdict) == (*expected, "agrees")


@pytest.mark.parametrize(
    ("options", "layer"),
    [
        ({"arch": "awd_lstm_lm_softmax_ptb"}, ("softmax", "identity", "plain")),
        ({"arch": "awd_lstm_lm_sigsoftmax_ptb"}, ("softmax", "sigsoftmax", "plain")),
        ({"arch": "transformer_sigmoid_cap"}, ("softmax", "sigmoid_cap", "plain")),
        ({"arch": "awd_lstm_lm_mos_plif_ptb"}, ("mos", "plif", "plain")),
        ({"arch": "awd_lstm_lm_softmax_ptb", "head_pointwise": "gss"}, ("softmax", "gss", "plain")),
        ({"arch": "awd_lstm_lm_softmax_ptb", "head": "mos"}, ("mos", "identity", "plain")),
        ({"arch": "awd_lstm_lm_plif_ptb", "head": "mos"}, ("mos", "identity", "plain")),
        ({"arch": "transformer_unit"}, ("softmax", "identity", "unit")),
        ({"arch": "awd_lstm_lm_cooled_ptb"}, None),  # a layer of somebody's own
    ],
)
def test_the_layer_is_read_from_the_options_of_the_run(options, layer):
    assert _layer({f"train.{name}": value for name, value in options.items()}) == layer


def test_names_of_sources_are_shortened():
    assert paper_keys("Krause et al. 2018 by Yang et al. 2018") == {"krause2018", "yang2018"}
    assert paper_keys("Yang et al. 2019 (Mixtape)") == {"yang2019"}


def test_the_command_prints_verdicts_and_names_what_it_does_not_know(tmp_path):
    paths = write(tmp_path, "plif", [56.75, 56.9], "parthiban2021/plif_et", max_epoch=30)
    words = ["compare", *map(str, paths), "--paper"]
    done = highrank(*words, "parthiban2021")
    assert "| plif | 56.83 ± 0.11 (n = 2) | PLIF | 56.80 ± 0.11 (n = 11) | not" in done.output
    assert "plif: steps: max_epoch 30 (parthiban2021/plif_et: 1000)." in done.output
    done = highrank(*words, "parthiban2020")
    assert done.exit_code == 2 and "did you mean 'parthiban2021'" in done.output
    done = highrank(*words, "yang2019", "--task", "pbt")
    assert done.exit_code == 2 and "did you mean 'ptb'" in done.output
