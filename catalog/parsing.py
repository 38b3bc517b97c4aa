"""Bodies of the management API: strict JSON. Python's own reader takes more than can be stored."""

from collections.abc import Mapping
from typing import IO, Any

import orjson
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser


class StrictJsonParser(BaseParser):
    """Refuses infinities, halves of surrogate pairs and endless nesting with the rest of what is no JSON."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return orjson.loads(stream.read())
        except orjson.JSONDecodeError as error:
            raise ParseError(f"The body is not valid JSON: {error}") from None
