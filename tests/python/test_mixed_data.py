"""Real data mixed with fakes is converted on the way in, and never written to."""

import pytest
import torch

from torchfake import RealTensorError, fake_mode, is_fake, to_fake

REAL = torch.arange(6.0).view(2, 3)


def test_a_real_batch_among_fakes_is_converted_with_its_values():
    with fake_mode():
        sum_ = torch.ones(2, 3) + REAL
        assert is_fake(sum_)
        assert sum_.tolist() == (torch.ones(2, 3) + REAL).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_a_large_real_batch_is_converted_without_its_values():
    large = torch.ones(1000, 1000)
    with fake_mode():
        assert (torch.ones(1000, 1000) @ large).shape == (1000, 1000)
        assert is_fake(large.cuda())


def test_real_data_moves_to_a_card_under_inference_mode_too():
    for move in (lambda x: x.to("cuda"), lambda x: x.cuda(), lambda x: x.to("cuda", torch.half)):
        with fake_mode(), torch.inference_mode():
            moved = move(REAL)
            assert is_fake(moved) and moved.device.type == "cuda"
            assert moved.tolist() == REAL.tolist()
            assert not is_fake(REAL.to(torch.half)) and not is_fake(REAL.reshape(3, 2).T.flatten())


def test_writes_to_a_real_tensor_are_seen_at_the_next_use():
    real = torch.zeros(3)
    with fake_mode():
        fake = torch.ones(3)
        assert (fake + real).tolist() == [1.0] * 3
    real += 5
    with fake_mode():
        assert (torch.ones(3) + real).tolist() == [6.0] * 3


def test_writing_a_fake_into_a_real_tensor_is_an_error_that_leaves_it_as_it_was():
    real = torch.zeros(3)
    with fake_mode():
        for write in (
            lambda: real.add_(torch.ones(3)),
            lambda: real.copy_(torch.ones(3)),
            lambda: torch.add(torch.ones(3), 1, out=real),
            lambda: real.__setitem__(0, torch.ones(1, dtype=torch.float64)[0]),
        ):
            with pytest.raises(RealTensorError):
                write()
    assert real.tolist() == [0.0] * 3


def test_what_is_trained_has_to_be_converted():
    layer = torch.nn.Linear(3, 2)
    with fake_mode(), pytest.raises(RealTensorError, match="to_fake"):
        layer(torch.ones(1, 3))


def test_to_fake_of_a_module_is_a_copy_with_fakes():
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    layer[0].bias.tied = layer.tied = layer[0].bias
    fake = to_fake(layer, device="cuda")
    assert all(map(is_fake, fake.state_dict().values()))
    assert fake[0].weight.device.type == "cuda"
    assert isinstance(fake[0].weight, torch.nn.Parameter)
    assert fake.tied is fake[0].bias
    assert not is_fake(layer[0].weight)
    with fake_mode():
        fake(torch.ones(4, 3, device="cuda")).sum().backward()
    assert fake[0].weight.grad is not None
