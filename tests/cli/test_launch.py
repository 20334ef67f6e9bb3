"""`highrank launch` without starting anything."""

import pytest

from tests.cli.test_highrank import called

TRAIN = ["--", *"fairseq-train data --arch transformer --save-dir save --max-tokens 100".split()]


def test_a_dry_run_prints_every_process_and_starts_none(tmp_path):
    result = called("launch", "--processes", "3", "--dry-run", *TRAIN, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("fairseq-train")]
    assert len(lines) == 3
    for rank, line in enumerate(lines):
        assert f"--distributed-world-size 3 --distributed-rank {rank} " in line
    assert "GLOO_SOCKET_IFNAME=lo\n" in result.stdout
    assert "rdzv" not in result.stdout  # its store would listen on all interfaces
    assert "save/logs/rank<N>.log" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_several_nodes_keeps_the_run_id_out_of_the_command_line():
    words = ["--nodes", "2", "--processes", "1", "--rendezvous", "node1:29500", "--dry-run"]
    result = called("launch", *words, *TRAIN)
    assert "PET_RDZV_ID=highrank-" in result.stdout
    assert "launch.torchrun --nnodes 2 --nproc-per-node 1 " in result.stdout
    assert "--rdzv-id" not in result.stdout


def test_the_effective_batch_is_printed():
    words = ["--processes", "2", "--effective-tokens", "800", "--dry-run"]
    result = called("launch", *words, *TRAIN)
    assert "2 processes × --max-tokens 100 × 4 = 800 tokens per update" in result.stderr
    assert "--update-freq 4 --distributed-init-method" in result.stdout


def test_a_batch_script_is_written(tmp_path):
    (tmp_path / "modules.sh").write_text("\tmodule load cuda\n")
    words = ["--nodes", "2", "--gpus-per-node", "8", "--slurm", "job.sh", "--sbatch=--time=9"]
    words += ["--account", "us", "--qos", "long", "--mem", "64G", "--prologue", "modules.sh"]
    result = called("launch", *words, *TRAIN, cwd=tmp_path)
    assert result.stdout == "sbatch job.sh\n"
    script = (tmp_path / "job.sh").read_text()
    directives, rest = script.split("container=()\n\tmodule load cuda\nset -uo pipefail\n")
    named = ["--account=us", "--qos=long", "--mem=64G", "--time=9"]
    assert directives.endswith("".join(f"#SBATCH {option}\n" for option in named))
    assert '"${container[@]}" \\\n' in rest
    assert (tmp_path / "save" / "logs").is_dir()


@pytest.mark.parametrize("character", [*"\n\r\f\v\x1b\x85\u2028\udcff"])
@pytest.mark.parametrize(
    "words",
    [["--slurm", "{}.sh"], ["--slurm", "{}/j.sh"], ["--slurm", "j.sh", "--sbatch=--comment={}"],
     ["--slurm", "j.sh", "--sbatch=--{}=1"], ["--slurm", "j.sh", "--log-dir", "{}"]],
)  # fmt: skip
def test_no_control_character_is_written_into_a_batch_script(words, character, tmp_path):
    words = [word.format(f"x{character}touch PWNED #") for word in words]
    result = called("launch", "--processes", "1", *words, *TRAIN, cwd=tmp_path)
    assert result.returncode == 2 and "a batch script cannot have" in result.stderr
    assert result.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


DRY = "--processes 1 --dry-run -- fairseq-train data --save-dir save --max-tokens 100"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--processes 2 --gpus-per-node 2", "exclude each other"),
        ("--nodes 2 --processes 1 --dry-run", "--rendezvous HOST:PORT"),
        ("--gpus-per-node 99", "--gpus-per-node 99: torch sees"),
        ("--processes 1 --submit", "need --slurm FILE"),
        ("--processes 1 --mem 64G", "need --slurm FILE"),
        ("--processes 1 --prologue p", "need --slurm FILE"),
        ("--processes 1 --slurm j --prologue wrong.sh", "wrong.sh: line 2: syntax"),
        ("--processes 1 --slurm j --submit", "--submit: sbatch is missing"),
        (f"{DRY} --arch transformer --max-tokenz 5", "mean '--max-tokens'"),
        (f"{DRY} --arch transformer_mox", "'transformer_mo"),
        (f"{DRY} --arch transformer_mos --head-components 0", "--head-components must be at least"),
        ("--processes 1 --rendezvous here", "expected HOST:PORT"),
        ("--processes 2 --effective-streams 8", "for --task bptt_language_modeling"),
        ("--nodes 4 --slurm job.sh", "--gpus-per-node N (or --processes N on CPUs)"),
        ("--processes 1 --slurm j --rendezvous a:1", "--rendezvous: SLURM tells"),
        ("--processes 1 --slurm j --max-restarts 1", "--max-restarts: a SLURM job"),
    ],
)
def test_wrong_options_are_refused(words, message, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "wrong.sh").write_text("if\n")
    given = words.split()
    result = called("launch", *given, *(() if "--" in given else TRAIN), cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"data", "wrong.sh"}


@pytest.mark.parametrize("words", [["--arch", "transformer_mos"], ["-a", "transformer_mos"]])
def test_a_command_without_dashes_before_it_is_refused(words):
    result = called("launch", "fairseq-train", "data", *words)
    assert result.returncode == 2
    assert "write -- before the command: highrank launch -- fairseq-train" in result.stderr
