"""Load, texts and measures: how the figures in docs/measurements.md come about."""
