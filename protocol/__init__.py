"""Plain Python that gateway and worker share: what a model, a request and a reply are, and how they cross a wire."""
