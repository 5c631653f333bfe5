"""What the command does with the terminal it has."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.local import hints, terminal
from services.local.commands.status import _hint
from services.local.config import StackConfig
from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.up import bring_up


def test_a_terminal_with_nothing_but_ascii_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    terminal.take_any_character()
    print("└─ decode ██▎ Zürich")
    assert written.getvalue() == b"`- decode ##: Z?rich\n"


def test_progress_goes_on_when_its_reader_has_left() -> None:
    code = (
        "import sys; from services.local.terminal import Progress\n"
        "progress = Progress(); sys.stdin.readline()\n"
        "progress('one'); progress('two'); print('three')\n"
        "print('cleaned up', file=sys.stderr)"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen(
        (sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    os.close(reader)
    _, said = process.communicate("go\n", timeout=20)
    assert (process.returncode, said) == (0, "cleaned up\n")


def test_a_hint_can_be_typed_from_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert hints.tokenpath("status") == ".venv/bin/tokenpath status"
    monkeypatch.chdir("/")
    assert hints.tokenpath("status") == str(tmp_path / ".venv/bin/tokenpath status").removeprefix("/")


@pytest.mark.parametrize(
    ("ready", "healths", "says"),
    [
        (True, ["serving", "serving"], ""),
        (True, ["serving", "gone"], "not whole"),
        (False, ["serving", "not serving"], "half-started"),
        (False, ["gone", "gone"], "Nothing of this stack runs"),
        (True, ["gone", "gone"], "Nothing of this stack runs"),
    ],
)
def test_status_says_what_to_do_about_a_stack_that_is_not_whole(ready: bool, healths: list[str], says: str) -> None:
    assert says in (hint := _hint(ready, healths))
    assert bool(hint) == bool(says)


def test_a_model_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    config = StackConfig(model="/nonexistent")
    with pytest.raises(StackError, match=r"TOKENPATH_LOCAL_MODEL: no model '/nonexistent'"):
        bring_up(StackFolder(tmp_path), config, os.environ, print)
    assert not (tmp_path / "logs").exists()
