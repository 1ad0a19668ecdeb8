"""What careless or hostile use of a shell does to a command: files, pipes, terminals."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli import main
from tests.cli.conftest import Muster

PLAN = ("plan", "llama-3-8b", "--on", "v5p-16", "--batch", "64seq", "--seq", "4096")


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("muster", f"{sys.executable} -m muster")],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_out_refuses_a_pipe_and_leaves_it(muster: Muster, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    outcome = muster(*PLAN, "--out", str(pipe))
    assert outcome.status == 2
    assert "pipe" in outcome.only_line
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_out_refuses_the_models_own_config(muster: Muster, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(Path("src/muster/models/data/configs/Llama-3-8B.json").read_text("utf-8"))
    before = config.read_text("utf-8")
    for model in (config, tmp_path):
        outcome = muster("plan", str(model), *PLAN[2:], "--out", str(config))
        assert outcome.status == 2
        assert "own config" in outcome.only_line
    assert config.read_text("utf-8") == before


def test_out_follows_a_link_and_keeps_modes(muster: Muster, tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("{}")
    target.chmod(0o640)
    link.symlink_to(target)
    assert muster(*PLAN, "--out", str(link)).status == 0
    assert link.is_symlink()
    assert json.loads(target.read_text("utf-8"))["muster"] == 1
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    done = shell(f"ulimit -f 1; muster {' '.join(PLAN)} --out {tmp_path}/plan.json")
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["chips", "models", " ".join(PLAN)])
def test_a_reader_that_has_enough_is_no_failure(command: str) -> None:
    done = shell(f"set -o pipefail; muster {command} | head -n 1")
    assert done.returncode == 0
    assert done.stderr == ""


def test_an_answer_that_cannot_be_written_is_one_line() -> None:
    done = shell("muster chips > /dev/full")
    assert done.returncode == 2
    assert "cannot write the answer" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    closed = shell("muster chips >&-")
    assert closed.returncode == 2
    assert "standard output is closed" in closed.stderr


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_an_error_that_cannot_be_said_has_its_status(where: str) -> None:
    """1 is an answer, "does not pass": no script may take a bad input for it."""
    assert shell(f"muster params nosuch {where}").returncode == 2


@pytest.mark.parametrize("columns", ["abc", "", "0", "-5", "1", "40", "100000", "٣"])
def test_any_width_gives_a_readable_report(columns: str) -> None:
    done = shell(f"muster {' '.join(PLAN)}", COLUMNS=columns)
    assert done.returncode == 0
    assert 40 < max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_block_characters_gets_hashes(encoding: str) -> None:
    done = shell(f"muster {' '.join(PLAN)}", PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert "##" in done.stdout


def test_markup_in_a_name_is_shown_as_it_is(muster: Muster, tmp_path: Path) -> None:
    folder = tmp_path / "a[red]b[bold]"
    folder.mkdir(parents=True)
    config = Path("src/muster/models/data/configs/Llama-3-8B.json").read_text("utf-8")
    (folder / "config.json").write_text(config)
    outcome = muster("plan", str(folder), *PLAN[2:])
    assert outcome.status == 0
    assert "a[red]b[bold]" in outcome.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--batch", "99999999999999999999999"),
        ("--batch", "1e400"),
        ("--batch", "1e15seq"),
        ("--batch", "1024seq", "--seq", "1e30"),
        ("--batch", "4M", "--tokens", "1e300"),
        ("--batch", "4M", "--mfu", "1e-310"),
        ("--batch", "4M", "--mfu", "40%%"),
        ("--batch", "4M", "--seq", ""),
        ("--batch", "4M", "--out", ""),
    ],
)
def test_what_is_beyond_all_use_is_refused_at_once(
    muster: Muster, arguments: tuple[str, ...]
) -> None:
    outcome = muster("plan", "llama-3-8b", "--on", "v5p-128", *arguments)
    assert outcome.status == 2
    assert len(outcome.only_line) < 300


def test_an_mfu_that_would_beat_the_peak_is_refused(muster: Muster) -> None:
    outcome = muster(*PLAN[:-1], "131072", "--mfu", "0.9")
    assert outcome.status == 2
    assert "out of reach" in outcome.only_line


def test_muster_alone_shows_its_help(muster: Muster) -> None:
    outcome = muster()
    assert outcome.status == 0
    assert "plan" in outcome.out


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask_too_much(*given: object, **more: object) -> None:
        raise MemoryError((given, more))

    monkeypatch.setattr(main.cli, "main", ask_too_much)
    assert main.run(["models"]) == 2
    assert capsys.readouterr().err == "muster: this machine's memory does not suffice for it\n"
