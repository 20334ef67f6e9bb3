"""Run whole studies of a stub recipe: resumed, content-addressed, with members that fail."""

import fcntl
import json
import random
import subprocess
import threading
import time
from multiprocessing import get_context

import pytest
import yaml

from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import UNFAIR, prepare
from highrank_plugins.studies.runner import claim, run_members, slots
from highrank_plugins.studies.watch import end
from tests.cli import highrank
from tests.studies.stub import (
    compared,
    folder_of,
    kill_session,
    refusal,
    run_study,
    starts,
    study,
    study_command,
    table_of,
    tables,
    write_stub,
    write_study,
)


def test_five_kills_do_not_change_a_byte_of_the_table(tmp_path):
    whole = write_stub(tmp_path / "whole", options={"pause": 0.15})
    assert run_study(whole).returncode == 0
    broken = write_stub(tmp_path / "broken", options={"pause": 0.15})
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    for kill in range(5):
        with (tmp_path / "output").open("wb") as output:
            process = subprocess.Popen(study_command(broken), stdout=output, stderr=output)
            before = sum(starts(broken).values())
            until = time.monotonic() + 60
            while sum(starts(broken).values()) == before and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 1))
            kill_session(process, everything=kill % 2 == 0)
    assert run_study(broken).returncode == 0
    assert table_of(broken) == table_of(whole), f"seed {seed}"
    assert all(count >= 1 for count in starts(broken).values()) and len(starts(broken)) == 9


