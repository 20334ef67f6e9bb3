"""The WMT recipes from archives to scores: whole, killed, on archives that have changed."""

import json
import shutil
import signal

import pytest

from tests.recipes.running import (
    RECIPES,
    SMALL,
    accept,
    begin,
    kill_when,
    raw_text,
    recipe,
    refused,
    run,
    stages_done,
    write_program,
)
from tests.recipes.wmt_corpus import publish

NAME, CONF = "wmt14_en_de", "small/mixtape"
SETTINGS = [f"{name}={value}" for name, value in SMALL.items()]
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("wmt")]
whole = pytest.mark.long


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("wmt published") / "archives")  # a space in every path


def start(folder, corpus, *words: object, settings=SETTINGS) -> list[str]:
    """Return the command of a run in `folder`, with an accepted configuration."""
    run_dir = folder / "exp" / NAME / "run"
    if not run_dir.exists():
        accept(NAME, CONF, run_dir, settings)
    words = ("--scale", "small", "--corpus", corpus, "--exp-dir", folder / "exp", *words)
    return recipe(NAME, *words, "--name", "run", settings=settings)


def prepared(folder):
    (found,) = (folder / "exp" / NAME).glob("prepared-*")
    return found


def content(folder):
    """Return a stage's output, without its log."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("wmt whole")
    return folder, run(start(folder, corpus))


@whole
def test_all_stages_run_once_and_another_run_shares_the_data(finished, corpus):
    folder, result = finished
    run_dir = folder / "exp" / NAME / "run"
    assert stages_done(result) == [0, 1, 1, 2, 3, 4, 5, 6]
    record = json.loads((run_dir / "results.json").read_text())
    last = result.stdout.splitlines()[-1]
    assert last == f"sacreBLEU {record['metrics']['sacrebleu']} {record['signature']}"
    names = {"sacrebleu", "chrf", "bleu_tokenised", "bleu_compound_split"}
    assert record["metrics"].keys() == names
    assert "| Transformer big, softmax |" in result.stdout  # the papers' scores next to ours
    assert "all: 250 of 254 pairs kept" in result.stderr
    report = json.loads((prepared(folder) / "text" / "cleaning.json").read_text())
    assert report["all"]["not UTF-8"] == 1
    again = run(start(folder, corpus))
    assert stages_done(again) == [] and again.stdout == result.stdout
    words = start(folder, corpus, "--stop-stage", 2)
    words[words.index("run")] = "other"
    accept(NAME, CONF, folder / "exp" / NAME / "other", SETTINGS)
    assert stages_done(run(words)) == []
    # a system does not differ from itself
    other = shutil.copy(run_dir / "score" / "test.de", folder / "other.de")
    result = run(start(folder, corpus, "--stage", 6, "--against", other))
    assert stages_done(result) == [6] and f"against {other}" in result.stdout
    paired = json.loads((run_dir / "results.json").read_text())["paired"]
    assert [score["p_value"] for score in paired["scores"]] == [None, 1.0]


PRECISIONS = [  # --launch, --set, a GPU, an earlier configuration, and whether halves are taken
    ("", "", False, None, False),
    ("", "", True, None, True),
    ("--gpus-per-node 8", "lr=1", False, None, True),
    ("--processes 2", "", True, None, False),
    ("", "memory_efficient_bf16=true", True, None, False),
    ("", "", True, "lr: 1", False),
    ("", "", False, "fp16: true", True),
]


def test_precision_follows_the_gpu_unless_the_run_or_its_user_has_chosen(tmp_path):
    for number, (launch, given, gpu, kept, half) in enumerate(PRECISIONS):
        exp = tmp_path / str(number)
        answer = "echo GPU 0" if gpu else "exit 9"
        path = write_program(exp / "nvidia-smi", f"#!/bin/sh\n{answer}\n")
        (exp / "wmt" / "mos").mkdir(parents=True)
        if kept:
            (exp / "wmt" / "mos" / "config.yaml").write_text(f"train:\n  {kept}\n")
        code = (
            f"source {RECIPES}/lib/wmt.sh; configure_flags=() exp_dir={exp} recipe_dir=x/wmt "
            f"name= conf=mos launch='{launch}' set=({given}); choose_precision; "
            'echo "${configure_flags[*]}"'
        )
        done = run(["bash", "-euc", code], PATH=path)
        assert done.stdout == ("--set=fp16=true\n" if half else "\n"), number


def kill_at_the_end(command: list[str], name: str, folder) -> None:
    """Send SIGKILL to the recipe and its children when a stage's NAME.part is complete."""
    kill = f'case "$*" in */{name}.part\\ */{name}) kill -KILL 0;; esac'
    path = write_program(folder / "mv", f'#!/bin/sh\n{kill}\nexec {shutil.which("mv")} "$@"')
    assert begin(command, PATH=path).wait() == -signal.SIGKILL


DATA = ("corpus", "text", "pieces", "data-bin")


