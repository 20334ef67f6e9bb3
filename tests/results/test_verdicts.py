"""Test results/verdicts.py: what agrees, what differs, and what cannot be compared."""

import hashlib
import json
import re
from argparse import Namespace
from functools import cache

import pytest
import yaml
from fairseq.models import ARCH_CONFIG_REGISTRY

import highrank_plugins
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.reports.comparisons import published_table
from highrank_plugins.reports.tables import to_markdown
from highrank_plugins.results import verdicts
from highrank_plugins.results.comparison import compare_records
from highrank_plugins.results.doubts import flat_settings
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.published import BENCHMARKS, FILE, read_published
from highrank_plugins.results.verdicts import judge, paper_keys
from highrank_plugins.training import configuration
from tests.cli import highrank
from tests.recipes.running import RECIPES
from tests.results.entries import published, record_of


def write(folder, conf, values, system="own", parameters=None, metric="test_perplexity", **changes):
    """Write records of a published configuration, TASK/PAPER/NAME, one per value."""
    sets = [f"{name.replace('__', '.')}={value}" for name, value in changes.items()]
    task, _, name = conf.partition("/")
    paths = []
    for seed, value in enumerate(values, start=1):
        path = RECIPES / task / "conf" / f"{name}.yaml"
        settings = configuration.load(path, [*sets, f"seed={seed}"])
        record = record_of(
            {metric: value}, seed, config=settings.blocks(),
            signatures={"test_perplexity": "tokens:82430|eval:static"},
            command=f"fairseq-train exp/{task}/a/data-bin",
            train={"parameters": parameters},
        )  # fmt: skip
        paths.append(folder / f"{system}-{seed}.json")
        paths[-1].write_text(json.dumps(record))
    return paths


PLIF, MIXTAPE = "ptb/parthiban2021/plif_et", "ptb/yang2019/mixtape"
OF_PLIF, OF_MATCHED = "56.80 ± 0.11 (n = 11)", "ptb/parthiban2021/matched_softmax_et"
RANGE, NOT = "95% of further runs lie in [56.5", "not comparable"
WMT, SOFTMAX = "wmt14_en_de/yang2019/mixtape", "ptb/merity2018/softmax"


@pytest.fixture(autouse=True)
def _read_once(monkeypatch):
    monkeypatch.setattr(verdicts, "read_published", published)
    monkeypatch.setattr(verdicts, "configuration", Namespace(load=LOAD))


LOAD = cache(configuration.load)


# configuration, its paper, our scores, options that differ; verdict, why, the paper's score, detail
@pytest.mark.parametrize(("conf", "paper", "values", "more", "verdict", "why", "theirs", "said"), [
    (PLIF, "", [56.75, 56.9, 56.8], {}, "agrees", "p = ", OF_PLIF, "are the paper's or its code"),
    (PLIF, "", [57.9], {}, "differs", RANGE, OF_PLIF, ""),
    (MIXTAPE, "", [56.4], {}, NOT, "one run each", "56.37", "the text has a gain of 2.8 over MoS"),
    # a score of another kind is shown and not compared
    (WMT, "", [29.2, 29.4], {"metric": "sacrebleu"}, NOT, "other signature", "29.3",
     "own: signature: sacreBLEU (paper: BLEU of an unstated kind)."),
    (PLIF, "", [56.8, 56.9], {"max_epoch": 30}, NOT, "other steps", OF_PLIF,
     "own: steps: max_epoch 30 (parthiban2021/plif_et: 1000)."),
    # other settings are named but compared
    (PLIF, "", [56.8, 56.9], {"dropout": 0.3}, "agrees", ", other settings", OF_PLIF,
     "own: settings: dropout 0.3 (parthiban2021/plif_et: unset)."),
    # sizes are compared where both are known; one does not choose an entry without a size
    (OF_MATCHED, "", [56.4, 56.5], {"parameters": 17.5e6}, "agrees", "p = ", "56.45 ± ",
     "softmax, 17.56M parameters: "),
    ("ptb/parthiban2021/gss_et", "", [57.0, 57.1], {"parameters": 99e6}, NOT, "other parameters",
     "(n = 11)", "99.00 M (paper: 24"),
    # sentences in a batch change no translation, and a paper's number of parameters is wrong
    ("wmt14_en_de/ott2018/softmax", "", [29.2, 29.4],
     {"metric": "bleu_compound_split", "generate__batch_size": 8}, "agrees", "", "29.3", ""),
    ("ptb/parthiban2021/gss_et", "yang2019", [56.4], {}, NOT, "has no such layer", "–", ""),
    # where the settings come from
    (MIXTAPE, "", [56.4], {"head_gate_dropout": 0.5}, NOT, "", "56.37",
     "our guesses, which the paper does not print: arch, head_gate_dim"),
    # a finetuned run is compared with a finetuned one
    ("ptb/yang2018/mos", "", [54.4, 54.6], {}, "agrees", "", "54.44", "MoS, K = 15, finetuned: "),
    ("ptb/yang2018/moc", "", [56.4, 56.6], {}, NOT, "other steps", "57.55",
     "own: steps: finetuned (paper: not finetuned)."),
    (SOFTMAX, "yang2018", [4.7, 4.8], {"metric": "test_kld"}, "agrees", "", "4.763", ""),
])  # fmt: skip
def test_runs_are_judged(tmp_path, conf, paper, values, more, verdict, why, theirs, said):
    compared = compare_records(write(tmp_path, conf, values, **more), more.get("metric"))
    (found,) = judge(compared, paper or conf.split("/")[1], conf.split("/")[0])
    details = " ".join(found.details)
    assert verdict in found.verdict and why in found.why, found
    assert theirs in found.theirs and said in details and "batch_size" not in details, found


