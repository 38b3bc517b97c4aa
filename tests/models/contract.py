"""What every family must hold, whatever its models do. A family's tests subclass `Contract` and say what is theirs."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from inference.dialects import native as dialect
from protocol import native
from protocol.errors import InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.spec import ModelSpec
from workers.families import family
from workers.families.alone import Alone

ROOT = Path(__file__).parents[2]
PIXEL = 1.0
COUNTS = (*native.UNITS, "truncated")


class Contract:
    """Loaded once per class. What a subclass must say stands first; all else is tested."""

    tolerance = 1e-4  # of scores and of every number in vectors

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        """Write a checkpoint into `folder`, or leave it empty where the spec names a package."""
        raise NotImplementedError

    @classmethod
    def payload(cls) -> Payload:
        """At least five good items of different sizes, the smallest first."""
        raise NotImplementedError

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        """What the field's own library gives, item by item, as result maps without what was counted."""
        raise NotImplementedError

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        """One that gets through the gateway and cannot be read."""
        raise NotImplementedError

    @classmethod
    def locate(cls, spec: ModelSpec, folder: Path) -> Path | None:
        """Where the weights are; the folder of `make`, unless the spec names a package."""
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("checkpoint")

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls, folder: Path) -> Alone:
        spec = cls.make(folder)
        return Alone(spec, cls.locate(spec, folder))

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, loaded: Alone) -> list[Mapping[str, Any]]:
        assert loaded.folder is not None
        return cls.reference(loaded.folder, cls.payload())

    def test_an_item_alone_equals_its_library(self, loaded: Alone, expected: list[Mapping[str, Any]]) -> None:
        alone = [loaded.run(one)[0] for one in singles(self.payload())]
        assert_same(plain(alone), expected, self.tolerance)

    def test_items_together_equal_their_library(self, loaded: Alone, expected: list[Mapping[str, Any]]) -> None:
        assert_same(plain(loaded.run(self.payload())), expected, self.tolerance)

    def test_batch_mates_change_nothing(self, loaded: Alone) -> None:
        payload = self.payload()
        whole = loaded.run(payload)
        for step in (2, 3):
            places = list(range(len(payload.items)))[::-step]
            some = Payload([payload.items[place] for place in places], payload.options, payload.query)
            assert_same(plain(loaded.run(some)), plain([whole[place] for place in places]), self.tolerance)

    def test_there_is_one_result_per_item(self, loaded: Alone) -> None:
        payload = self.payload()
        twice = Payload(payload.items * 2, payload.options, payload.query)
        assert len(loaded.run(twice)) == len(payload.items) * 2

    def test_larger_items_cost_more(self, loaded: Alone) -> None:
        costs = [sum(part.cost for part in parts_of(found)) for found in loaded.preparer.prepare(self.payload())]
        assert costs == sorted(costs)
        assert costs[0] < costs[-1]
        assert all(type(part.cost) is int and part.cost >= 1 for part in self.parts(loaded))

    def parts(self, loaded: Alone) -> list[Any]:
        return [part for found in loaded.preparer.prepare(self.payload()) for part in parts_of(found)]

    def test_a_bad_item_is_refused_alone(self, loaded: Alone) -> None:
        """S034, S041: with its place; in every family."""
        payload = self.payload()
        mixed = Payload([payload.items[0], self.bad_item(), payload.items[1]], payload.options, payload.query)

        first, bad, second = loaded.run(mixed)

        good = loaded.run(Payload(payload.items[:2], payload.options, payload.query))
        assert bad["error"]["code"] in ("INVALID_INPUT", "INPUT_TOO_LONG"), bad
        assert bad["error"]["param"].startswith("items[1]")
        assert_same(plain([first, second]), plain(good), self.tolerance)

    def test_threads_prepare_what_one_does(self, loaded: Alone) -> None:
        wanted = [part.inputs for part in self.parts(loaded)]
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda _: self.parts(loaded), range(16)):
                assert_same([part.inputs for part in found], wanted, 0.0)

    def test_preparing_imports_no_torch(self, loaded: Alone) -> None:
        code = f"""
import sys
from pathlib import Path
from protocol.messages import Payload
from protocol.spec import ModelSpec
from workers.families import family
spec = ModelSpec.from_wire({loaded.spec.to_wire()!r})
preparer = family(spec.family).preparer(spec, Path({str(loaded.folder)!r}))
preparer.prepare(Payload(**{self.payload().to_wire()!r}))
found = [name for name in ("torch", "transformers") if name in sys.modules]
assert not found, found
"""
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=ROOT)

    def test_results_have_a_form_on_the_wire(self, loaded: Alone) -> None:
        payload = self.payload()
        results = loaded.run(payload)
        asked = native.Asked(loaded.spec.primitives[0], loaded.spec.model, [None] * len(results))
        body = native.json_body(asked, results, {})
        assert native.dumps(body)
        assert msgpack.packb(body, default=dialect._array)
        for item, result in zip(payload.items, results, strict=True):
            assert_well_formed(item, result)

    def test_its_size_is_known_before_it_is_loaded(self, loaded: Alone) -> None:
        estimate = family(loaded.spec.family).estimate_bytes(loaded.spec, loaded.folder, "cpu")
        assert estimate == pytest.approx(loaded.model.bytes, rel=0.25, abs=1 << 20)

    def test_what_is_known_of_it_can_be_shown(self, loaded: Alone) -> None:
        assert native.dumps(dict(loaded.model.facts()))


