"""The cache folder: where it is, and that several processes may fill it at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from services.tokenization.cache import cache_folder, write_atomically
from services.tokenization.gguf_tokenizer import converted_folder


def test_the_variable_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENPATH_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    assert cache_folder() == tmp_path / "deep" / "cache"
    assert cache_folder().is_dir()


def test_a_home_that_cannot_be_written_is_replaced_by_a_private_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TOKENPATH_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder()
    assert folder == tmp_path / f"tokenpath-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_copies_of_a_file_share_a_folder_and_a_changed_one_gets_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENPATH_CACHE_DIR", str(tmp_path / "cache"))
    folders = []
    for name, content in (("a", b"x" * 100_000), ("b", b"x" * 100_000), ("c", b"x" * 99_999 + b"y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.gguf").write_bytes(content)
        folders.append(converted_folder(tmp_path / name / "m.gguf"))
    assert folders[0] == folders[1] != folders[2]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes((number,)) * 200_000 for number in range(4)]
    path.write_bytes(contents[0])
    writers = [
        threading.Thread(target=lambda content=content: [write_atomically(path, content) for _ in range(20)])
        for content in contents
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    for writer in writers:
        writer.join()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
