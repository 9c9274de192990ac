"""The tasks of the systems: one for each head that is trained, and errors that name what to set."""

import pytest

from t5x_like import losses, systems

# Heads without a loss: outputs for other uses, and ELECTRA's discriminator without a generator.
UNTRAINED = {"features", "discriminator"}


def first_size(name):
    return next(iter(systems.find(name).sizes.values()))


WITH_HEADS = [name for name in systems.names() if "head" in first_size(name)]


@pytest.mark.parametrize("name", WITH_HEADS)
def test_every_head_that_a_network_can_have_is_a_task_or_has_no_loss(name):
    with pytest.raises(ValueError, match=r"model.head='\?'") as caught:
        systems.build(name, first_size(name) | {"head": "?"})
    heads = set(str(caught.value).partition("Allowed: ")[2].split(", "))
    assert heads - UNTRAINED == set(systems.find(name).tasks)


@pytest.mark.parametrize("name", [name for name in systems.names() if name not in WITH_HEADS])
def test_a_system_without_heads_has_one_task(name):
    assert set(systems.find(name).tasks) == {""}


def test_a_head_without_a_task_is_named_with_its_system():
    with pytest.raises(ValueError, match=r"model.head='features': the system bert is not trained"):
        systems.find("bert").task({"head": "features"})


def test_a_batch_without_masked_tokens_is_refused():
    module = systems.build("bert", first_size("bert"))
    with pytest.raises(
        ValueError, match=r"predicts masked tokens, and the batch has none: set data"
    ):
        losses.masked_lm.loss(module, {}, module.example_batch(), None)


def test_structbert_without_shuffled_tokens_is_refused():
    module = systems.build("structbert", first_size("structbert"))
    loss = systems.find("structbert").task({"head": "pretraining"}).loss
    with pytest.raises(ValueError, match=r"predicts shuffled tokens, and the batch has none: set"):
        loss(module, {}, module.example_batch(), None)
