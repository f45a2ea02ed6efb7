"""Small random results are drawn from the generators that the program seeds. See Note [Draws]."""

import pytest
import torch

from torchfake import FakeTensorMode, UnknownValuesError, disable_fake_tensor_cache, fake_mode

DRAWS = {
    "rand": lambda device: torch.rand(3, device=device),
    "randn": lambda device: torch.randn(2, 2, device=device),
    "randint": lambda device: torch.randint(0, 100, (8,), device=device),
    "randperm": lambda device: torch.randperm(9, device=device),
    "uniform_": lambda device: torch.empty(4, device=device).uniform_(),
    "normal_": lambda device: torch.empty(4, device=device).normal_(),
    "bernoulli_": lambda device: torch.empty(16, device=device).bernoulli_(0.5),
    "bernoulli": lambda device: torch.bernoulli(torch.full((16,), 0.5, device=device)),
    "multinomial": lambda device: torch.multinomial(torch.ones(8, device=device), 4),
    "rand_like": lambda device: torch.rand_like(torch.ones(5, device=device)),
    "dropout": lambda device: torch.nn.functional.dropout(torch.ones(32, device=device)),
    "exponential_": lambda device: torch.empty(4, device=device).exponential_(),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_small_draw_is_known_and_repeats_with_its_seed(name, device):
    def draw():
        torch.manual_seed(7)
        torch.cuda.manual_seed(7)
        return [DRAWS[name](device).tolist() for _ in range(3)]

    with fake_mode():
        first = draw()
        assert draw() == first
        with disable_fake_tensor_cache():
            assert draw() == first


def test_draws_on_the_cpu_are_those_of_a_real_run():
    torch.manual_seed(3)
    real = torch.rand(5).tolist(), torch.randint(10, (4,)).tolist()
    torch.manual_seed(3)
    with fake_mode():
        assert (torch.rand(5).tolist(), torch.randint(10, (4,)).tolist()) == real


def test_leaving_the_mode_restores_the_default_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with fake_mode():
        torch.rand(5)
        torch.rand(5, device="cuda")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_is_passed_is_drawn_from():
    with fake_mode():
        first = torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()
        assert torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist() == first
        on_card = torch.Generator("cuda").manual_seed(1)
        second = torch.rand(3, generator=on_card, device="cuda").tolist()
        assert torch.rand(3, generator=on_card, device="cuda").tolist() != second
        on_card.manual_seed(1)
        assert torch.rand(3, generator=on_card, device="cuda").tolist() == second


def test_a_large_draw_stays_unknown_and_draws_nothing():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with fake_mode():
        with pytest.raises(UnknownValuesError):
            torch.rand(65).tolist()
        assert torch.equal(torch.get_rng_state(), before)
    with fake_mode(drawn_values_limit=65):
        assert len(torch.rand(65).tolist()) == 65


def test_draws_can_be_turned_off_and_fake_tensor_mode_has_none():
    with fake_mode(drawn_values_limit=0), pytest.raises(UnknownValuesError):
        torch.rand(2).tolist()
    with FakeTensorMode(), pytest.raises(RuntimeError):
        torch.rand(1).item()


def test_a_draw_from_unknown_probabilities_is_unknown():
    with fake_mode(), pytest.raises(UnknownValuesError):
        torch.bernoulli(torch.rand(100)[:4]).tolist()


def test_layer_drop_and_random_crops_work():
    with fake_mode():
        kept = sum(bool(torch.rand([]) < 0.5) for _ in range(200))
        assert 50 < kept < 150
        image = torch.empty(3, 256, 256)
        top = torch.randint(0, 32, (1,)).item()
        assert image[:, top : top + 224].shape == (3, 224, 256)
