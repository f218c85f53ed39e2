"""Time of a draft's forward and backward over answers that share prompts: packed against padded.

    OMP_NUM_THREADS=1 python benchmarks/packing.py --prompts 4 --answers 3

A random Llama; loss and gradients of both arms are compared first. Arms are interleaved; times are the
least of the repeats, of the thread's own processor time, so that other work does not enter.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.train.batches import Example
from foredraft.train.divergences import forward_kl
from foredraft.train.heads import LogitHead
from foredraft.train.losses import DraftLoss
from foredraft.train.packing import Batch, Collate, collate, collate_for

VOCABULARY = 4096
REPEATS = 10


def make_examples(
    prompts: int, answers: int, prompt_tokens: int, answer_tokens: int
) -> list[Example]:
    """Return examples of random tokens, their answers two thirds to four thirds of `answer_tokens`."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, generator=generator)
    examples = []
    for _ in range(prompts):
        prompt = draw(0, VOCABULARY, (prompt_tokens,))
        for _ in range(answers):
            length = int(draw(2 * answer_tokens // 3, 4 * answer_tokens // 3 + 1, (1,)))
            answer = draw(0, VOCABULARY, (length,))
            examples.append(Example(torch.cat([prompt, answer]), length))
    return examples


def measure(
    prompts: int, answers: int, prompt_tokens: int, answer_tokens: int, hidden: int, layers: int
) -> None:
    """Print tokens fed and time of both arms, and how far apart their results are."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden,
        num_hidden_layers=layers, num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64), tie_word_embeddings=False,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).train()
    examples = make_examples(prompts, answers, prompt_tokens, answer_tokens)
    tokens = sum(example.supervised for example in examples)
    target_head = LogitHead(torch.randn(VOCABULARY, hidden), None, None)
    target_hidden = torch.randn(tokens, hidden) * hidden**-0.5
    loss = DraftLoss(model, target_head, forward_kl, temperature=1.0, chunk_tokens=1024)

    def step(batch: Batch) -> float:
        model.zero_grad()
        value = loss(batch, target_hidden) / tokens
        value.backward()
        return float(value.item())

    arms: dict[str, Collate] = {
        "padded": partial(collate, device=model.device),
        "packed": collate_for(model),
    }
    found = {}
    for name, arm in arms.items():
        value = step(arm(examples))
        grads = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        found[name] = (value, grads)
    off = (found["packed"][1] - found["padded"][1]).abs().max() / found["padded"][1].abs().max()
    print(f"loss {found['padded'][0]:.6f} and {found['packed'][0]:.6f}, gradients {off:.1e} apart")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in range(REPEATS):
        for name, arm in arms.items():
            begun = time.thread_time()
            batch = arm(examples)
            made = time.thread_time()
            step(batch)
            seconds[name].append((made - begun, time.thread_time() - made))
    best = {}
    for name, arm in arms.items():
        making, stepping = (1e3 * min(column) for column in zip(*seconds[name], strict=True))
        best[name] = making + stepping
        shape = tuple(arm(examples).input_ids.shape)
        print(f"{name}: {shape}, batch {making:.2f} ms, forward and backward {stepping:.1f} ms")
    print(f"packed takes {best['packed'] / best['padded']:.2f} of padded's time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--answers", type=int, default=3)
    parser.add_argument("--prompt_tokens", type=int, default=55)
    parser.add_argument("--answer_tokens", type=int, default=50)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    measure(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
