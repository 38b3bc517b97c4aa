"""The options of `encode` that every dialect and family agree on, validated where they enter and trusted after."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

OUTPUTS = ("dense", "sparse", "multivector")
DTYPES = ("float32", "float16", "int8", "uint8", "binary")
OVERFLOWS = ("truncate", "error")


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How to encode: nothing here but `output_types`, `is_query`, `instruction` and `prompt` changes the forward."""

    output_types: tuple[str, ...] = ("dense",)
    output_dtype: str = "float32"
    is_query: bool | None = None  # None: the model's default prompt; True/False: its query or document prompt
    prompt: str | None = None  # literal text put before the input; "" turns the model's prompts off
    instruction: str | None = None
    dimensions: int | None = None  # Matryoshka width
    normalize: bool | None = None  # None: as the checkpoint says
    overflow: str = "truncate"

    def to_wire(self) -> dict[str, Any]:
        wire = asdict(self)
        wire["output_types"] = list(self.output_types)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "EncodeOptions":
        """Raises TypeError on a key that is not an option."""
        return cls(**{**wire, "output_types": tuple(wire.get("output_types", ("dense",)))})
