"""What each example's client needs: for `python -m examples`, and for the tests that run them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Client:
    """Packages of a virtual environment, and the oldest Python that they take."""

    packages: tuple[str, ...]
    oldest: tuple[int, int] = (3, 11)


SDK = Client(("sie-sdk==0.10.1",), (3, 12))

NEEDS = {
    "invoice": SDK,
    "claim": SDK,
    "contract": SDK,
}
