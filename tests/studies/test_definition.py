"""Test studies/definition.py and members.py: members of a file, their keys, and refusals."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.common.files import files_digest
from highrank_plugins.studies import members
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import find_configuration, prepare
from highrank_plugins.training import configuration
from tests.studies.stub import write_stub, write_study

MOS, LM = {"conf": "mos"}, {"conf": "awd_lstm/mos"}
PTB = {"recipe": "ptb"}


@pytest.fixture
def folder(tmp_path):
    write_stub(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a b\n")
    return tmp_path


def read(folder, **tree):
    return read_study(write_study(folder, tree))


def of(name="a", **changes):
    return {"members": {name: MOS | changes}}


def test_grids_lists_and_seeds_become_members(folder):
    varied = [{"train.dropout": 0.5}, {"corpus.other_text": True}]
    systems = {
        "softmax": {"conf": "softmax", "seeds": [7]},
        "mos_k{head_components}": {"conf": "mos", "grid": {"head_components": [1, 2]}},
        "mixtape": {"conf": "mixtape", "set": {"train.lr": 3}, "list": varied},
    }
    systems["mos_k{head_components}"]["set"] = {"head_components": 7}  # the grid has the last word
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


def test_options_are_paths_from_the_file_or_from_here_unless_their_default_is_a_word(
    folder, monkeypatch
):
    study = read(folder, **of(), options={"data": "text", "scale": "small"})
    assert study.options == {"data": str(folder / "text"), "scale": "small"}
    monkeypatch.chdir(folder)
    assert read_study(study.file, {"data": "stub"}).options["data"] == str(folder / "stub")
    (folder / "small").mkdir()
    tree = of() | PTB | {"seeds": [1]}
    study = read(folder, **tree, options={"scale": "small"})
    given = read_study(write_study(folder, tree), {"scale": "small"})
    assert study.options == given.options == {"scale": "small"}
    (member,) = prepare(study, folder / "exp")
    assert member.settings.train["head_components"] == 4, "conf/small/mos.yaml"
    (folder / "small").rmdir()
    assert prepare(study, folder / "exp")[0].key == member.key


def test_a_control_takes_the_size_of_its_dictionary_and_is_solved_for_once(folder, monkeypatch):
    asked = []

    def solve(_, __, by, words, free, step):
        asked.append(words)
        assert (by, free, step) == ("parameters", [], 4)
        return SimpleNamespace(options={"head_embed_dim": 40})

    monkeypatch.setattr(members, "solve", solve)
    tree = of(conf="yang2018/mos", match={"to": "small/softmax", "words": 500}) | PTB
    for _ in range(2):
        found = prepare(read(folder, **tree), folder / "exp")
        assert found[0].settings.train["head_embed_dim"] == 40 and asked == [500]
    tree["members"]["a"]["match"]["words"] = 501
    prepare(read(folder, **tree), folder / "exp")
    assert asked == [500, 501]
    monkeypatch.setattr(members, "COUNTED", 0)  # a revision that counts in another way
    prepare(read(folder, **tree), folder / "exp")
    assert asked == [500, 501, 501]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"members": {"a_lr_1": MOS, "a": MOS | {"grid": {"lr": [1]}}}},
         r"layers.yaml:\d+: members.a: a second member named a_lr_1"),
        (of(gird={}), r"yaml:\d+: members.a.gird: unknown key; did you"),
        (of() | {"seeds": [1, 1]}, "seeds: 1 is listed twice"),
        (of() | {"set": {"seed": 4}}, "members.a: the seed is an option; list seeds"),
        (of() | {"set": {"lr": 1, "train.lr": 2}}, r"\d+: set: lr and train.lr are one option"),
        (of() | {"options": {"conf": "mos"}}, "options.conf: the study itself gives"),
        (of("a/b"), "'a/b' is not a valid member name"),
        (of() | {"recipe": "ptbb"}, "neither a recipe nor .*; did you mean 'ptb'"),
        (of() | PTB | {"options": {"dta": "x"}}, r"yaml:\d+: options.dta: .*mean 'data'\?"),
        (of() | PTB | {"options": {"data": "x"}}, r"yaml:\d+: options.data: x: no such folder"),
        (of("mos") | {"baseline": "moss"}, r"layers.yaml:\d+: baseline: .* 'mos'\?"),
        # members that cannot be run
        (of(conf="moss"), "no such configuration; did you mean 'mos'"),
        (of(conf="stub/conf/mos.yaml"), "no such configuration; there are: mixtape, mos, softmax"),
        ({"members": {"a": MOS, "b": MOS}}, "b-1 and a-1 are one run"),
        (of(conf="small/mos", set={"evaluate.eval_streamz": 3}) | PTB,
         r"unrecognized arguments: .* mean .--eval-streams"),
        (of(conf="yang2018/mos", match={"to": "small/softmax"}) | PTB,
         r"yaml: a: match: the dictionaries differ: 10,0"),
    ],
)  # fmt: skip
def test_invalid_studies_are_refused(folder, monkeypatch, tree, message):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigurationError, match=message):
        prepare(read(folder, **tree), folder / "exp")


def test_a_huge_file_is_refused(folder):
    (file := write_study(folder, of())).write_text("a: " + "1" * (1 << 20))
    with pytest.raises(ConfigurationError, match=r"1\.0 MB are read at most"):
        read_study(file)


ROOT = Path(__file__).parents[2]
STUDIES = sorted(ROOT.glob("recipes/*/studies/*.yaml"))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: f"{file.parts[-3]}/{file.stem}")
def test_every_shipped_study_is_valid(file):
    study = read_study(file)
    assert study.recipe == file.parents[1]
    assert study.settings.baseline in {member.system for member in study.members}
    texts = []
    for member in study.members:
        sets = [f"{name}={value}".lower() for name, value in member.changes.items()]
        conf = find_configuration(study.recipe, member.conf)
        settings = configuration.load(conf, [*sets, f"seed={member.seed}"])
        texts.append((settings.text(), str(member.match)))
    assert len({*texts}) == len(texts)
    page = (ROOT / "docs" / "howto" / "studies.md").read_text(encoding="utf-8")
    assert f"`recipes/{study.recipe.name}/studies/{file.name}`" in page


def key_of(folder, **changes):
    files_digest.cache_clear()
    (member,) = prepare(read(folder, **of("mos") | {"seeds": [1]} | changes), folder / "exp")
    return member.key


def test_everything_that_numbers_depend_on_changes_the_key_and_nothing_else(folder, monkeypatch):
    data = {"options": {"data": "text"}}
    keys = [key_of(folder), key_of(folder, set={"lr": 2}), key_of(folder, seeds=[2])]
    keys += [key_of(folder, options={"scale": "small"}), key_of(folder, **data)]
    keys.append(key_of(folder, threads=2))
    monkeypatch.chdir(folder / "text")
    keys.append(key_of(folder, options={"corpus": ""}))
    (folder / "text" / "more").write_text("of the folder where the command is given")
    assert key_of(folder, options={"corpus": ""}) == keys[-1]
    (folder / "text" / "more").unlink()
    (folder / "text" / "train.txt").write_text("a c\n")
    keys.append(key_of(folder, **data))
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "true\n")
    keys.append(key_of(folder))
    # say which files of the data are read, and the options of each size of text
    for name in ("corpus.yaml", "corpus_small.yaml", "sizes.yaml"):
        (folder / "stub" / name).write_text("texts: {}\n")
        keys.append(key_of(folder, **data))
    own = {"set": {"user_dir": str(folder / "own")}}
    (folder / "own").mkdir()
    for line in ("X = 1", "X = 2"):
        (folder / "own" / "layer.py").write_text(line)
        (folder / "own" / "notes.txt").write_text(line)
        keys.append(key_of(folder, **own))
        (folder / "own" / "notes.txt").write_text("words")
        assert key_of(folder, **own) == keys[-1]

    key = key_of(folder, **data)
    assert key == keys[-3]
    (folder / "text").rename(folder / "moved")
    script.write_text(script.read_text() + "# more words\n")
    renamed = {"members": {"other": MOS | {"set": {"lr": 1}}}, "baseline": "other"}
    assert key_of(folder, options={"data": "moved"}, **renamed) == key

    own = ROOT / "recipes" / "own_language_model"  # whose option data has a default
    for name, text in (("moved", "a d\n"), ("moved", "a e\n"), ("moved/train", "a f\n")):
        (folder / "moved" / "train.txt").write_text(text)
        changes = {"recipe": str(own), "options": {"data": name}, "members": {"a": LM}}
        keys.append(key_of(folder, **changes))
    assert len({*keys}) == len(keys)

    monkeypatch.setattr(members, "NUMERICS_VERSION", members.NUMERICS_VERSION + 1)
    keys.append(key_of(folder))
    monkeypatch.setattr(members, "version", lambda package: f"{package} of tomorrow")
    keys.append(key_of(folder))
    assert len({*keys}) == len(keys)
    monkeypatch.setattr(members, "RECIPES", folder)  # ours count by NUMERICS_VERSION
    key = key_of(folder)
    script.write_text(script.read_text() + "true\n")
    assert key_of(folder) == key
