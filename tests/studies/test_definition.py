"""Test studies/definition.py and members.py: members of a file, their keys, and refusals."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import highrank_plugins
from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.studies import members
from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import files_digest, find_configuration, prepare
from highrank_plugins.training import configuration
from tests.studies.stub import write_stub, write_study


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
        ({"members": {"a": "mos"}}, r"yaml:\d+: members.a: Input should be a valid dict"),
        (of(match="mos"), r"match: Input should be a valid dict"),
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
        (of(set={"lr": None}), "set.lr: must be text"),
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
         r"a_max_epok_1: --set max_epok=1: train.max_epok: unrecognized"),
        (of(conf="small/mos", set={"evaluate.eval_streamz": 3}) | PTB,
         r"unrecognized arguments: .* mean .--eval-streams"),
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
        ConfigurationError, match=r"layer.yaml: no such study; did you mean 'layers'\?"
    ):
        read_study(folder / "layer.yaml")


def test_a_configuration_is_the_one_that_the_recipe_reads(folder):
    study = read(folder, **of(), **PTB, options={"scale": "small"})
    assert prepare(study, folder / "exp")[0].settings.train["head_components"] == 4


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
        settings = configuration.load(
            find_configuration(study.recipe, member.conf), [*sets, f"seed={member.seed}"]
        )
        texts.append((settings.text(), str(member.match)))
    assert len({*texts}) == len(texts)
    assert f"`recipes/{study.recipe.name}/studies/{file.name}`" in (
        ROOT / "docs" / "howto" / "studies.md"
    ).read_text(encoding="utf-8")


MEMBERS = {"members": {"mos": {"conf": "mos"}}, "seeds": [1]}


def key_of(folder, **changes):
    files_digest.cache_clear()
    (member,) = prepare(read(folder, **MEMBERS | changes), folder / "exp")
    return member.key


@pytest.fixture
def folder(tmp_path):
    write_stub(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a b\n")
    return tmp_path


def test_everything_that_numbers_depend_on_changes_the_key(folder, monkeypatch):
    data = {"options": {"data": "text"}}
    keys = [key_of(folder), key_of(folder, set={"lr": 2}), key_of(folder, seeds=[2])]
    keys += [key_of(folder, options={"scale": "small"}), key_of(folder, **data)]
    keys.append(key_of(folder, threads=2))
    (folder / "text" / "train.txt").write_text("a c\n")
    keys.append(key_of(folder, **data))
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "true\n")
    keys.append(key_of(folder))
    for name in ("corpus.yaml", "corpus_small.yaml"):  # say which files of the data are read
        (folder / "stub" / name).write_text("texts: {}\n")
        keys.append(key_of(folder, **data))
    monkeypatch.setattr(members, "NUMERICS_VERSION", members.NUMERICS_VERSION + 1)
    keys.append(key_of(folder))
    monkeypatch.setattr(members, "version", lambda package: f"{package} of tomorrow")
    keys.append(key_of(folder))
    assert len({*keys}) == len(keys)


def test_names_places_and_comments_do_not_change_the_key(folder):
    key = key_of(folder, options={"data": "text"})
    (folder / "text").rename(folder / "moved")
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "# more words\n")
    renamed = {"members": {"other": {"conf": "mos", "set": {"lr": 1}}}}
    assert key_of(folder, options={"data": "moved"}, baseline="other", **renamed) == key


def test_a_changed_recipe_of_the_repository_keeps_the_key(folder, monkeypatch):
    monkeypatch.setattr(members, "RECIPES", folder)
    key = key_of(folder)
    script = folder / "stub" / "run.sh"
    script.write_text(script.read_text() + "true\n")
    assert key_of(folder) == key


def test_a_changed_module_keeps_the_keys_and_code_of_the_user_does_not(folder):
    own = folder / "own"
    (own / "__pycache__").mkdir(parents=True)
    (own / "layer.py").write_text("X = 1\n")
    file = write_study(folder, MEMBERS | {"set": {"user_dir": str(own)}})
    package = folder / "changed" / "highrank_plugins"
    shutil.copytree(Path(highrank_plugins.__file__).parent, package)
    keys = "import sys; from pathlib import Path; import highrank_plugins\n"
    keys += "from highrank_plugins.studies import definition, members\n"
    keys += "study = definition.read_study(Path(sys.argv[1]))\n"
    keys += "found = [m.key for m in members.prepare(study, Path('exp'))]\n"
    keys += "import json; print(json.dumps([highrank_plugins.__file__, found]))"

    def ask():
        command = [sys.executable, "-c", keys, str(file)]
        return json.loads(subprocess.check_output(command, cwd=package.parent))

    before = ask()
    assert before[0] == str(package / "__init__.py")
    for module in ("heads/base.py", "results/scoring.py", "studies/runner.py"):
        (package / module).write_text((package / module).read_text() + "\nX = 2\n")
    (own / "__pycache__" / "layer.pyc").write_bytes(b"")
    (own / "notes.txt").write_text("words")
    assert ask() == before
    (own / "layer.py").write_text("X = 2\n")
    assert ask()[1] != before[1]


@pytest.mark.parametrize("same", [("1e-3", 0.001), ("1E1", 10), (10.0, 10), ("-2e+1", -20)])
def test_one_number_written_in_two_ways_has_one_key(folder, same):
    first, second = (key_of(folder, set={"lr": value}) for value in same)
    assert first == second != key_of(folder, set={"lr": 7})


def test_names_that_resemble_numbers_are_text(folder):
    names = ["1", "1e", "e1", "1e1.pt"]
    assert len({key_of(folder, set={"restore_file": name}) for name in names}) == len(names)
