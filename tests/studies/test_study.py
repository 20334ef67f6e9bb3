"""Run whole studies of a stub recipe: resumed, content-addressed, with members that fail."""

import fcntl
import json
import random
import subprocess
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from os import killpg
from signal import SIGKILL

import pytest
import yaml

from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import UNFAIR, prepare
from highrank_plugins.studies.runner import claim, end, slots
from highrank_plugins.studies.table import LATE
from tests.studies.stub import (
    compared,
    folder_of,
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


def kill_session(process: subprocess.Popen[bytes], everything: bool) -> None:
    """Kill a study at once; `everything`: as a power cut does, with all recipes."""
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    process.kill()
    process.wait()
    for group in listed.stdout.split() if everything else ():
        with suppress(ProcessLookupError):
            killpg(int(group), SIGKILL)


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
    assert len(starts(broken)) == 9


def test_studies_share_members_whose_results_are_linked_by_name(tmp_path):
    file = write_stub(tmp_path, seeds=[1], options={"failing": "mos-1-nan"})
    assert "\n| mixtape | 1 |" in tables(file, code=1)
    members = {"renamed": {"conf": "softmax"}, "other": {"conf": "mos"}}
    tree = yaml.safe_load(file.read_text()) | {"members": members, "seeds": [1, 2]}
    other = write_study(tmp_path, tree | {"baseline": "renamed"}, "other")
    done = study(other)
    assert done.exit_code == 1 and "renamed-1: already done" in done.output
    assert sorted(starts(other).values()) == [1] * 5, "none is run again under another name"
    folder = folder_of(other)
    assert json.loads((folder / "renamed-1" / "results.json").read_text())["seeds"] == [1]
    said = "other-1: diverged (NaN); log: ../../members/"
    (line,) = [one for one in done.output.splitlines() if one.startswith(said)]
    log = folder / line.rpartition("log: ")[2].removesuffix(".")
    assert log.name == "train.log" and log.is_file(), "the log of the study that ran it"

    (folder / "mine-1").symlink_to(tmp_path)
    own = {"renamed": {"conf": "softmax", "set": {"lr": 2}}}
    tables(other, members=own, seeds=[1])
    links = {path.name for path in folder.iterdir() if path.is_symlink()}
    assert links == {"renamed-1", "mine-1"}, "links to members that it no longer has are gone"
    record = json.loads((folder / "renamed-1/results.json").read_text())
    assert record["config"]["train"]["lr"] == 2
    (folder / "renamed-1").unlink()
    (folder / "renamed-1").write_text("mine")
    assert "renamed-1: in the place of the link to a member" in refusal(other)
    assert (folder / "renamed-1").read_text() == "mine"


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
    options = {"failing": how.replace("mos", "softmax")}
    text = tables(file, seeds=[1], options=options, baseline="softmax", code=1)
    assert "Nothing is tested, since the baseline softmax has no result." in text
    assert "--baseline" not in text and "softmax has no record: the base" in compared(file)
    members = {"mos": {"conf": "mos", "seeds": [1]}, "softmax": {"conf": "softmax"}}
    members["mixtape"] = {"conf": "mixtape"}
    changes = {"members": members, "options": {"failing": how}, "baseline": "mos"}
    text = tables(file, seeds=[1, 2], **changes, code=1)
    assert "Nothing is tested, since the baseline mos has no result." in text
    assert "p Holm" not in text and "(baseline)" not in text, "softmax is not taken in its place"
    assert "the baseline, softmax," not in text


@pytest.mark.parametrize(
    ("failing", "why"),
    [("mos-2", UNFAIR), ("softmax-2", UNFAIR), ("mos-2-code", "a seed has no result")],
)
def test_a_system_of_which_a_seed_has_no_result_is_not_tested(tmp_path, failing, why):
    name = failing.partition("-")[0]
    file = write_stub(tmp_path, seeds=[1, 2, 3], options={"failing": failing}, baseline="softmax")
    text = tables(file, code=1)
    untested = f"Not tested, since {why}: {name}."
    assert untested in text
    nothing = "Nothing is tested, since the baseline, softmax, is not."
    assert (nothing in text) == (name == "softmax")
    assert ("adjusted for" in text) == ("adjusted for 1 system" in text) == (name == "mos")
    # nor by `highrank compare` of the records that are there
    said = compared(file)
    assert untested in said
    text = tables(file, seeds=[1, 3])  # its seed is left out
    assert f"since {LATE}: softmax, mos, mixtape." in text and "p Holm" not in text


def test_a_damaged_record_is_named_with_what_to_do(tmp_path):
    text = '{"metrics": {"test_perplexity": null}}'
    file = write_stub(tmp_path, seeds=[1])
    script = file.parent / "stub" / "run.sh"
    whole = script.read_text()
    damage = f"[[ $conf != mos ]] || echo '{text}' >\"$out/results.json.part\"\n"
    head, move, _ = whole.rpartition('mv "$out/results.json.part"')
    script.write_text(f'{head}{damage}{move} "$out/results.json"\n')
    table = tables(file, code=1)
    assert "mos-1: has written no valid results.json; log: logs/mos-1.log." in table
    assert "| mixtape | 1 |" in table, "the others continue"
    script.write_text(whole)
    tables(file)
    (folder_of(file) / "mos-1" / "results.json").write_text(text)
    said = refusal(file)
    assert "results.json: not " in said and "; or delete" in said and "runs mos-1 again" in said


def test_members_share_neither_cores_nor_gpus(monkeypatch):
    monkeypatch.setattr("highrank_plugins.studies.runner.usable_cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5e")
    both = [{"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": gpu} for gpu in ("3", "GPU-5e")]
    assert slots(4, None) == both and slots(4, 1) == both[:1]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in slots(5, None)] == ["3"]  # 8 cores for 5 each
    for threads, jobs in ((5, 2), (9, None)):
        with pytest.raises(ValueError, match=r"this machine has 8 cores and 2 GPUs, for [01] memb"):
            slots(threads, jobs)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert slots(3, None) == [{"OMP_NUM_THREADS": "3"}] * 2


