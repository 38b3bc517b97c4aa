"""A model in this process, both halves of its family: for tools, benches and tests. Workers keep the halves apart."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protocol.errors import ShoalError
from protocol.messages import Payload
from protocol.spec import ModelSpec
from workers.families import Family, Parts, Prepared, family
from workers.jobs import at_item, counted


class Alone:
    """Loaded when made. Raises what the family's load raises."""

    def __init__(
        self,
        spec: ModelSpec,
        folder: Path | None,
        device: str = "cpu",
        *,
        code: Family | None = None,
        report: Callable[[float], None] = lambda share: None,
    ) -> None:
        code = code or family(spec.family)
        self.spec = spec
        self.folder = folder
        self.preparer = code.preparer(spec, folder)
        self.model = code.load(spec, folder, device, report)

    def run(self, payload: Payload) -> list[dict[str, Any]]:
        """One result map per item, with `{"error": …}` for one that failed alone; all parts in as few forwards as
        their keys allow. Raises ShoalError where the whole call is impossible.
        """
        prepared = self.preparer.prepare(payload)
        outputs = iter(self.forward([part for parts in prepared if isinstance(parts, list) for part in parts]))
        return [self._finish(index, parts, outputs, payload) for index, parts in enumerate(prepared)]

    def forward(self, parts: Sequence[Prepared]) -> list[Any]:
        """Raw outputs, in order."""
        outputs: list[Any] = [None] * len(parts)
        for key in dict.fromkeys(part.key for part in parts):
            places = [index for index, part in enumerate(parts) if part.key == key]
            found = self.model.forward([parts[index].inputs for index in places], key)
            for index, output in zip(places, found, strict=True):
                outputs[index] = output
        return outputs

    def _finish(self, index: int, parts: Parts | ShoalError, outputs: Any, payload: Payload) -> dict[str, Any]:
        try:
            if isinstance(parts, ShoalError):
                raise parts
            own = [next(outputs) for _ in parts]
            return {**counted(parts), **self.preparer.finish(own, parts, payload.options)}
        except ShoalError as error:
            return {"error": at_item(error, index).to_wire()}
