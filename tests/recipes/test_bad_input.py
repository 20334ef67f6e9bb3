"""What recipes refuse before anything is trained: text, data folders, wheels, networks."""

import gzip
import hashlib
import shutil

import pytest

from tests.recipes.running import (
    RECIPES,
    REPOSITORY,
    accept,
    overrides,
    raw_text,
    recipe,
    refused,
    run,
    stages_done,
)
from tests.recipes.test_extract import many, write_wheel

MULTI30K, UI_STRINGS = "multi30k_en_de", "ui_strings_en_de"


@pytest.fixture
def multi30k(tmp_path):
    """Run stages 0 and 1 on the text in `data`."""
    accept(MULTI30K, "softmax", tmp_path / "exp" / MULTI30K / "softmax", overrides())
    data = raw_text(tmp_path / "data")

    def words(*arguments: object):
        where = ["--exp-dir", tmp_path / "exp", "--conf", "softmax", "--stop-stage", 1]
        where += ["--text", "any"]
        return recipe(MULTI30K, *where, *arguments, settings=overrides())

    def start(*arguments: object):
        return run(words(*arguments))

    def refuse(*arguments: object, says: str):
        return refused(words(*arguments), *says.format(data=data).split("|"))

    start.words, start.refused = words, refuse
    start.data, start.exp = data, tmp_path / "exp"
    start.run_dir = start.exp / MULTI30K / "softmax"
    return start


def test_plain_and_compressed_text_are_the_same(multi30k):
    assert stages_done(multi30k("--data", multi30k.data)) == [0, 1]
    for path in list(multi30k.data.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    result = multi30k("--data", multi30k.data)
    assert stages_done(result) == [0]  # the names of the inputs have changed, the text has not


ELSEWHERE = ["../../outside", "/outside", "..", "small/../../x", ".", "./x", "x/."]
DATA = "--data {data}"


@pytest.mark.parametrize(("words", "message"), [
    ("", "--data DIR is required|{{train,valid,test2016}}.{{en,de}}"),
    (f"{DATA}/x --stage 0", "--data {data}/x: no such folder"),
    (f"{DATA}/x --stage 1", "--data {data}/x: no such folder"),
    (f"{DATA} --text published", "{data}/train.en is not train.en of Multi30k|--text any"),
    (f"{DATA} --text whole", "--text 'whole': choose published or any"),
    (f"{DATA} --conf ../conf/softmax", "--conf '../conf/softmax': expected a name"),
    *(
        (f"{DATA} --name {name}", f"--name '{name}': expected a name, or a path without '..'")
        for name in ELSEWHERE
    ),
    (f"{DATA} --conf mixtpe", "mixtpe.yaml: no such configuration; did you mean 'mixtape'?"),
    (f"{DATA} --set data.vocabsize=3", "data.vocabsize: unknown key; did you mean 'vocab_siz"),
    (f"{DATA} --launch=--gpus-per-nod=8", "No such option: --gpus-per-nod"),
    (f"{DATA} --launch=--processes=0", "--launch: highrank launch refuses|'--processes'"),
    (f"{DATA} --launch=--nodes=4", "--nodes 4: name the address where they meet"),
    (f"{DATA} --launch=--submit", "need --slurm FILE"),
    (f"{DATA} --set launch.processes=2 --launch=--gpus-per-node=2", "exclude each other"),
])  # fmt: skip
def test_wrong_options_are_refused(multi30k, words, message):
    said = multi30k.refused(*words.format(data=multi30k.data).split(), says=message)
    assert "done in" not in said
    assert (multi30k.run_dir / "config.yaml").exists()  # of an earlier run
    assert not (multi30k.run_dir / "text").exists()


@pytest.mark.parametrize("name", ELSEWHERE[:2])
def test_a_name_of_the_environment_that_leads_elsewhere_is_refused(multi30k, name):
    words = multi30k.words("--data", multi30k.data)
    refused(words, f"--name '{name}': expected a name", HIGHRANK_NAME=name)


def spoil(data, file: str, more: bytes | None, compressed: bool = False) -> None:
    """Append to a file, or remove it; `compressed` first writes it as NAME.gz."""
    path = data / file
    content = path.read_bytes()
    path.unlink()
    if more is not None and compressed:
        path.with_name(f"{file}.gz").write_bytes(gzip.compress(content + more))
    elif more is not None:
        path.write_bytes(content + more)


@pytest.mark.parametrize(("files", "message"), [
    ({"valid.de": None}, "neither {data}/valid.de nor {data}/valid.de.gz exists"),
    ({"valid.en": b"One more.\n"}, "{data}/valid.en:31: this line has no partner"),
    ({"train.de": b"sch\xf6n\n", "train.en": b"nice\n"},
     "{data}/train.de:251:4: byte 0xf6 is not UTF-8"),
    ({"train.de": b"\n", "train.en": b"nice\n"}, "{data}/train.de:251:1: empty line"),
    ({"valid.en": b"a\r\n", "valid.de": b"a\n"}, "{data}/valid.en.gz:31:|carriage return"),
])  # fmt: skip
def test_the_error_about_bad_text_names_the_given_file(multi30k, files, message):
    for file, more in files.items():
        spoil(multi30k.data, file, more, compressed=more == b"a\r\n")
    said = multi30k.refused("--data", multi30k.data, says=message)
    assert "configuration softmax" not in said  # before its slow check
    assert not (multi30k.run_dir / "text").exists()


def test_the_published_text_may_lack_blanks_at_the_ends_of_lines(tmp_path, multi30k):
    repository = tmp_path / "repository"
    here = repository / "recipes" / MULTI30K
    shutil.copytree(RECIPES, here.parent)
    for entry in {*REPOSITORY.iterdir()} - {RECIPES}:
        (repository / entry.name).symlink_to(entry)
    files = sorted(multi30k.data.iterdir())
    rows = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files]
    (here / "text.sha256").write_text("\n".join(rows))
    command = recipe(MULTI30K, "--data", multi30k.data, "--exp-dir", tmp_path / "exp")
    command[1] = str(here / "run.sh")
    command += ["--conf", "softmax", "--stop-stage", "0"]
    test = multi30k.data / "test2016.de"
    test.write_bytes(test.read_bytes().replace(b"\n", b" \n", 3))
    assert stages_done(run(command)) == [0]
    test.write_bytes(b"".join(test.read_bytes().splitlines(keepends=True)[:-1]))
    source = multi30k.data / "test2016.en"
    source.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:-1]))
    refused(command, f"{source} is not test2016.en of Multi30k")


