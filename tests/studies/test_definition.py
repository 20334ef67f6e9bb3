"""Test studies/definition.py: members of a file, and what is refused with file and line."""

from types import SimpleNamespace

import pytest

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.studies import members
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import prepare
from tests.studies.stub import write_stub, write_study


@pytest.fixture
def folder(tmp_path):
    write_stub(tmp_path)
    return tmp_path


def read(folder, **tree):
    return read_study(write_study(folder, tree))


def test_grids_lists_and_seeds_become_members(folder):
    varied = [{"dropout": 0.5}, {"corpus.other_text": True}]
    systems = {
        "softmax": {"conf": "softmax", "seeds": [7]},
        "mos_k{head_components}": {"conf": "mos", "grid": {"head_components": [1, 2]}},
        "mixtape": {"conf": "mixtape", "set": {"lr": 3}, "list": varied},
    }
    study = read(folder, members=systems, seeds=[1, 2], set={"lr": 2, "bptt": 9})
    names = dict.fromkeys(member.name for member in study.members)
    assert list(names) == [
        "softmax-7", "mos_k1-1", "mos_k1-2", "mos_k2-1", "mos_k2-2",
        "mixtape_dropout_0.5-1", "mixtape_dropout_0.5-2",
        "mixtape_corpus_other_text_true-1", "mixtape_corpus_other_text_true-2",
    ]  # fmt: skip
    by_name = {member.name: member.changes for member in study.members}
    assert by_name["mos_k2-1"] == {"lr": 2, "bptt": 9, "head_components": 2}
    assert by_name["mixtape_dropout_0.5-2"] == {"lr": 3, "bptt": 9, "dropout": 0.5}


MOS = {"conf": "mos"}
PTB = {"recipe": "ptb"}


def of(name="a", **changes):
    return {"members": {name: MOS | changes}}


def test_options_that_are_paths_are_relative_to_the_file(folder, tmp_path, monkeypatch):
    (folder / "text").mkdir()
    study = read(folder, **of(), options={"data": "text", "scale": "small"})
    assert study.options == {"data": str(folder / "text"), "scale": "small"}
    monkeypatch.chdir(folder)
    file = write_study(folder, of())
    assert read_study(file, {"data": "stub"}).options == {"data": str(folder / "stub")}


def test_an_option_with_a_default_is_a_word_where_a_folder_has_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "small").mkdir()
    tree = of() | PTB | {"seeds": [1]}
    for study in (
        read(folder, **tree, options={"scale": "small"}),
        read_study(write_study(folder, tree), {"scale": "small"}),
    ):
        assert study.options == {"scale": "small"}
    key = prepare(study, folder / "exp")[0].key
    (folder / "small").rmdir()
    assert prepare(study, folder / "exp")[0].key == key


def test_the_options_of_a_grid_win_under_either_of_their_names(folder):
    tree = of(set={"train.lr": 2}, grid={"train.bptt": [7]})
    (member,) = read(folder, **tree, seeds=[1], set={"lr": 1, "bptt": 3}).members
    assert member.name == "a_bptt_7-1" and member.changes == {"lr": 2, "bptt": 7}


def test_options_of_a_recipe_from_the_environment_are_refused(folder, monkeypatch):
    file = write_study(folder, of() | PTB)
    monkeypatch.setenv("HIGHRANK_SET", "lr=3")
    with pytest.raises(ConfigurationError, match=r"HIGHRANK_SET in the environment .* unset it"):
        read_study(file)