@whole
def test_a_kill_in_any_stage_changes_nothing(finished, corpus, tmp_path):
    for name in DATA:
        command = start(tmp_path, corpus, "--stop-stage", 2)
        part = f"prepared-*/{name}.part"
        kill_when(command, lambda part=part: any((tmp_path / "exp" / NAME).glob(part)), 0.05)
        assert not (prepared(tmp_path) / name).exists()
        kill_at_the_end(command, name, tmp_path / "bin")
        assert (prepared(tmp_path) / f"{name}.part" / ".done").exists()
        assert not (prepared(tmp_path) / name).exists()
    run(start(tmp_path, corpus, "--stop-stage", 2))
    for name in DATA:
        ours, whole = (content(prepared(f) / name) for f in (tmp_path, finished[0]))
        assert ours.keys() > {".done"}
        assert name == "corpus" or {**ours, ".done": b""} == {**whole, ".done": b""}
    # later stages, of the whole run
    folder, _ = finished
    run_dir, stages = folder / "exp" / NAME / "run", ("average", "generate", "score")
    before = {name: content(run_dir / name) for name in stages}
    for name in stages:
        shutil.rmtree(run_dir / name)
    (run_dir / "results.json").unlink()
    for name in stages:
        kill_when(start(folder, corpus), (run_dir / f"{name}.part").exists, 0.3)
        assert not (run_dir / name).exists()
        kill_at_the_end(start(folder, corpus), name, tmp_path / "bin")
        assert not (run_dir / name).exists()
    assert stages_done(run(start(folder, corpus))) == [6]
    for stage, name in (
        ("average", "checkpoint.pt"), ("score", "test.de"), ("score", "scores.json"),
    ):  # fmt: skip
        assert content(run_dir / stage)[name] == before[stage][name]


def refuse(folder, corpus, message: str, *words: object, **environment: str) -> None:
    refused(start(folder, corpus, "--stop-stage", 1, *words), message, **environment)


def change(archive) -> None:
    archive.write_bytes(archive.read_bytes()[:-1] + b"x")


def test_archives_that_have_changed_are_named_with_their_checksums(tmp_path):
    archives = tmp_path / "archives"
    corpus = publish(archives)
    run(start(tmp_path, corpus, "--stop-stage", 0))
    download = tmp_path / "exp" / NAME / "download"
    change(download / "web.tgz")
    with corpus.open("a") as file:
        file.write("# another key\n")
    refuse(tmp_path, corpus, f"{download / 'web.tgz'}: its sha256 is ")
    refuse(tmp_path, corpus, "checksums.txt was written")
    # those in --data are used and compared, and none is fetched
    shutil.rmtree(tmp_path / "exp")
    giga = (archives / "giga.tar").rename(tmp_path / "giga.tar")
    refuse(tmp_path, corpus, "giga.tar: no such file; get it from", "--data", archives)
    giga.rename(archives / "giga.tar")
    result = run(start(tmp_path, corpus, "--data", archives, "--stop-stage", 0))
    assert stages_done(result) == [0] and not download.exists()
    archive = archives / "web.tgz"
    change(archive)
    refuse(tmp_path, corpus, f"{archive}: its sha256 is ", "--data", archives)
    changed = "stage 0 (corpus) was run with other options or inputs"
    refuse(tmp_path, corpus, changed, "--data", archives, "--stage", 1)
    assert not [*(tmp_path / "exp" / NAME).glob("prepared-*/config.yaml")]  # that of the run stays
    archive.unlink()  # cannot be compared, and is no longer needed
    refuse(tmp_path, corpus, "needs", "--data", archives, "--stage", 2, "--stop-stage", 2)


def test_data_may_hold_text_and_other_archives(tmp_path, corpus):
    texts = raw_text(tmp_path / "texts")
    (texts / "other.tgz").write_bytes(b"of something else")
    ours = tmp_path / "corpus.yaml"
    pairs = {"train": "train", "valid": "valid", "test": "test2016"}
    blocks = "".join(f"  {part}:\n    - [{n}.en, {n}.de]\n" for part, n in pairs.items())
    ours.write_text(f"texts:\n{blocks}")
    command = start(tmp_path, ours, "--data", texts, "--stop-stage", 1)
    result = run(command)
    assert stages_done(result) == [1, 1]
    assert f"no archive of {ours} is in {texts}, so it is taken as text" in result.stderr
    (texts / "other.tgz").write_bytes(b"of something else again")
    assert stages_done(run(command)) == []


def test_a_reversed_corpus_and_a_full_disk_are_refused_before_anything_is_written(tmp_path, corpus):
    turned = ["source_lang=de", "target_lang=en"]
    settings = [*SETTINGS, *turned, *(f"generate.{setting}" for setting in turned)]
    said = "scores and published numbers are of en to de; remove the change"
    refused(start(tmp_path, corpus, "--stop-stage", 1, settings=settings), said)
    assert not list((tmp_path / "exp" / NAME).glob("prepared-*"))
    path = write_program(tmp_path / "tools" / "df", "#!/bin/sh\necho Avail\necho 999999999")
    refuse(tmp_path, corpus, "954M are needed on the disk of", PATH=path)
    assert not (tmp_path / "exp" / NAME / "download").exists()


def test_wrong_options_are_refused_first(tmp_path):
    for word, message in (
        ("--scale=smal", "--scale 'smal': expected full or small"),
        ("--corpus=nowhere", "--corpus nowhere: no such file"),
    ):
        refused(recipe(NAME, "--exp-dir", tmp_path / "exp", word), message)
    assert not (tmp_path / "exp").exists()
