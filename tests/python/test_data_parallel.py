"""`torch.nn.DataParallel` and `torch.nn.parallel.comm` on virtual cards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.parallel as parallel
from torch import nn
from torch.nn.parallel import comm

from torchfake.modes import fake_mode


@pytest.fixture(autouse=True)
def _cards():
    with fake_mode(gpus="4xH100-80GB", unknown="stand-in"):
        yield


def devices(tensors):
    return [str(tensor.device) for tensor in tensors]


def test_a_batch_is_split_over_the_cards_and_its_gradients_come_together():
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 2)
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x, scale=None):
            seen.append((str(x.device), x.shape[0], str(self.linear.weight.device)))
            return self.norm(self.linear(x)) * scale["by"]

    model = nn.DataParallel(Net()).cuda()
    out = model(torch.randn(11, 5), scale={"by": torch.ones(11, 1, device="cuda")})
    out.sum().backward()
    assert sorted(seen) == [(f"cuda:{i}", rows, f"cuda:{i}") for i, rows in enumerate((3, 3, 3, 2))]
    assert out.shape == (11, 2) and out.device == torch.device("cuda:0")
    assert {str(p.grad.device) for p in model.parameters()} == {"cuda:0"}


def test_one_card_needs_no_copies():
    model = nn.DataParallel(nn.Linear(5, 2), device_ids=[0]).cuda()
    assert model(torch.randn(4, 5)).shape == (4, 2)


def test_copies_and_parts_claim_their_cards():
    x = torch.arange(12.0).view(4, 3).cuda()
    assert devices(comm.broadcast(x, [0, 2])) == ["cuda:0", "cuda:2"]
    parts = comm.scatter(x, [1, 3], chunk_sizes=[1, 3])
    assert devices(parts) == ["cuda:1", "cuda:3"] and [p.shape[0] for p in parts] == [1, 3]
    assert comm.gather(parts, destination=2).tolist() == x.tolist()
    assert comm.gather(parts, destination="cpu").device.type == "cpu"
    assert comm.reduce_add([torch.ones(3).cuda(i) for i in range(3)], 1).tolist() == [3.0, 3.0, 3.0]


def test_copies_of_many_tensors_share_a_buffer_on_each_card():
    tensors = [
        torch.ones(3, device="cuda"),
        torch.ones(2, dtype=torch.long, device="cuda"),
        torch.ones(5, device="cuda"),
    ]
    own, copied = comm.broadcast_coalesced(tensors, [0, 1])
    assert own[0] is tensors[0]
    assert [(str(c.device), c.dtype, tuple(c.shape)) for c in copied] == [
        ("cuda:1", t.dtype, tuple(t.shape)) for t in tensors
    ]
    assert copied[0].untyped_storage().data_ptr() == copied[2].untyped_storage().data_ptr()
    copied[0].add_(1)
    assert copied[2]._version == 0


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(RuntimeError, match=r"index 1 has invalid shape \[2, 4\], but expected \[2, 3\]"):
        comm.gather([torch.ones(1, 3).cuda(0), torch.ones(2, 4).cuda(1)])
    with pytest.raises(RuntimeError, match="same length"):
        comm.scatter(torch.ones(4).cuda(), [0, 1], chunk_sizes=[1, 1, 2])
    with pytest.raises(RuntimeError, match=r"on devices\[0\]: 1"):
        comm.broadcast_coalesced([torch.ones(3).cuda(0)], [1, 2])
    with pytest.raises(RuntimeError, match="Exactly one of"):
        comm.broadcast(torch.ones(3).cuda())


def test_modules_are_copied_and_called_side_by_side():
    copies = parallel.replicate(nn.Linear(5, 2).cuda(), [0, 1])
    outs = parallel.parallel_apply(copies, [torch.randn(3, 5).cuda(0), torch.randn(3, 5).cuda(1)])
    assert devices(outs) == ["cuda:0", "cuda:1"]
