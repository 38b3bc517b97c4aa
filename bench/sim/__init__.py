"""A fleet on virtual time: the dispatcher that ships, on simulated cards, against routers with per-worker queues.

    python -m bench.sim --trace steady --devices 8 --models 100
    python -m bench.sim --all

What is real: dispatcher, batching, residency, claims. What is simulated: the clock, the cards, the broker, the traffic.
"""
