"""Where a model's files come from, and what can be said of them without loading them. No torch: NumPy at most."""

from workers.weights.resolve import resolve

__all__ = ["resolve"]
