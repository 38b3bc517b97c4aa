"""Five kinds of model on one device at once, through the whole product; `./shoal measure 3` gives them a minute."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from bench.system import System

five_kinds: Any = importlib.import_module("bench.measures.3_five_kinds")


@pytest.mark.timeout(600)
def test_five_kinds_share_a_device_with_room_for_all_and_for_three(tmp_path: Path) -> None:
    system = System(tmp_path)
    try:
        figure = five_kinds.drive(system, seconds=8.0)
    finally:
        system.close()

    assert figure.holds, f"{figure.value}: {figure.note}"
