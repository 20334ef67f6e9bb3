"""Processes that some launcher has started together are counted, whatever its variables."""

import re

import pytest

from highrank_plugins.common import launchers
from highrank_plugins.common.launchers import processes_started
from highrank_plugins.common.user_error import UserError
from highrank_plugins.training.launch.plan import Plan

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}
SEVERAL = [
    {"RANK": "0", "WORLD_SIZE": "4"},
    {**TORCHRUN, "WORLD_SIZE": "4"},
    {**TORCHRUN, "WORLD_SIZE": "4", "SLURM_PROCID": "0"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
    {"PMI_RANK": "0", "PMI_SIZE": "4"},
    {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "4"},
    {"MPIRUN_RANK": "0", "MPIRUN_NPROCS": "4"},
    {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"},
    {"PALS_RANKID": "0", "PALS_SIZE": "4"},
    {"PALS_RANKID": "3"},
    {"PMIX_RANK": "3"},
    {"ALPS_APP_PE": "3"},
    {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "4"},
    {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "4"},
    {"RANK": "0", "WORLD_SIZE": "1", "PMI_SIZE": "4"},
    {"TORCHELASTIC_RUN_ID": "left", "OMPI_COMM_WORLD_SIZE": "4"},
    {"HIGHRANK_LAUNCHED": "7", "SLURM_STEP_NUM_TASKS": "4"},
    {"HIGHRANK_LAUNCHED": "7", "RANK": "0", "PMI_SIZE": "4"},
    *({name: "3"} for name in launchers._RANKS),
    {"RANK": "0", "WORLD_SIZE": " 4"},
    {"RANK": "0", "WORLD_SIZE": "+04\n"},
]
ALONE = [
    {},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script
    {"SLURM_NTASKS": "8"},  # a shell within an allocation
    {"RANK": "8"},  # of a matrix, perhaps
    {"WORLD_SIZE": "8"},
    {"RANK": "0", "WORLD_SIZE": ""},
    {"PMI_SIZE": "many"},
    {**TORCHRUN, "WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"},  # a torchrun in each task
    {"HIGHRANK_LAUNCHED": "7", "RANK": "0", "WORLD_SIZE": "1", "PMI_SIZE": "4"},
]


@pytest.mark.parametrize("environment", SEVERAL, ids=str)
def test_processes_started_together_are_counted(environment):
    count, variable = processes_started(environment)
    assert count == 4 and variable in environment


@pytest.mark.parametrize("environment", ALONE, ids=str)
def test_a_process_of_its_own_is_one(environment):
    assert processes_started(environment)[0] == 1


def test_a_number_of_many_digits_counts_as_several():
    assert processes_started({"PMI_SIZE": "9" * 5000})[0] > 1


def test_several_launchers_of_one_node_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PMI_SIZE", "2")
    said = "(PMI_SIZE=2): start this command once, or pass --nodes N, or unset PMI_SIZE"
    with pytest.raises(UserError, match=re.escape(said)):
        Plan(("fairseq-train",), tmp_path).check_meeting()
    Plan(("fairseq-train",), tmp_path, 2, rendezvous="a:1").check_meeting()
