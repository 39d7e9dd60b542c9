"""Packed sequences in a module: the numbers of PyTorch, for whatever lengths a batch has, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from eager import differences, twins
from steps import compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import glowtrain as gt
import glowtrain.torch as gtt

LENGTHS = ([5, 3, 1, 2], [1, 5, 5, 4], [5, 5, 5, 5], [2, 1, 1, 5])
STEPS = 5


class Tagger(nn.Module):
    """Recurrent layers over packed sequences; their results, and what is left of their states."""

    def __init__(self, kind: Any, total: int | None = None, value: float = 0.0, **settings: Any) -> None:
        super().__init__()
        self.rnn = kind(4, 6, **settings)
        self.head = nn.Linear(6 * (1 + self.rnn.bidirectional), 3)
        self.total, self.value = total, value

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, start: Any = None) -> Any:
        first = self.rnn.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        y, states = self.rnn(packed, start)
        y, given = pad_packed_sequence(y, batch_first=first, padding_value=self.value, total_length=self.total)
        return self.head(y), given, *(states if isinstance(states, tuple) else (states,))


def everything(results: Any, weights: torch.Tensor) -> torch.Tensor:
    """A loss that reads all results, padding too."""
    y, lengths, *states = results
    total = (y * weights[: y.numel()].reshape(y.shape)).sum() + (lengths * torch.arange(4)).sum()
    return total + sum((state * weights[: state.numel()].reshape(state.shape)).sum() for state in states)


def trained(make: Callable[[], nn.Module], *more: Any, time_first: bool = True) -> gtt.CompiledStep:
    """A few steps, each of other lengths, beside PyTorch's."""
    module, optimizer, other, theirs = twins(make(), lambda ps: torch.optim.SGD(ps, 0.02, momentum=0.5))
    step = gtt.compile_step(module, everything, optimizer)
    weights = torch.linspace(-1, 1, 400)
    for lengths in LENGTHS:
        x = torch.randn((STEPS, 4, 4) if time_first else (4, STEPS, 4))
        batch = x, torch.tensor(lengths), *more
        theirs.zero_grad()
        expected = everything(other(*batch), weights)
        expected.backward()
        theirs.step()
        torch.testing.assert_close(step(*batch, weights), expected.detach(), atol=1e-4, rtol=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4
    assert len(step._compiled) == 1
    return step


RELU = {"nonlinearity": "relu"}


@pytest.mark.parametrize("settings", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_over_packed_sequences(kind: Any, settings: dict[str, Any]) -> None:
    trained(lambda: Tagger(kind, **settings))


@pytest.mark.parametrize("settings", [{"batch_first": True}, {"batch_first": True, "total": 8, "value": 0.5}])
def test_layouts_and_padding(settings: dict[str, Any]) -> None:
    trained(lambda: Tagger(nn.GRU, **settings), time_first=False)
    trained(lambda: Tagger(nn.RNN, **settings, **RELU), time_first=False)


def test_states_to_start_from_belong_to_their_sequences() -> None:
    start = torch.randn(4, 4, 6), torch.randn(4, 4, 6)
    trained(lambda: Tagger(nn.LSTM, num_layers=2, bidirectional=True), start)
    trained(lambda: Tagger(nn.GRU, num_layers=2, bidirectional=True), start[0])


def test_longest_sequences_shorter_than_the_padding() -> None:
    """As in batches that are padded to a few lengths; without pad_packed_sequence, or with a length for it."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTM(4, 6, batch_first=True), nn.GRU(6, 5, batch_first=True)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            packed = pack_padded_sequence(x, mask.sum(1), batch_first=True, enforce_sorted=False)
            outputs, _ = self.first(packed)
            return self.second(outputs)[1][-1]

    module, optimizer, other, theirs = twins(Classifier(), lambda ps: torch.optim.SGD(ps, 0.5))
    step, labels = gtt.compile_step(module, cross_entropy, optimizer), torch.tensor([0, 3])
    for lengths in ([3, 1], [2, 4], [5, 1]):
        x, mask = torch.randn(2, 5, 4), torch.arange(5) < torch.tensor(lengths)[:, None]
        x[~mask] = float("nan")  # nobody reads padding
        theirs.zero_grad()
        expected = cross_entropy(other(x, mask), labels)
        expected.backward()
        theirs.step()
        torch.testing.assert_close(step(x, mask, labels), expected.detach())
    assert differences(module.state_dict(), other.state_dict()) < 1e-5
    trained(lambda: Tagger(nn.LSTM, total=STEPS))


def test_sequences_that_a_module_packs_itself() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 3)

        def forward(self, *sequences: torch.Tensor) -> torch.Tensor:
            y, _ = pad_packed_sequence(self.rnn(pack_sequence(sequences, enforce_sorted=False))[0])
            return y

    module, x, y = Lists(), torch.randn(2, 4), torch.randn(3, 4)
    expected = mse_loss(module(x, y), torch.zeros(3, 2, 3)).detach()
    torch.testing.assert_close(compiled(module, mse_loss)(x, y, torch.zeros(3, 2, 3)), expected)


def test_dropout_between_layers_draws_for_each_step() -> None:
    module = Tagger(nn.LSTM, num_layers=2, dropout=0.5)
    step = gtt.compile_step(module, everything, torch.optim.SGD(module.parameters(), 0.0))
    batch = torch.randn(STEPS, 4, 4), torch.tensor(LENGTHS[0]), torch.linspace(-1, 1, 400)
    assert len({float(step(*batch)) for _ in range(3)}) == 3


def test_lengths_that_do_not_fit() -> None:
    module = Tagger(nn.LSTM)
    step, weights, x = compiled(module, everything), torch.linspace(-1, 1, 400), torch.randn(STEPS, 4, 4)
    step(x, torch.tensor(LENGTHS[0]), weights)
    before = [parameter.clone() for parameter in module.parameters()]
    for words, lengths in (
        ("must be from 1 to 5, not from 0 to 5", [5, 0, 1, 2]),
        ("must be from 1 to 5, not from 1 to 6", [6, 5, 1, 2]),
        ("makes 4 steps of this batch, whose sequences are padded to 5: give it total_length=x.size(1)", [4, 3, 1, 2]),
    ):
        assert words in refusal(lambda: step(x, torch.tensor(lengths), weights))  # noqa: B023
    assert all(map(torch.equal, before, module.parameters()))
    total = compiled(Tagger(nn.LSTM, total=STEPS), everything)
    assert "must be from 1 to 5" in refusal(lambda: total(x, torch.tensor([6, 5, 1, 2]), weights))
    last = compiled(nn.LSTM(4, 3), lambda rnn, x, n: rnn(pack_padded_sequence(x, n))[1][0].sum(), targets=0)
    assert float(last(x, torch.tensor([4, 3, 2, 2]))) != 0
    assert "3 sequences have lengths of shape [4]" in refusal(lambda: last(x[:, :3], torch.tensor([4, 3, 2, 2])))


@pytest.mark.parametrize(("total", "lengths"), [(None, [5, 0, 1, 2]), (5, [6, 5, 1, 2]), (None, [4, 3, 1, 2])])
def test_computed_lengths_that_do_not_fit_update_nothing(total: int | None, lengths: list[int]) -> None:
    class Computed(Tagger):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            return super().forward(x, lengths * 2 - lengths)

    module = Computed(nn.LSTM, total)
    before = [parameter.clone() for parameter in module.parameters()]
    with pytest.warns(gtt.NonFiniteLossWarning, match="the loss is nan"):
        compiled(module, everything)(torch.randn(STEPS, 4, 4), torch.tensor(lengths), torch.linspace(-1, 1, 400))
    assert all(map(torch.equal, before, module.parameters()))


USES: dict[str, Callable[[PackedSequence], Any]] = {
    "relu of": lambda packed: torch.relu(packed.data),
    "mean of": lambda packed: packed.data.mean(),
    "batch_sizes of": lambda packed: packed.batch_sizes[1],
    "cross_entropy of": lambda packed: cross_entropy(packed.data, packed.data),
    "size of": lambda packed: packed.data.size(0),
    "sum of": lambda packed: packed.batch_sizes.sum(),
}


@pytest.mark.parametrize("words", USES)
def test_nothing_looks_into_a_packed_sequence(words: str) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 3)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            return USES[words](self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))[0])

    said = refusal(lambda: compiled(Looks(), mse_loss)(torch.randn(5, 2, 4), torch.tensor([5, 2]), torch.zeros(())))
    assert f"{words} a packed sequence's own tensors is not followed" in said
    assert "compute before pack_padded_sequence and after pad_packed_sequence" in said


def test_what_is_not_packed_here() -> None:
    packed = pack_padded_sequence(torch.randn(5, 2, 4), torch.tensor([5, 2]))
    said = refusal(lambda: compiled(nn.LSTM(4, 3), mse_loss)(packed, torch.zeros(())))
    assert "argument 0 of the step: a packed sequence is no argument" in said
    x, lengths = torch.randn(STEPS, 4, 4), torch.tensor(LENGTHS[0])
    last = compiled(
        nn.LSTM(4, 3, proj_size=2), lambda rnn, x, n: rnn(pack_padded_sequence(x, n))[1][0].sum(), targets=0
    )
    assert "LSTM(proj_size=) takes no packed sequences" in refusal(lambda: last(x, lengths.sort(descending=True)[0]))

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)

        def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> Any:
            return self.embedding(pack_padded_sequence(words, lengths, enforce_sorted=False).data)

    words = torch.zeros(5, 4, dtype=torch.long)
    assert "pack what an embedding makes of them" in refusal(
        lambda: compiled(Words(), mse_loss)(words, lengths, torch.zeros(()))
    )


def test_graphs_and_torch_compile() -> None:
    """A graph has the results of PyTorch; what Dynamo captures around packed sequences is right, whoever computes."""
    module, x, lengths = Tagger(nn.LSTM, total=STEPS), torch.randn(STEPS, 4, 4), torch.tensor(LENGTHS[3])
    expected = module(x, lengths)
    function = gt.compile(gt.from_torch(module, (x, lengths), dims={}))
    ours = function({"x": x.numpy(), "lengths": lengths.numpy()})
    for name, wanted in zip(("output0", "output1", "output2", "output3"), expected, strict=True):
        np.testing.assert_allclose(ours[name], wanted.detach().numpy(), atol=1e-5)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, backend="glowtrain")(x, lengths), expected)
