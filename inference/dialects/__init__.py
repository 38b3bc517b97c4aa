"""Dialects: the public wordings of the primitives. Each parses a body into a Call and renders an Outcome or error."""
