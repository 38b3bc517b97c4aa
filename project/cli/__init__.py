"""The parts of `./shoal` that run inside the virtual environment; none of them imports Django or torch at the top."""
