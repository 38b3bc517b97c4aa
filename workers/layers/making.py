"""One checkpoint at a time becomes a model.

While transformers makes one it replaces functions of its own for the whole process, such as `tie_weights`, and puts
back what it found. Two threads that overlap put back each other's, and no later model of that process ties its weights.
"""

import threading

# held by whoever is in `from_pretrained`, or in a library's own that calls it
MAKING = threading.RLock()
