"""Options of each process; batch scripts, and a life of a job with SLURM in miniature."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from highrank_plugins.common.stop_request import REQUEUE
from highrank_plugins.training.blocks import LaunchSettings
from highrank_plugins.training.launch.batch_job import sbatch_script, submit_once
from highrank_plugins.training.launch.plan import (
    Plan,
    check_program,
    fit_batch,
    option,
    with_effective_batch,
)
from highrank_plugins.training.launch.rank import Place, distributed_flags, find_place
from tests.cli import highrank, refused
from tests.held_lock import held_elsewhere
from tests.training.launch.slurm import miniature

TRAIN = ["fairseq-train", "data", "--max-tokens", "4096"]
PLAN = Plan(("fairseq-train", "a b", "--lr", "1"), Path("logs"), nodes=4, per_node=8)
JOB = LaunchSettings()


def flags(place, visible, command=TRAIN):
    words = " ".join(distributed_flags(place, visible, command))
    return dict(re.findall(r"(--\S+) ?((?!--)\S*)", words))


def test_flags_follow_from_the_devices_and_the_command():
    assert flags(Place(5, 8, 1), 4) == {
        "--distributed-init-method": "env://",
        "--distributed-world-size": "8",
        "--distributed-rank": "5",
        "--distributed-no-spawn": "",
        "--device-id": "1",
        "--distributed-backend": "nccl",
        "--ddp-backend": "pytorch_ddp",
    }
    assert flags(Place(5, 8, 3), 1)["--device-id"] == "0"  # the only GPU that it sees
    on_cpu = {"--distributed-backend": "gloo", "--ddp-backend": "legacy_ddp", "--device-id": "0"}
    assert flags(Place(1, 2, 1), None).items() >= on_cpu.items()
    assert "--ddp-backend" not in flags(Place(0, 2, 0), 2, [*TRAIN, "--ddp-backend=no_c10d"])


@pytest.mark.parametrize(
    ("words", "tokens", "world", "message"),
    [
        *(([*TRAIN, word], 0, 1, f"{word.partition('=')[0]}: the launcher sets it for each process")
          for word in ("--distributed-world-size", "--device-id=1", "--local_rank")),
        (["fairseq-trian"], 0, 1, "did you mean 'fairseq-train'"),
        (["fairseq-train", "data"], 4096, 1, "needs --max-tokens"),
        ([*TRAIN, "--update-freq", "2"], 4096, 1, "remove one of the two"),
        (TRAIN, 4, 8, "use fewer processes"),
    ],
)  # fmt: skip
def test_a_command_or_batch_that_cannot_be_launched_is_refused(words, tokens, world, message):
    with pytest.raises(ValueError, match=message):
        check_program(words)
        with_effective_batch(words, tokens, world)


def test_an_effective_batch_is_split_and_the_command_gets_it():
    for effective, max_tokens, world, want in (
        (25_000, 4096, 1, (4096, 6)), (400_000, 3584, 8, (3584, 14)),
        (32_768, 4096, 32, (1024, 1)),  # 4 × 8 GPUs, what 8 have in one batch each
        (25_000, 4096, 8, (3125, 1)), (50_000, 4096, 8, (3125, 2)),
    ):  # fmt: skip
        found, freq = fit_batch(effective, max_tokens, world)
        assert (found, freq) == want
        assert abs(found * freq * world - effective) <= 0.1 * effective
    for given in (["--max-tokens", "4096"], ["--max-tokens=4096"]):
        words, line = with_effective_batch(["fairseq-train", *given, "--lr", "1"], 32_768, 32)
        assert option(words, "--max-tokens") == "1024"
        assert "4096" not in " ".join(words)
        assert "32 processes × --max-tokens 1024 (lowered from 4096) × 1 = 32768 tokens" in line
    assert option(["--max-tokens", "5", "--max-tokens=7"], "--max-tokens") == "7"  # the last one


def test_a_process_finds_its_place_among_the_planned_number():
    slurm = {"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}
    assert find_place(slurm, 16, "tcp://a:1") == Place(9, 16, 1, "tcp://a:1")
    ours = {"HIGHRANK_LAUNCHED": "1", "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    assert find_place(slurm | ours, 4, "env://") == Place(2, 4, 0, "env://")
    with pytest.raises(ValueError, match="use `highrank launch`"):
        find_place({}, 1, "env://")
    with pytest.raises(ValueError, match="rank 9: 16 processes were started, but 8 were planned"):
        find_place(slurm, 8, "env://")


# -- SLURM --


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line]


def test_each_task_gets_one_gpu_or_sees_all_of_its_node():
    script = sbatch_script(PLAN, LaunchSettings(slurm=Path("en_de.sh"), sbatch=["--partition=gpu"]))
    assert directives(script) == [
        "--job-name=en_de", "--nodes=4", "--ntasks-per-node=8", "--gpus-per-task=1",
        "--output=logs/slurm-%j.log", "--open-mode=append", "--requeue", "--signal=USR1@180",
        "--partition=gpu",
    ]  # fmt: skip
    assert "srun --kill-on-bad-exit=1 --gpus-per-task=1 \\\n" in script
    assert "--world-size 32 \\\n" in script
    assert "-- fairseq-train 'a b' \\\n    --lr 1\n" in script
    script = sbatch_script(PLAN, LaunchSettings(all_gpus_each=True, grace=60))
    assert {"--gpus-per-node=8", "--signal=USR1@60"} <= set(directives(script))
    assert "srun --kill-on-bad-exit=1 --gpu-bind=none --gpus-per-node=8 \\\n" in script


def test_sbatch_reads_an_option_as_it_was_given_and_slurm_and_shell_replace_nothing():
    for given, line in {
        "--comment=two words": "--comment='two words'",
        "--comment=it's": """--comment='it'"'"'s'""",
    }.items():
        assert directives(sbatch_script(PLAN, LaunchSettings(sbatch=[given])))[-1] == line
    command = ("fairseq-train", "data", "--restore-file", "tcp://$(touch PWNED)")
    script = sbatch_script(replace(PLAN, command=command, log_dir=Path("a %j")), JOB)
    assert "'tcp://$(touch PWNED)'" in script
    assert "--output='a %%j/slurm-%j.log'" in directives(script)


def test_a_time_limit_leaves_time_to_train():
    for limit in ("5", "1-0", "0-1:30:00", "0", "INFINITE", "nonsense"):
        sbatch_script(PLAN, LaunchSettings(sbatch=[f"--time={limit}"]))
    for limit, seconds in {"3": 180, "4:00": 240, "0:03:59": 239, "0-0:4": 240}.items():
        message = f"--sbatch=--time={limit}: {limit} is {seconds} s, but SLURM asks"
        with pytest.raises(ValueError, match=message):
            sbatch_script(PLAN, LaunchSettings(sbatch=[f"--time={limit}"]))


def test_a_script_starts_one_job():
    arrays = ("--array=0-3", "--arr=0-3")
    hidden = ("--comment=x --array=0-3", " --array=0-3", "--'array'=0-3", "-p x' --array=0")
    for given in (*arrays, *hidden, "-a0-3", "hetjob", ""):
        why = "the script decides" if given in arrays else "give one option"
        with pytest.raises(ValueError, match=f"--sbatch={given}: {why}"):
            sbatch_script(PLAN, LaunchSettings(sbatch=[given]))


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return a folder for a job, and the environment that SLURM gives it."""
    env = miniature(tmp_path)
    monkeypatch.setenv("PATH", env["PATH"])
    return tmp_path, env


