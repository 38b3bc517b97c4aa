"""Weights that leave their place and come back, by torch on a CPU: the mechanism is the same on a card."""

import pytest
import torch

from workers.layers.parking import TorchCopy


class Tagger(torch.nn.Module):
    """Shares a weight under two names, looks into one through a view, and has a recurrent layer with a flat list."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.recurrent = torch.nn.LSTM(16, 8, bidirectional=True, batch_first=True)
        self.out = torch.nn.Linear(16, 50, bias=False)
        self.out.weight = self.words.weight
        self.scale = torch.nn.Buffer(torch.full((50,), 2.0))
        self.first_rows = self.words.weight.detach()[:3]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.recurrent(self.words(ids))[0]) * self.scale
        return found


@pytest.fixture
def tagger() -> Tagger:
    torch.manual_seed(3)
    return Tagger().eval()


def bytes_held(model: torch.nn.Module) -> int:
    return sum(
        {one.data_ptr(): one.untyped_storage().nbytes() for one in [*model.parameters(), *model.buffers()]}.values()
    )


@torch.inference_mode()
def test_after_it_woke_a_model_answers_as_before(tagger: Tagger) -> None:
    ids = torch.arange(20).reshape(2, 10)
    expected, rows = tagger(ids), tagger.first_rows.clone()
    copy = TorchCopy([tagger])
    for _ in range(3):
        copy.park()
        copy.wake()
        assert torch.equal(tagger(ids), expected)
    assert torch.equal(tagger.first_rows, rows)
    assert tagger.out.weight is tagger.words.weight


def test_parking_frees_every_byte_and_says_what_the_copy_takes(tagger: Tagger) -> None:
    held = bytes_held(tagger)
    assert TorchCopy([tagger]).park() == held
    assert sum(one.untyped_storage().nbytes() for one in [*tagger.parameters(), *tagger.buffers()]) == 0


def test_a_copy_is_made_once_until_it_is_dropped(tagger: Tagger) -> None:
    copy = TorchCopy([tagger])
    copy.park()
    copy.wake()
    with torch.no_grad():
        tagger.scale.fill_(5.0)  # weights do not change while they are served; here it shows which copy comes back
    copy.park()
    copy.wake()
    assert tagger.scale[0] == 2.0
    copy.drop()
    with torch.no_grad():
        tagger.scale.fill_(5.0)
    copy.park()
    copy.wake()
    assert tagger.scale[0] == 5.0


def test_a_model_on_the_host_has_nothing_to_win(tagger: Tagger) -> None:
    assert TorchCopy.of(tagger) is None