def test_a_refused_configuration_leaves_no_directory(multi30k):
    shutil.rmtree(multi30k.exp)
    for _ in range(2):
        multi30k.refused("--data", multi30k.data, "--set", "data.vocabsize=3", says="vocabsize")
        assert not multi30k.exp.exists()


def test_a_dry_run_of_the_launch_does_nothing(multi30k):
    shutil.rmtree(multi30k.exp)
    words = "--nodes 2 --processes 2 --rendezvous node1:29500 --dry-run"
    result = multi30k("--data", multi30k.data, f"--launch={words}")
    assert "# rank 3: node 1" in result.stdout and "# on each of 2 nodes:" in result.stdout
    assert result.stderr.splitlines()[-1].endswith("nothing was done: --launch has --dry-run")
    assert not multi30k.exp.exists()


@pytest.fixture
def ui_strings(tmp_path):
    """Run stages 0 and 1 without network; return the words for a wheel made here."""
    settings = overrides(data__vocab_size=30)
    accept(UI_STRINGS, "mixtape", tmp_path / "exp" / UI_STRINGS / "mixtape", settings)
    wheel = write_wheel(tmp_path / "home.whl", {"a": many(400)})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def start(*arguments: object, code: int = 0):
        words = ["--exp-dir", tmp_path / "exp", "--stop-stage", 1, *arguments]
        no_network = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
        return run(recipe(UI_STRINGS, *words, settings=settings), code, **no_network)

    start.wheel, start.right = wheel, ["--wheel", wheel, "--wheel-sha256", digest]
    start.run_dir = tmp_path / "exp" / UI_STRINGS / "mixtape"
    return start


def test_strings_are_taken_from_a_local_wheel(ui_strings):
    result = ui_strings(*ui_strings.right)
    assert stages_done(result) == [0, 1]
    assert "400 pairs" in result.stderr
    assert stages_done(ui_strings(*ui_strings.right)) == []


@pytest.mark.parametrize(
    ("wheel", "message"),
    [("{}", "{} is not the wheel that was tested"), ("no.whl", "--wheel no.whl: no such file")],
)
def test_another_wheel_is_refused(ui_strings, wheel, message):
    said = ui_strings("--wheel", wheel.format(ui_strings.wheel), code=2).stderr
    assert message.format(ui_strings.wheel) in said
    assert not (ui_strings.run_dir / "text").exists()


def test_without_a_network_the_error_says_which_file_to_put_where(ui_strings):
    said = ui_strings(code=2).stderr
    place = ui_strings.run_dir.parent / "download" / "homeassistant-2026.11.0-py3-none-any.whl"
    assert str(place) in said and "--wheel FILE" in said
    assert not (ui_strings.run_dir / "text").exists()
