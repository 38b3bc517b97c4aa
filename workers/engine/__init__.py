"""The engine: a child process that holds the weights of one bundle on one device and runs forwards.

It decides nothing. Messages over its pipe are maps with an `op`:

    dispatcher → engine                              engine → dispatcher
    load     {digest, spec, folder}                  progress {digest, share}
                                                     loaded   {digest, bytes, packed, facts, seconds}
                                                     load_failed {digest, kind, message, error}
    warm     {families}
    unload   {digest}                                unloaded {digest, rss}
    forward  {batch, digest, key, inputs}            done     {batch, outputs, seconds}
                                                     failed   {batch, kind, error}

`kind` is "memory" when the device or the host ran out of it, else "error". A broken pipe ends the engine.
"""
