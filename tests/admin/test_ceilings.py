"""`./shoal manage ceilings`, on the files that workers write."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from protocol import ceilings
from protocol.ceilings import Ceiling


@pytest.fixture
def data(tmp_path: Path, settings: Any) -> Path:
    settings.SHOAL_DATA = tmp_path
    for device in ("cpu", "cuda:0"):
        kept = {f"{device}-{name}": Ceiling(name, 512, 1 << 30, 1.7e9) for name in ("org/a", "org/b")}
        ceilings.change(ceilings.file(tmp_path, device), lambda _, kept=kept: kept)  # type: ignore[misc]
    return tmp_path


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("ceilings", *arguments, stdout=out)
    return out.getvalue()


def kept(data: Path, device: str) -> set[str]:
    return {one.model for one in ceilings.read(ceilings.file(data, device)).values()}


def test_they_are_listed_by_device(data: Path) -> None:
    rows = command("list").splitlines()
    assert len(rows) == 5
    assert [row.split()[:2] for row in rows[1:3]] == [["cpu", "org/a"], ["cpu", "org/b"]]
    assert "512" in rows[1] and "2023-11-14T22:13:20" in rows[1]


def test_one_model_is_forgotten_on_every_device(data: Path) -> None:
    assert command("forget", "org/a").startswith("2 forgotten")
    assert (kept(data, "cpu"), kept(data, "cuda:0")) == ({"org/b"}, {"org/b"})


def test_all_are_forgotten_on_one_device(data: Path) -> None:
    assert command("forget", "--all", "--device", "cuda-0").startswith("2 forgotten")
    assert (kept(data, "cpu"), kept(data, "cuda:0")) == ({"org/a", "org/b"}, set())


@pytest.mark.parametrize("arguments", [("forget",), ("forget", "org/unknown")])
def test_it_fails_when_it_did_nothing(data: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        command(*arguments)


def test_where_nothing_was_learned_the_list_is_empty(tmp_path: Path, settings: Any) -> None:
    settings.SHOAL_DATA = tmp_path
    assert len(command("list").splitlines()) == 1