def test_a_recipe_that_outlived_its_study_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    file = write_stub(tmp_path, seeds=[1])
    script = file.parent / "stub" / "run.sh"
    text = script.read_text().replace("mkdir -p", "echo $CUDA_VISIBLE_DEVICES\nmkdir -p")
    script.write_text(text.replace("flock --wait 5", "flock --nonblock"))
    first, second, _ = prepare(read_study(file), tmp_path / "exp")
    first.run_dir.mkdir(parents=True)
    lock = folder_of(file) / ".lock"
    lock.parent.mkdir(parents=True)
    lock.touch(0o644)
    with (first.run_dir / ".lock").open("w") as outlived, lock.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)  # who can read the lock of a study holds nobody
        fcntl.flock(outlived, fcntl.LOCK_EX)
        threading.Timer(1, outlived.close).start()
        done = study(file)
    assert done.exit_code == 0 and lock.stat().st_mode & 0o007 == 0
    assert f"{first.name}: waiting for a process that works in {first.run_dir}" in done.output
    log = folder_of(file) / "logs" / f"{second.name}.log"
    assert log.read_text() == "4\n"
    assert done.output.index("waiting for") < done.output.index("started"), "it has the GPU"


def test_a_second_process_is_refused_and_sigterm_ends_the_members(tmp_path):
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
    ended = subprocess.Popen(["true"], start_new_session=True)
    ended.wait()
    end([ended])  # is no mistake


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
    both = {"baseline": "softmax", "metric": "test_perplexity"}
    file = write_stub(tmp_path, seeds=[1, 2], **both)
    table = tables(file).encode()
    (tmp_path / "mine").mkdir()
    other = tmp_path / "mine" / file.name
    other.write_text(file.read_text().replace("recipe: stub", f"recipe: {tmp_path / 'stub'}"))
    folders = ["--exp-dir", tmp_path / "exp"]
    plans = (["--at-most", "2"], ["--register"])
    for words in ([], ["--only", "mos-1"], ["--table"], ["--slurm"], *plans):
        said = refusal(other, *words, *folders)
        assert f"has the logs and tables of {file}; give {other} another name" in said
    assert table_of(file) == table and not (folder_of(file) / "plan.json").exists()
    file.unlink()  # moved
    assert study(other, *folders).exit_code == 0
    assert table_of(file) == table
