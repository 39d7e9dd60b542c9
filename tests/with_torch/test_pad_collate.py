"""A DataLoader of sequences of many lengths, padded to a few: few compilations, and what PyTorch learns."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from eager import differences, twins
from steps import refusal
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import glowtrain.torch as gtt


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def tagged(scores: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    return cross_entropy(scores.transpose(1, 2), tags, ignore_index=-100)


def sentences(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    numbers = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 41, (count,), generator=numbers).tolist()
    return [
        (torch.randint(0, 50, (n,), generator=numbers), torch.randint(0, 4, (n,), generator=numbers)) for n in lengths
    ]


def as_pytorch_pads(examples: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, tags = zip(*examples, strict=True)
    return pad_sequence(tokens, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=-100)


@pytest.mark.filterwarnings("error::glowtrain.torch.UnkeptAttributeWarning")
def test_a_loader_of_many_lengths_takes_three_compilations() -> None:
    """With a smaller last batch, too: its rows are filled up."""
    module, optimizer, other, theirs = twins(Tagger(), lambda ps: torch.optim.SGD(ps, 0.5, momentum=0.5))
    step = gtt.compile_step(module, tagged, optimizer)
    examples = sentences(50)
    collate = gtt.PadCollate(lengths=(10, 20, 40), values=(0, -100), batch=4)
    for epoch in range(2):
        loaders = [
            DataLoader(examples, 4, shuffle=True, collate_fn=each, generator=torch.Generator().manual_seed(epoch))
            for each in (collate, as_pytorch_pads)
        ]
        for (tokens, tags), batch in zip(*map(iter, loaders), strict=True):
            theirs.zero_grad()
            loss = tagged(other(batch[0]), batch[1])
            loss.backward()
            theirs.step()
            torch.testing.assert_close(step(tokens, tags), loss.detach(), atol=2e-4, rtol=1e-4)
    assert len(step._compiled) <= 3
    assert differences(module.state_dict(), other.state_dict()) < 2e-3


def test_batches_have_the_structure_of_examples() -> None:
    collate = gtt.PadCollate((2, 4), {"x": 0.5, "mask": False, "scale": None, "label": -1})
    examples = [
        {"x": np.ones((n, 3), np.float32), "mask": [True] * n, "scale": torch.arange(2), "label": n} for n in (1, 3)
    ]
    batch = collate(examples)
    assert list(batch) == ["x", "mask", "scale", "label"]
    assert torch.equal(batch["mask"], torch.tensor([[True, False, False, False], [True, True, True, False]]))
    assert batch["x"].dtype is torch.float32
    assert batch["x"].shape == (2, 4, 3)
    assert batch["x"][0, :, 0].tolist() == [1.0, 0.5, 0.5, 0.5]
    assert batch["scale"].tolist() == [[0, 1], [0, 1]]
    assert batch["label"].tolist() == [1, 3]
    assert collate(examples[:1])["x"].shape == (1, 2, 3)
    assert pickle.loads(pickle.dumps(collate)) == collate


def test_rows_of_padding_fill_up_a_batch() -> None:
    collate = gtt.PadCollate((4,), (7, 1, -100), batch=3)
    tokens, lengths, label = collate([(torch.zeros(2, dtype=torch.long), 2, 5)])
    assert tokens.tolist() == [[0, 0, 7, 7], [7] * 4, [7] * 4]
    assert lengths.tolist() == [2, 1, 1]
    assert label.tolist() == [5, -100, -100]


def test_one_value_is_an_example_of_one_part() -> None:
    assert gtt.PadCollate((3,), 0)([torch.ones(2), torch.ones(1)]).tolist() == [[1, 1, 0], [1, 0, 0]]


LONG, SHORT = torch.zeros(5), torch.zeros(2)


def test_no_number_pads_as_a_float() -> None:
    assert gtt.PadCollate((2,), float("nan"))([torch.ones(1)])[0, 1].isnan()


@pytest.mark.parametrize(
    ("words", "settings", "examples"),
    [
        ("a sequence has 5 elements, more than the last of lengths=(2, 4)", ((4, 2), 0), [LONG]),
        ("is not in the structure of an example", ((4,), (0, 0)), [(SHORT, SHORT, SHORT)]),
        ("is not in the structure of an example", ((4,), (0, 0)), [{"x": SHORT}]),
        ("do not fit each other: float32[2, 1], float32[2, 2]", ((4,), 0), [torch.ones(2, 1), torch.ones(2, 2)]),
        ("do not fit each other: float32[2], int64[2]", ((4,), 0), [SHORT, SHORT.long()]),
        ("do not fit each other: float32[2], float32[5]", ((4,), None), [SHORT, LONG]),
        ("1 example cannot be filled up to batch=2", ((4,), None, 2), [SHORT]),
        ("a batch has 2 examples, more than batch=1", ((4,), 0, 1), [SHORT, SHORT]),
        ("-100 of values= cannot be an element of torch.uint8", ((4,), -100), [SHORT.to(torch.uint8)]),
        ("0.5 of values= cannot be an element of torch.int64", ((4,), 0.5), [SHORT.long()]),
        ("neither a tensor nor numbers", ((4,), 0), ["text"]),
        ("must be positive whole numbers", ((), 0), []),
        ("must be positive whole numbers", ((0, 4), 0), []),
        ("must be positive whole numbers", ((4.0,), 0), []),
        ("must be positive whole numbers", ((4,), 0, 0), []),
    ],
)
def test_what_does_not_fit_is_named(words: str, settings: Any, examples: list[Any]) -> None:
    lengths, values, *batch = settings
    assert words in refusal(lambda: gtt.PadCollate(lengths, values, batch=batch[0] if batch else None)(examples))
