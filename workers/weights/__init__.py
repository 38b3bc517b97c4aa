"""Where a model's files come from, and what can be said of them without loading them. No torch: NumPy at most.

An engine reads `files` and `failures` alone: what asks the hub stays in the worker, whatever hub library a bundle has.
"""
