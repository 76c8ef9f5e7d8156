"""Files of a run are the user's own, never put in the place of others', and hold no secrets."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from monitored import STAND_INS
from program_runs import run

from tcmon.errors import TcmonError
from tcmon.session import Options, Session, start
from tcmon.trace.secrets import masked
from tcmon.trace.writer import write_atomically

TRAINING = STAND_INS + "\nfor step in range(5):\n    loss.backward()\n    optimizer.step()\n"


def begin(out: Path) -> Session:
    return start(Options(out=out), command=["test"], script="program.py")


def refused(out: Path) -> str:
    with pytest.raises(TcmonError) as caught:
        begin(out)
    return str(caught.value)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_users_umask(umask: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import os\nassert os.umask({umask}) == {umask}\n" + TRAINING)
    before = os.umask(umask)
    try:
        ended = run([sys.executable, "-m", "tcmon", "run", "--quiet", "program.py"], cwd=tmp_path)
    finally:
        os.umask(before)
    assert (ended.returncode, ended.stderr) == (0, "")
    [run_dir] = (tmp_path / "tcmon-runs").iterdir()
    for folder in (run_dir.parent, run_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
    files = list(run_dir.iterdir())
    assert len(files) == 3
    for file in files:
        assert stat.S_IMODE(file.lstat().st_mode) == 0o666 & ~umask
        assert file.is_file()
        assert not file.is_symlink()


@pytest.mark.parametrize("held", ["run.json", "trace-1.jsonl"])
def test_a_run_is_never_overwritten(held: str, tmp_path: Path) -> None:
    (tmp_path / held).write_text("precious")
    assert "already holds a run" in refused(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {held: "precious"}


@pytest.mark.parametrize("name", ["run.json", "trace-PID.jsonl"])
def test_a_link_in_the_place_of_a_file_is_not_followed(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / name.replace("PID", str(os.getpid()))).symlink_to(tmp_path / "elsewhere")
    refused(out)
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_in_the_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / f"trace-{os.getpid()}.journal").symlink_to(tmp_path / "elsewhere")
    begin(out).finish(reason="exit", exit_code=0)  # the journal is then in memory
    assert not (tmp_path / "elsewhere").exists()


def test_links_in_the_place_of_temporary_files_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    write_atomically(target, {"version": 1})
    [taken] = (name for name in _created_by_writing(target) if name != target.name)
    (tmp_path / taken).symlink_to(tmp_path / "elsewhere")
    write_atomically(target, {"version": 2})
    assert not (tmp_path / "elsewhere").exists()
    assert json.loads(target.read_text()) == {"version": 2}
    assert [file.name for file in tmp_path.iterdir()] == [target.name]


def _created_by_writing(target: Path) -> set[str]:
    """The names of files that are made on the way to a new version of `target`."""
    seen: set[str] = set()

    class Watched(type(target)):  # type: ignore[misc]
        def replace(self, new: Path) -> Path:
            seen.update(each.name for each in target.parent.iterdir())
            return Path(self).replace(new)

        def with_name(self, name: str) -> Path:
            return Watched(super().with_name(name))

    write_atomically(Watched(target), {"version": 1})
    return seen


def test_a_failed_rewrite_leaves_the_old_version_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    write_atomically(target, {"version": 1})
    with pytest.raises(TypeError):
        write_atomically(target, {"version": object()})
    assert json.loads(target.read_text()) == {"version": 1}
    assert [file.name for file in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize(
    "command, shown",
    [
        ("train.py --token abc", "train.py --token ***"),
        ("train.py --hf-token=abc --lr 0.1", "train.py --hf-token=*** --lr 0.1"),
        ("train.py --api_key abc -v", "train.py --api_key *** -v"),
        ("train.py --apiKey abc", "train.py --apiKey ***"),
        ("train.py --PASSWORD abc", "train.py --PASSWORD ***"),
        ("train.py --db-password-prod abc", "train.py --db-password-prod ***"),
        ("train.py --client_secret abc", "train.py --client_secret ***"),
        ("train.py wandb.key=abc model.dim=3", "train.py wandb.key=*** model.dim=3"),
        ("train.py WANDB_API_KEY=abc", "train.py WANDB_API_KEY=***"),
        ("train.py +secret.value=abc", "train.py +secret.value=***"),
        ("train.py --token= --lr 1", "train.py --token= --lr 1"),
        ("train.py --use-token --lr 1", "train.py --use-token --lr 1"),
        ("train.py --data https://me:abc@host/x?y=1", "train.py --data https://***@host/x?y=1"),
        ("train.py s3://bucket/x?token=abc&y=1", "train.py s3://bucket/x?token=***&y=1"),
        ("train.py --header Authorization:abc", "train.py --header Authorization:***"),
        ("train.py --tokenizer gpt2 --max-tokens 5", "train.py --tokenizer gpt2 --max-tokens 5"),
        ("train.py --num-key-value-heads 8 --keys a,b", "train.py --num-key-value-heads 8 --keys a,b"),
        ("train.py --key-file id_rsa --monkey 3", "train.py --key-file id_rsa --monkey 3"),
        ("train.py monkey=3 --author me", "train.py monkey=3 --author me"),
        ("train.py --lr 1e-3 -- --token abc", "train.py --lr 1e-3 -- --token ***"),
    ],
)
def test_values_that_are_named_like_secrets_are_masked(command: str, shown: str) -> None:
    assert masked(command.split()) == shown.split()


def test_no_secret_reaches_a_file(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv[1:])\n" + TRAINING)
    program = ["program.py", "--hf-token", "s3cret-1", "password=s3cret-2", "https://u:s3cret-3@h/"]
    variables = {"HF_TOKEN": "s3cret-4", "SOMETHING": "s3cret-5"}
    ended = run([sys.executable, "-m", "tcmon", "run", "--out", "run", *program], cwd=tmp_path, **variables)

    assert ended.stdout == f"{program[1:]}\n", "the program itself gets them"
    assert "s3cret" not in ended.stderr
    for file in (tmp_path / "run").iterdir():
        assert b"s3cret" not in file.read_bytes()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"][-4:] == [
        "--hf-token",
        "***",
        "password=***",
        "https://***@h/",
    ]