def run_job(slurm, srun: str, job: LaunchSettings = JOB, **variables: str):
    """Run the script of a job, whose srun has these lines."""
    folder, env = slurm
    (folder / "logs").mkdir()  # `launch` makes it
    (folder / "bin" / "srun").write_text(f"#!/bin/sh\n{srun}\n")
    (folder / "job.sh").write_text(sbatch_script(PLAN, job))
    words, env = ["bash", "job.sh"], env | variables
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("state", "code", "requeued"),
    [
        ("RUNNING Reason=None", REQUEUE, True),
        ("COMPLETING Reason=TimeLimit", REQUEUE, True),
        ("COMPLETING Reason=None", REQUEUE, False),  # cancelled
        ("CANCELLED Reason=None", REQUEUE, False),
        ("RUNNING Reason=None", 1, False),
    ],
)
def test_a_job_is_requeued_unless_it_failed_or_was_cancelled(slurm, state, code, requeued):
    answer = "touch $HIGHRANK_STOP_DIRECTORY/stopped" if code == REQUEUE else f"exit {code}"
    srun = f"echo $SRUN_CPUS_PER_TASK\n{answer}"
    job = run_job(slurm, srun, STATE=state, SLURM_CPUS_PER_TASK="7")
    assert job.returncode == code, job.stderr
    assert "\n7\n" in job.stdout
    assert (slurm[0] / "scontrol.log").exists() == requeued


def test_the_prologue_may_put_each_process_into_a_container(slurm):
    prologue = slurm[0] / "modules.sh"
    prologue.write_text("export PLACE=here$UNSET\ncontainer=(enter 'my image')\n")
    job = run_job(slurm, 'echo "$PLACE: $*"', LaunchSettings(prologue=prologue))
    assert job.returncode == 0, job.stderr
    assert "here: --kill-on-bad-exit=1 --gpus-per-task=1 enter my image /" in job.stdout


def test_a_job_is_submitted_once(slurm, monkeypatch):
    folder, _ = slurm
    plan, script = replace(PLAN, log_dir=folder), folder / "job.sh"

    def submit():
        script.unlink(missing_ok=True)
        return submit_once(plan, JOB, script, "text")

    def says(program, text):
        (folder / "bin" / program).write_text(f"#!/bin/sh\necho {text} >&2\nexit 1\n")

    (folder / "queue").write_text("PENDING")
    assert f"sbatch {script}: job 4242; its log is {folder}/slurm-4242.log, or" in submit()
    assert (folder / "job").read_text() == "4242\n"
    with pytest.raises(ValueError, match=r"job 4242 .* still in the queue \(PENDING\)"):
        submit()
    says("squeue", "timed out")
    with pytest.raises(ValueError, match=r"squeue does not say whether job 4242 .*\(timed out\)"):
        submit()
    assert not script.exists()
    says("squeue", "slurm_load_jobs error: Invalid job id specified")
    assert "job 4242;" in submit()
    (folder / "job").unlink()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"job.sh: sbatch is missing on this machine"):
        submit()


def test_a_script_that_is_refused_loses_nothing_and_two_launches_do_not_submit_at_once(slurm):
    folder, _ = slurm
    sbatch, finished = folder / "bin" / "sbatch", folder / "logs" / "finished"
    accepts = sbatch.read_text()
    sbatch.write_text("#!/bin/sh\necho no such partition >&2\nexit 1\n")
    finished.parent.mkdir()
    finished.touch()  # an earlier training run is complete
    words = ["launch", "--processes", "1", "--slurm", f"{folder}/job.sh", "--submit"]
    words += ["--log-dir", str(finished.parent), "--", "fairseq-train", "data"]
    with held_elsewhere(finished.with_name(".submit")):
        refused("is in use by another highrank launch", *words)
    assert not (folder / "job.sh").exists()
    refused("no such partition", *words)
    assert finished.exists()
    sbatch.write_text(accepts)
    assert highrank(*words).exit_code == 0 and not finished.exists()
