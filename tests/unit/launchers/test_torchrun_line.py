"""A pasted torchrun line is understood: what the launcher sets is left out or refused, the rest is passed on."""

from __future__ import annotations

import pytest

from remote_tool.errors import UsageError
from remote_tool.launchers.torchrun_line import read_torchrun_line


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("train.py --lr 1e-3", "train.py --lr 1e-3"),
        ("python train.py", "train.py"),
        ("python3.11 -u train.py -r 5", "train.py -r 5"),
        ("torchrun train.py", "train.py"),
        ("python -m package.train --tee 3", "-m package.train --tee 3"),
        ("-m package.train", "-m package.train"),
        ("python -m torch.distributed.run train.py", "train.py"),
        ("python -m torch.distributed.launch --use_env train.py", "train.py"),
        ("/opt/conda/bin/torchrun --role trainer train.py", "--role trainer train.py"),
        ("torchrun --monitor_interval=5 --no-python ./run.sh", "--monitor_interval=5 --no-python ./run.sh"),
        ("torchrun --nnodes=2 --node_rank 1 --master-addr 10.0.0.5 train.py --nnodes 9", "train.py --nnodes 9"),
        ("torchrun --standalone --nno 1 -r 3 --log-dir '/tmp/my logs' train.py", "train.py"),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv_id 7 -m package.train", "-m package.train"),
        ('"$SCRIPT" --name "a b"', '"$SCRIPT" --name "a b"'),
        ("train.py --a \\\n  --b", "train.py --a \\\n  --b"),
    ],
)
def test_a_line_is_passed_on_without_what_the_launcher_sets(command: str, text: str) -> None:
    assert read_torchrun_line(command).text == text


@pytest.mark.row(161)
@pytest.mark.parametrize(
    ("command", "folder", "text"),
    [
        ("cd imagenet && python main.py --lr 1", "imagenet", "main.py --lr 1"),
        ("  cd -- a/b ; torchrun --nnodes 2 main.py", "a/b", "main.py"),
        ("cd 'my && folder'/x && cd ../y && main.py", "my && folder/x/../y", "main.py"),
        ("cd /data && main.py", "/data", "main.py"),
        ("main.py && cd x", "", "main.py && cd x"),
    ],
)
def test_a_line_that_changes_its_folder_first_says_which(command: str, folder: str, text: str) -> None:
    line = read_torchrun_line(command)
    assert (line.folder, line.text) == (folder, text)


def test_every_option_that_is_left_out_is_named() -> None:
    line = read_torchrun_line("torchrun --nnodes 1 --log_dir=logs --standalone --role x train.py")
    assert [note.partition(" in --cmd")[0] for note in line.notes] == ["--nnodes 1", "--log_dir logs", "--standalone"]


@pytest.mark.parametrize(
    ("command", "text", "hint"),
    [
        ("torchrun --nproc-per-node 2 x.py", "--nproc-per-node in --cmd", "helper-torch-launch --nproc-per-node 2"),
        ("--nproc_per_node=3 x.py", "--nproc_per_node in --cmd", "helper-torch-launch --nproc-per-node 3"),
        ("torchrun --max-restarts 3 x.py", "--max-restarts in --cmd", "--max-restarts 3"),
        ("torchrun --master_port 29500 x.py", "--master_port in --cmd", "--master-port 29500"),
        ("accelerate launch x.py", "starts accelerate", "--num_machines"),
        ("python3 -u -m accelerate.commands.launch x.py", "starts accelerate", "--num_machines"),
        ("python", "does not name a script", "--cmd train.py"),
        ("torchrun", "does not name a script", "--cmd train.py"),
        ("torchrun --nnodes 2", "does not name a script", "--cmd train.py"),
        ("python -m torch.distributed.run", "does not name a script", "--cmd train.py"),
        ("python -m", "does not name a script", "-m package.train"),
        ("mpirun -np 4 --host a,b python x.py", "starts mpirun, which starts its own", "helper-mpi-launch"),
        ("srun --nodes 2 python x.py", "starts srun, which starts its own", "--cmd train.py"),
        ("uv run torchrun --nproc-per-node 2 x.py", "starts uv run, but torchrun", "only what uv would run"),
        ("/opt/conda/bin/conda run -n ml torchrun x.py", "starts conda run", "--cmd 'torchrun train.py'"),
        ("uv --offline run x.py", "starts uv run", "--cmd train.py"),
        ("/usr/bin/deepspeed x.py", "starts deepspeed", "helper-launch, with its own --no_ssh"),
        ("OMP_NUM_THREADS=2 torchrun x.py", "the variable OMP_NUM_THREADS", "--env OMP_NUM_THREADS 2"),
        ("train.py 'a", "cannot be read", ""),
        ("cd $DATA && x.py", "begins with cd", "--workdir DIR"),
        ("cd imagenet", "begins with cd", "--workdir DIR"),
    ],
)
def test_what_an_option_of_ours_sets_and_other_launchers_are_refused(command: str, text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=text) as refused:
        read_torchrun_line(command)
    assert hint in refused.value.hint