class ExtractContract(Contract):
    """What a family that extracts must hold on top."""

    def test_an_option_it_does_not_read_is_refused(self, loaded: Alone) -> None:
        code: Any = family(loaded.spec.family)
        unread = sorted({"task", "language", "max_new_tokens", "pages"} - code.OPTIONS)
        payload = self.payload()
        with pytest.raises(InvalidInput):
            loaded.preparer.prepare(Payload(payload.items, {**payload.options, unread[0]: 1}))


def singles(payload: Payload) -> list[Payload]:
    return [Payload([item], payload.options, payload.query) for item in payload.items]


def parts_of(found: Any) -> list[Any]:
    if isinstance(found, ShoalError):
        raise found
    return list(found)


def plain(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Without what the worker counts."""
    return [{name: value for name, value in result.items() if name not in COUNTS} for result in results]


def assert_same(ours: Any, theirs: Any, tolerance: float, place: str = "", key: str = "") -> None:
    """The same shape and words; numbers within `tolerance`, boxes within a pixel."""
    if isinstance(theirs, Mapping):
        assert isinstance(ours, Mapping) and ours.keys() == theirs.keys(), f"{place}: {ours} is not {theirs}"
        for name in theirs:
            assert_same(ours[name], theirs[name], tolerance, f"{place}.{name}", name)
    elif isinstance(theirs, np.ndarray):
        assert np.shape(ours) == theirs.shape, f"{place}: {np.shape(ours)} is not {theirs.shape}"
        assert np.allclose(ours, theirs, rtol=0, atol=tolerance), f"{place}: {np.abs(ours - theirs).max()} apart"
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), f"{place}: {ours} is not {theirs}"
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, tolerance, f"{place}[{index}]", key)
    elif isinstance(theirs, float):
        allowed = PIXEL if key == "bbox" else tolerance
        assert ours == pytest.approx(theirs, abs=allowed, rel=0), f"{place}: {ours} is not {theirs}"
    else:
        assert ours == theirs, f"{place}: {ours!r} is not {theirs!r}"


def assert_well_formed(item: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """The keys that clients index, and offsets that lead to the text."""
    assert "error" not in result, result
    for entity in result.get("entities", ()):
        assert entity.keys() >= {"text", "label", "score"}
        if "start" in entity:
            assert item["text"][entity["start"] : entity["end"]] == entity["text"]
    for relation in result.get("relations", ()):
        assert relation.keys() >= {"head", "tail", "relation", "score"}
    for one in result.get("classifications", ()):
        assert one.keys() >= {"label", "score"}
    for one in result.get("objects", ()):
        assert one.keys() >= {"label", "score", "bbox"} and len(one["bbox"]) == 4
    if "score" in result:
        assert type(result["score"]) is float