def test_a_member_that_is_done_is_not_run_again_under_another_name(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    assert "\n| mixtape | 1 |" in tables(file)
    assert set(starts(file).values()) == {1}
    members = {"renamed": {"conf": "softmax"}, "other": {"conf": "mos"}}
    tree = {"members": members, "seeds": [1, 2], "baseline": "renamed"}
    other = write_study(tmp_path, tree, "other")
    done = study(other)
    assert done.exit_code == 0 and "renamed-1: already done" in done.output
    assert sorted(starts(other).values()) == [1] * 5
    link = folder_of(other) / "renamed-1"
    assert json.loads((link / "results.json").read_text())["seeds"] == [1]


def test_a_changed_option_makes_a_new_member(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    study(file)
    text = tables(file, members={"mos_lr{lr}": {"conf": "mos", "grid": {"lr": [1, 2]}}})
    assert len(starts(file)) == 4  # lr = 1 is what was run
    assert "\n| mos_lr1 |" in text and "\n| mos_lr2 |" in text and "softmax" not in text


@pytest.mark.parametrize(
    ("how", "what"),
    [("mos-1", "diverged (NaN)"), ("mos-1-code", "failed with exit code 3"),
     ("mos-1-refused", "refused: no such arch"), ("mos-1-nan", "diverged (NaN)")],
)  # fmt: skip
def test_failing_members_are_named_and_the_others_continue(tmp_path, how, what):
    file = write_stub(tmp_path, seeds=[1, 2], options={"failing": how})
    log = folder_of(file) / "logs" / "mos-1.log"
    log.parent.mkdir(parents=True)  # what an earlier run says is no reason of this one's failure
    earlier = how in ("mos-1-code", "mos-1-refused")
    log.write_text("FloatingPointError: loss is NaN\n" if earlier else "")
    text = tables(file, code=1)
    assert f"mos-1: {what}; log: logs/mos-1.log." in text
    assert "| mos | – | 1 |" in text and "| softmax (baseline) | 1–2 | 2 |" in text
    assert ("loss is NaN" in log.read_text()) == (how != "mos-1-nan")
    assert tables(file, "--table", code=1) == text == tables(file, code=1)


@pytest.mark.parametrize("name", ["mos", "softmax"])
def test_a_system_of_which_a_seed_diverged_is_not_tested(tmp_path, name):
    failing = {"failing": f"{name}-2"}
    file = write_stub(tmp_path, seeds=[1, 2, 3], options=failing, baseline="softmax")
    text = tables(file, code=1)
    untested = f"Not tested, since {UNFAIR}: {name}."
    assert untested in text
    assert ("Nothing is tested, since the baseline, softmax, is not." in text) == (
        name == "softmax"
    )
    assert ("adjusted for" in text) == ("adjusted for 1 system" in text) == (name == "mos")
    # nor by `highrank compare` of the records that are there
    records = sorted(str(path) for path in folder_of(file).glob("*/results.json"))
    compared = highrank("compare", *records)
    assert compared.exit_code == 0 and len(records) == 8
    assert untested in compared.output
    assert f"{name}-2 has no record: diverged (NaN)." in compared.output
    without = [path for path in records if f"/{name}-" not in path]
    other = highrank("compare", *without, "--baseline", "mixtape")
    assert other.exit_code == 0 and f"{name}-2" not in other.output


def test_a_metric_that_no_record_has_is_refused(tmp_path):
    file = write_stub(tmp_path, seeds=[1], metric="test_perplexty")
    for _ in range(2):
        assert "did you mean 'test_perplexity'?" in refusal(file, "--jobs", 1)
        assert len(starts(file)) == 1  # the first record shows it
    tables(file, metric=None, members={"mos": {"conf": "mos"}})
    assert set(starts(file).values()) == {1}


def test_a_member_starts_no_later_than_three_seconds_after_its_turn(tmp_path):
    late = []
    for attempt in range(3):  # other programs may hold one up
        file = write_stub(tmp_path / str(attempt), seeds=[1])
        script = file.parent / "stub" / "run.sh"
        ended = 'mv "$out/results.json.part" "$out/results.json"'
        text = script.read_text().replace("set -euo pipefail", "set -euo pipefail\ndate +%s.%N")
        script.write_text(text.replace(ended, f"{ended}; date +%s.%N"))
        now = time.time()
        assert run_study(file, "--jobs", 1).returncode == 0
        logs = sorted((folder_of(file) / "logs").iterdir(), key=_first_line)
        times = [now, *(float(line) for log in logs for line in log.read_text().split())]
        late.append(max(times[n + 1] - times[n] for n in range(0, len(times) - 1, 2)))
        if late[-1] <= 3:
            break
    assert len(times) == 7 and min(late) <= 3, late


def _first_line(log):
    return log.read_text().split()[0]


def test_members_share_neither_cores_nor_gpus(monkeypatch):
    monkeypatch.setattr("highrank_plugins.studies.runner.usable_cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5e")
    both = [{"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": gpu} for gpu in ("3", "GPU-5e")]
    assert slots(4, None) == both and slots(4, 1) == both[:1]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in slots(5, None)] == ["3"]  # 8 cores for 5 each
    with pytest.raises(ValueError, match="--jobs 2: this machine has 2 GPUs and 8 cores, 5 for"):
        slots(5, 2)
    with pytest.raises(ValueError, match="threads: 9 cores for each member, but this machine has"):
        slots(9, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert slots(3, None) == [{"OMP_NUM_THREADS": "3"}] * 2


def test_a_gpu_of_a_recipe_that_outlived_its_study_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr("highrank_plugins.studies.runner.usable_cores", lambda: 2)
    file = write_stub(tmp_path, seeds=[1])
    script = file.parent / "stub" / "run.sh"
    script.write_text(
        script.read_text().replace("mkdir -p", "echo $CUDA_VISIBLE_DEVICES\nmkdir -p")
    )
    first, second, _ = prepare(read_study(file), tmp_path / "exp")
    first.run_dir.mkdir(parents=True)
    first.note("gpu").write_text("4")
    with (first.run_dir / ".lock").open("w") as outlived:
        fcntl.flock(outlived, fcntl.LOCK_EX)
        threading.Timer(0.5, outlived.close).start()
        assert study(file).exit_code == 0
    log = folder_of(file) / "logs" / f"{second.name}.log"
    assert log.read_text() == "7\n" and second.note("gpu").read_text() == "7"


def test_ways_to_run_that_exclude_each_other_are_refused(tmp_path):
    file = write_stub(tmp_path)
    said = refusal(file, "--only", "mos-1", "--table")
    assert "--only and --table exclude each other" in said
    said = refusal(file, "--option", "pause=1", "--option", "pause=2")
    assert "--option pause=2: pause is given twice" in said


@pytest.mark.parametrize("text", ["{}", "[]", '{"metrics": {"test_perplexity": null}}', "{"])
def test_a_damaged_record_is_named_with_what_to_do(tmp_path, text):
    file = write_stub(tmp_path, seeds=[1], members={"mos": {"conf": "mos"}})
    tables(file)
    (folder_of(file) / "mos-1" / "results.json").write_text(text)
    said = refusal(file)
    assert "results.json: not " in said and "; or delete" in said and "runs mos-1 again" in said


@pytest.mark.parametrize("text", ["{", '{"metrics": {"test_perplexity": "4"}}'])
def test_a_member_that_writes_a_damaged_record_does_not_stop_the_others(tmp_path, text):
    file = write_stub(tmp_path, seeds=[1])
    script = file.parent / "stub" / "run.sh"
    damage = f"[[ $conf != mos ]] || echo '{text}' >\"$out/results.json.part\"\n"
    head, move, _ = script.read_text().rpartition('mv "$out/results.json.part"')
    script.write_text(f'{head}{damage}{move} "$out/results.json"\n')
    table = tables(file, code=1)
    assert "mos-1: has written a damaged results.json; log: logs/mos-1.log." in table
    assert "| mixtape | 1 |" in table


def test_recipes_that_have_just_ended_are_no_mistake():
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait()
    end([process])


def test_a_member_that_another_study_ends_is_not_run_again(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2])
    members = prepare(read_study(file), tmp_path / "exp")[:2]

    def say(text):
        if "softmax-1: started" in text:  # another study ends the second member meanwhile
            members[1].run_dir.mkdir(parents=True)
            members[1].record.write_text('{"metrics": {"test_perplexity": 1}}')
            members[1].note("done").touch()

    run_members(members, folder_of(file) / "logs", slots(1, 1), say)
    assert set(starts(file)) == {members[0].key}


def test_a_second_process_is_refused(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    process = subprocess.Popen(study_command(file, "--option", "pause=3"), stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None and b"started" in process.stderr.readline()
        assert "is in use by another run of this study" in refusal(file, "--option", "pause=3")
        so_far = study(file, "--option", "pause=3", "--table")
        assert so_far.exit_code == 0 and "no record" in so_far.output
    finally:
        process.terminate()
        assert b"SIGTERM: ending the members; the same command resumes" in process.stderr.read()
        assert process.wait(20) == 128 + 15


def test_members_that_start_at_once_share_the_folder(tmp_path):
    """Each writes the name of its study; none may take the other's file away."""
    file, folder = tmp_path / "study.yaml", tmp_path / "folder"
    file.write_text("")
    with get_context("fork").Pool(8) as pool:  # threads of one process share its locks
        for _ in range(50):
            pool.starmap(claim, [(folder, file)] * 8)
            assert (folder / ".study").read_text() == f"{file}\n"
            (folder / ".study").unlink()


def test_the_folder_of_another_study_with_the_same_name_is_refused(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    assert study(file).exit_code == 0
    table = table_of(file)
    (tmp_path / "mine").mkdir()
    other = tmp_path / "mine" / file.name
    other.write_text(file.read_text().replace("recipe: stub", f"recipe: {tmp_path / 'stub'}"))
    folders = ["--exp-dir", tmp_path / "exp"]
    for words in ([], ["--only", "mos-1"], ["--table"], ["--slurm"]):
        said = refusal(other, *words, *folders)
        assert f"has the logs and tables of {file}; give {other} another name" in said
    assert table_of(file) == table
    file.unlink()  # moved
    assert study(other, *folders).exit_code == 0
    assert table_of(file) == table


def test_a_baseline_that_fails_is_named(tmp_path):
    failing = {"failing": "softmax-1-code"}
    text = tables(write_stub(tmp_path, seeds=[1], options=failing, baseline="softmax"), code=1)
    assert "Nothing is tested, because the baseline softmax has no result." in text
    assert "--baseline" not in text


def test_the_log_of_a_member_that_another_study_ran_is_named(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-1-nan"})
    study(file)
    settings = yaml.safe_load(file.read_text())
    other = write_study(tmp_path, settings | {"members": {"mixed": {"conf": "mos"}}}, "other")
    start = "mixed-1: diverged (NaN); log: ../../members/"
    (line,) = [one for one in tables(other, code=1).splitlines() if one.startswith(start)]
    log = folder_of(other) / line.rpartition("log: ")[2].removesuffix(".")
    assert log.name == "train.log" and log.is_file()


def test_links_to_members_that_the_study_no_longer_has_are_removed(tmp_path):
    file = write_stub(tmp_path, seeds=[1, 2])
    study(file)
    folder = folder_of(file)
    (folder / "mine-1").symlink_to(tmp_path)
    tables(file, members={"mos": {"conf": "mos", "set": {"lr": 2}}}, seeds=[1])
    links = {path.name for path in folder.iterdir() if path.is_symlink()}
    assert links == {"mos-1", "mine-1"}
    assert json.loads((folder / "mos-1/results.json").read_text())["config"]["train"]["lr"] == 2


def test_a_file_in_the_place_of_a_link_is_kept(tmp_path):
    file = write_stub(tmp_path, seeds=[1])
    folder = folder_of(file)
    folder.mkdir(parents=True)
    (folder / "mos-1").write_text("mine")
    assert "mos-1: in the place of the link to a member" in refusal(file)
    assert (folder / "mos-1").read_text() == "mine"


def test_compare_names_systems_without_any_record(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-1-code"})
    study(file)
    assert "mos-1 has no record: failed with exit" in compared(file)
