"""Draws that groups of prompts would change take one group, or are refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingvo_pipe.keras.cells.private_names import global_seed
from lingvo_pipe.keras.group_draws import first_place
from tests.keras.language_models import (
    LENGTHS,
    MASK,
    TOKENS,
    TinyLanguageModel,
    hub,
    pipelined_of,
    prompts,
    tokens_of,
)
from tests.keras.toy_models import UnorderedSeeds
from tests.support.cases import exhaustive
from tests.support.errors import fails


def own_sampler(*seeds: Any) -> Any:
    """Returns a sampler that draws by several seeds for each token."""

    def get_next_token(sampler: Any, probabilities: Any) -> Any:
        logits = keras.ops.log(probabilities)
        draws = [keras.random.categorical(logits, 1, seed=seed) for seed in seeds]
        return keras.ops.squeeze(draws[-1], -1)

    kind = type("Own", (hub.samplers.Sampler,), {"get_next_token": get_next_token})
    return kind(temperature=2.0)


class Cooling(hub.samplers.RandomSampler):
    """A sampler that draws from ever likelier tokens."""

    def __init__(self) -> None:
        super().__init__(seed=3)
        self.count = keras.Variable(0.0, trainable=False)

    def get_next_token(self, probabilities: Any) -> Any:
        self.count.assign(self.count + 1.0)
        return super().get_next_token(keras.ops.power(probabilities, self.count))


def unordered() -> Any:
    generator = UnorderedSeeds(1)
    sampler = own_sampler(generator)
    sampler.seed_generator = generator
    return sampler


def two_draws() -> Any:
    generator = keras.random.SeedGenerator(1)
    sampler = own_sampler(generator, generator)
    sampler.seed_generator = generator
    return sampler


@pytest.mark.parametrize(
    "make",
    [
        lambda: own_sampler(7),
        lambda: own_sampler(None),
        exhaustive(lambda: own_sampler(keras.random.SeedGenerator(3))),
        two_draws,
        unordered,
        Cooling,
    ],
    ids=[
        *("seed", "global_seed", "untracked_generator", "two_draws"),
        *("unordered", "other_state"),
    ],
)
def test_draws_that_groups_would_change_are_of_one_group(make: Any) -> None:
    plain = TinyLanguageModel(make())
    pipelined = pipelined_of(TinyLanguageModel(make()))
    with fails(path="sampler"):
        tokens_of(pipelined, 2, 6, num_groups=2)
    generated = []
    for model in (plain, pipelined):
        global_seed().assign([5, 0])
        generated.append(tokens_of(model, 2, 6))
    assert generated[0] == generated[1]


def test_a_generator_that_never_draws_stays_as_it_is() -> None:
    """Also where the first group has the longer prompts, and skips seeds."""
    drawing, unused = keras.random.SeedGenerator(1), keras.random.SeedGenerator(2)
    sampler = own_sampler(drawing)
    sampler.seed_generator, sampler.other_generator = drawing, unused
    before = [x.state.numpy().tolist() for x in (drawing, unused)]
    reversed_prompts = {name: x[::-1] for name, x in prompts(4, 10).items()}
    pipelined = pipelined_of(TinyLanguageModel(sampler))
    pipelined.generate(reversed_prompts, stop_token_ids=None, num_groups=2)
    assert drawing.state.numpy().tolist() != before[0]
    assert unused.state.numpy().tolist() == before[1]


def test_draws_begin_after_the_shortest_prompt() -> None:
    masks = {"encoder_padding_mask": MASK[:, :1], "padding_mask": MASK}
    assert first_place(masks) == min(LENGTHS)
    with fails(path="generate"):
        first_place({"token_ids": TOKENS})


def test_prompts_that_are_padded_with_a_stop_token_are_one_group() -> None:
    """KerasHub's call goes on as long as a prompt without padding needs."""
    inputs = prompts(4, 10)
    inputs["token_ids"] = np.where(inputs["padding_mask"], inputs["token_ids"], 7)
    inputs["padding_mask"][0] = 1
    inputs["token_ids"][0] = 3
    plain, pipelined = TinyLanguageModel("greedy"), TinyLanguageModel("greedy")
    expected = plain.generate(inputs, stop_token_ids=[7])
    generate = pipelined_of(pipelined).generate
    generated = generate(inputs, stop_token_ids=[7])
    np.testing.assert_array_equal(generated["token_ids"], expected["token_ids"])
    with fails(path="num_groups", got=2):
        generate(inputs, stop_token_ids=[7], num_groups=2)
