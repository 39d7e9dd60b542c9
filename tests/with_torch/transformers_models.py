"""Models of Hugging Face's transformers with random weights: how each is made, and a batch for it.

``python tests/with_torch/transformers_models.py`` prints what the first call of each costs: loss and gradients through
``torch.compile``, and a compiled step, both with empty caches.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

import glowtrain.torch

Batch = dict[str, torch.Tensor]
WORDS, LENGTH = 99, 12
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 32, **SIZES}
IMAGE = {"image_size": 32, "patch_size": 8, **SIZES}
SEQ2SEQ = {
    f"{half}_{name}": extent
    for half in ("encoder", "decoder")
    for name, extent in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))
}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, WORDS, (2, length))


def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


def causal(architecture: type[nn.Module], config: Any) -> tuple[nn.Module, Batch]:
    words = tokens()
    return architecture(config), {"input_ids": words, "labels": words}


def bert() -> tuple[nn.Module, Batch]:
    model = hf.BertForSequenceClassification(hf.BertConfig(**TEXT))
    padded = torch.ones(2, LENGTH, dtype=torch.long)
    padded[1, 7:] = 0
    return model, {"input_ids": tokens(), "attention_mask": padded, "labels": torch.tensor([0, 1])}


def gpt2() -> tuple[nn.Module, Batch]:
    config = hf.GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=64, n_layer=2, n_head=4, **SPECIAL)
    return causal(hf.GPT2LMHeadModel, config)


def llama() -> tuple[nn.Module, Batch]:
    return causal(hf.LlamaForCausalLM, hf.LlamaConfig(num_key_value_heads=2, **TEXT))


def bloom() -> tuple[nn.Module, Batch]:
    """Its GELU is a ``torch.autograd.Function`` with a backward of its own."""
    return causal(hf.BloomForCausalLM, hf.BloomConfig(vocab_size=WORDS, hidden_size=64, n_layer=2, n_head=4))


def mamba() -> tuple[nn.Module, Batch]:
    config = hf.MambaConfig(vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, state_size=8)
    return causal(hf.MambaForCausalLM, config)


def t5() -> tuple[nn.Module, Batch]:
    config = hf.T5Config(
        vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return hf.T5ForConditionalGeneration(config), {"input_ids": tokens(), "labels": tokens(8)}


def whisper() -> tuple[nn.Module, Batch]:
    config = hf.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=16, d_model=64, max_source_positions=20, max_target_positions=20,
        decoder_start_token_id=1, **SEQ2SEQ, **SPECIAL,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 16, 40), "labels": tokens(8)}


def vit() -> tuple[nn.Module, Batch]:
    model = hf.ViTForImageClassification(hf.ViTConfig(num_labels=4, **IMAGE))
    return model, {"pixel_values": images(), "labels": torch.tensor([0, 3])}


def clip() -> tuple[nn.Module, Batch]:
    text = {"bos_token_id": 1, "eos_token_id": 2, **TEXT}
    words = tokens()
    words[:, -1] = 2
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=IMAGE, projection_dim=32))
    return model, {"input_ids": words, "pixel_values": images()}


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    make.__name__: make for make in (bert, gpt2, llama, bloom, mamba, t5, whisper, vit, clip)
}


def made(name: str) -> tuple[nn.Module, Batch]:
    """A model in training mode, without dropout: nothing in it draws random numbers."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    for part in model.modules():
        for option in ("p", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(part, option, None), float):
                setattr(part, option, 0.0)
    return model.train(), batch


def loss_of(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """The loss that the model itself computes; CLIP does so on request."""
    return model(**batch, **({} if "labels" in batch else {"return_loss": True})).loss


def compiled_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Callable[[], torch.Tensor]:
    """A step of the loss that the model itself computes."""
    step = glowtrain.torch.compile_step(
        model, lambda module, *tensors: loss_of(module, dict(zip(batch, tensors, strict=True))), optimizer, targets=0
    )
    return lambda: step(*batch.values())


def first_backward(name: str) -> None:
    """Loss and gradients through torch.compile, once."""
    model, batch = made(name)
    loss_of(torch.compile(model, backend="glowtrain"), batch).backward()


def first_step(name: str) -> None:
    """A compiled step, once."""
    model, batch = made(name)
    compiled_step(model, torch.optim.AdamW(model.parameters(), 1e-3), batch)()


def seconds(call: Callable[[str], None], name: str) -> float:
    torch._dynamo.reset()
    began = time.perf_counter()
    call(name)
    return time.perf_counter() - began


if __name__ == "__main__":
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    hf.utils.logging.set_verbosity_error()
    for each in MODELS:
        print(f"{each:8} torch.compile {seconds(first_backward, each):5.1f} s  step {seconds(first_step, each):5.1f} s")