def test_a_control_takes_the_size_of_its_dictionary(folder, monkeypatch):
    asked = []

    def match_configurations(*_, words, **__):
        asked.append(words)
        return SimpleNamespace(options={"head_embed_dim": 40})

    monkeypatch.setattr(members, "match_configurations", match_configurations)
    match = of(conf="yang2018/mos", match={"to": "small/softmax", "words": 500})
    prepare(read(folder, **match, **PTB), folder / "exp")
    assert asked == [500]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"members": {"a_lr_1": MOS, "a": MOS | {"grid": {"lr": [1]}}}},
         r"layers.yaml:\d+: members.a: a second member named a_lr_1"),
        (of(gird={}), r"yaml:\d+: members.a.gird: unknown key; did you"),
        (of() | {"seed": [1]}, r"yaml:\d+: seed: unknown key; did you mean"),
        ({"members": {"a": {"cnf": "mos"}}}, r"a.cnf: unknown key; did you mean 'conf'.$"),
        ({"members": {"a": "mos"}}, r"yaml:\d+: members.a: expected options, such as `KEY: VAL"),
        (of(match="mos"), r"match: expected options, such as `KEY: VAL"),
        (of() | {"seeds": [1, 1]}, "a seed is listed twice"),
        (of() | {"seeds": []}, r"yaml:\d+: seeds: List should have at least 1"),
        (of() | {"seeds": [-1]}, r"yaml:\d+: seeds.0: Input should be greater"),
        (of() | {"seeds": [2**32]}, r"yaml:\d+: seeds.0: Input should be less"),
        (of(seeds=[]), r"a.seeds: List should have at least 1"),
        (of() | {"set": {"seed": 4}}, "members.a: the seed is an option; list seeds"),
        (of(set={"lr": 1}, grid={"train.lr": [2]}),
         r"yaml:\d+: members.a: lr is in two of set, grid and list"),
        (of(list=[{"lr": 1}], grid={"lr": [2]}), "members.a: lr is in two of set, grid and list"),
        (of() | {"set": {"lr": 1, "train.lr": 2}},
         r"yaml:\d+: set: lr and train.lr are one option"),
        (of("a{lr.x}", grid={"lr": [1]}), "unknown option 'str' object"),
        (of() | {"options": {"conf": "mos"}}, "options.conf: the study itself gives"),
        ({"members": {}}, "members: Dictionary should have at least 1"),
        (of("a/b"), "'a/b' is not a valid member name"),
        (of("a_{k}", grid={"lr": [1]}), "unknown option 'k'; known: lr"),
        (of(set={"lr": None}),
         'set.lr: must be text, .*; write "null", with the quotes, to remove an option'),
        (of(grid={"lr": []}), "members.a.grid.lr: no values"),
        (of() | {"recipe": "ptbb"}, "neither a recipe nor .*; did you mean 'ptb'"),
        (of() | PTB | {"options": {"dta": "x"}}, r"yaml:\d+: options.dta: .*mean 'data'\?"),
        (of() | PTB | {"options": {"data": "x"}}, r"yaml:\d+: options.data: x: no such folder"),
        (of("mos") | {"baseline": "moss"}, r"layers.yaml:\d+: baseline: .* 'mos'\?"),
        # members that cannot be run
        (of(conf="moss"), "no such configuration; did you mean 'mos'"),
        (of(conf="conf/mos.yaml"), r"layers.yaml: a: conf conf/mos.yaml: expected the name"),
        ({"members": {"a": MOS, "b": MOS}}, "b-1 and a-1 are one run"),
        (of(grid={"lr": [1, 1.0]}), "a_lr_1.0-1 and a_lr_1-1 are one run"),
        (of(grid={"max_epok": [1]}),
         r"a_max_epok_1: --set max_epok=1: train.max_epok: fairseq-train has no"),
        (of(conf="small/mos", set={"evaluate.eval_streamz": 3}) | PTB,
         r"fairseq-eval-lm has no .* mean 'eval_streams'"),
        (of() | PTB, r"no such configuration; there are: .*small/mos"),
        (of(conf="yang2018/mos", match={"to": "small/softmax"}) | PTB,
         r"yaml: a: match: the dictionaries differ: 10,0"),
    ],
)  # fmt: skip
def test_invalid_studies_are_refused(folder, tree, message):
    with pytest.raises(ConfigurationError, match=message):
        prepare(read(folder, **tree), folder / "exp")


def test_a_missing_study_is_refused(folder):
    write_study(folder, of())
    with pytest.raises(
        ConfigurationError, match=r"layer.yaml: no such configuration; did you mean 'layers'\?"
    ):
        read_study(folder / "layer.yaml")


def test_a_configuration_is_the_one_that_the_recipe_reads(folder):
    study = read(folder, **of(), **PTB, options={"scale": "small"})
    assert prepare(study, folder / "exp")[0].settings.train["head_components"] == 4