def settings_of(path):
    """Return a configuration's settings with those of its architecture, which states dropouts."""
    blocks = configuration.load(path).blocks()
    config = Namespace(**blocks["train"])
    ARCH_CONFIG_REGISTRY[config.arch](config)
    return flat_settings({"config": {**blocks, "train": vars(config)}})


def test_every_origin_names_a_configuration_and_its_options():
    highrank_plugins.register()
    confs = [path for path in RECIPES.glob("*/conf/*/*.yaml") if path.stem[:4] != "base"]
    names = {path: f"{path.parts[-4]}/{path.parts[-2]}/{path.stem}" for path in confs}
    for pattern, origin in read_tree(verdicts._SETTINGS).values.items():
        found = [path for path, name in names.items() if re.fullmatch(pattern, name)]
        assert found and origin.keys() <= {"departs", "source", "guesses"}, pattern
        blocks = [settings_of(path) for path in found]
        for option, (ours, printed) in origin.get("departs", {}).items():
            assert {block[f"train.{option}"] for block in blocks} == {ours} != {printed}, pattern
        for option in origin.get("guesses", []):
            name = option if "." in option else f"train.{option}"
            assert any(name in block for block in blocks), (pattern, option)


def test_the_command_prints_verdicts_and_names_what_it_does_not_know(tmp_path):
    assert paper_keys("Krause et al. 2018 by Yang et al. 2018 (X)") == {"krause2018", "yang2018"}
    paths = write(tmp_path, PLIF, [56.75, 56.9], "plif", max_epoch=30)
    words = ["compare", *map(str, paths), "--paper"]
    done = highrank(*words, "parthiban2021")
    assert "| plif | 56.83 ± 0.11 (n = 2) | PLIF | 56.80 ± 0.11 (n = 11) | not" in done.output
    assert "plif: steps: max_epoch 30 (parthiban2021/plif_et: 1000)." in done.output
    done = highrank(*words, "parthiban2020")
    assert done.exit_code == 2 and "did you mean 'parthiban2021'" in done.output
    done = highrank(*words, "yang2019", "--task", "pbt")
    assert done.exit_code == 2 and "did you mean 'ptb'" in done.output


# -- the papers' scores: each kind in its column, each with a source --


def table(task, ours):
    return to_markdown([published_table(task, ours)])


@pytest.mark.parametrize("task", read_tree(FILE).values)
def test_entries_are_complete_and_belong_to_a_recipe(task):
    assert (RECIPES / task).is_dir()
    names = [(entry.system, entry.source) for entry in read_published(task)]
    assert len(set(names)) == len(names)
    for entry in read_published(task):
        assert entry.source and entry.table
        assert entry.scores.keys() <= KINDS.keys()
        assert entry.deviations.keys() <= entry.scores.keys()
        assert (entry.seeds > 1) == bool(entry.deviations)
        named = {*entry.scores, *entry.cells}
        assert not entry.cells.keys() & KINDS.keys()
        assert entry.elsewhere.keys() <= named
        assert entry.table not in entry.also and (entry.scores or not entry.also)
        assert entry.errata.keys() <= named | {"parameters"}
        assert named
        if entry.conf is not None:
            assert (RECIPES / task / "conf" / f"{entry.conf}.yaml").is_file(), entry.conf


def cells_of(task, metrics):
    """Return the headings, and the cells of a run by heading."""
    head, _, run, *_ = table(task, {"exp/mos": metrics}).splitlines()
    headings = head.strip("| ").split(" | ")
    return headings, dict(zip(headings, run[2:-2].split(" | "), strict=True))


PPL = ["valid ppl", "test ppl", "test ppl (cache)", "test ppl (dynamic)", "rank"]
SIMILAR = {f"similarity_{file}": 0.25 for file in BENCHMARKS}


@pytest.mark.parametrize(
    ("task", "metrics", "headings", "shown"),
    [
        ("wmt14_en_de", {"sacrebleu": 20.04, "chrf": 50.0, "bleu_compound_split": 21.0},
         ["sacrebleu", "compound_split", "unstated"],
         {"sacrebleu": "20.0", "compound_split": "21.0", "unstated": "", "source": "this run"}),
        ("ptb", {"valid_dynamic_perplexity": 48.333, "valid_rank": 9981, "valid_kld": 5.4}, None,
         {"valid ppl (dynamic)": "48.33", "valid rank": "9,981", "valid KLD": "5.400"}),
        ("ptb", {"test_perplexity": 54.4, "test_perplexity_before_finetuning": 55.9}, PPL,
         {"system": "exp/mos, before finetuning", "test ppl": "55.90"}),
        ("ptb", SIMILAR, None, {f"similarity_{name}": "0.2500" for name in BENCHMARKS.values()}),
    ],
)  # fmt: skip
def test_each_kind_of_score_has_its_column(task, metrics, headings, shown):
    found, cells = cells_of(task, metrics)
    assert headings is None or found == ["system", *headings, "source"]
    assert shown.items() <= cells.items()


def test_the_numbers_are_those_that_were_compared_with_the_papers():
    """After a change, compare the cell with its table and its errata, then print this again.

    What follows from other cells was recomputed once: p-values, ranks of a softmax, parameters,
    perplexities with the right count of tokens, gains, times, slowdowns and counts of knots.
    """
    tasks = read_tree(FILE).values
    used = {kind for task in tasks for entry in published(task) for kind in entry.scores}
    assert used == set(KINDS)
    text = yaml.safe_dump(tasks, sort_keys=True, allow_unicode=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "4c76fa363f2f615c"
