"""Makes a tiny causal LM with a tokenizer of its own kind, to draft across tokenizers with.

    python benchmarks/cross_pair.py --corpus runs/demo/corpus --target smollm2 --out runs/cross --seconds 240

Its tokenizer is of SentencePiece's kind (▁ for a space, unknown characters as bytes), the usual targets' is
byte-level BPE. The texts are the target's own answers, with message marks as its BOS and EOS.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from foredraft.cli.packaged import resolve_target
from foredraft.spec import load_tokenizer, settle_cpu

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """Train a tiny model with another tokenizer on a corpus."""

    corpus: str
    """Folder of a corpus that foredraft's data stage wrote."""
    target: str
    """Hub id or folder of the model that wrote it, or "smollm2" for the packaged one."""
    out: str
    """Folder that the model is saved in."""
    vocabulary: int = 2048
    width: int = 128
    layers: int = 2
    seconds: float = 240.0
    """Processor time to train for: on one thread, as long as it takes on an idle machine."""
    seed: int = 0
    threads: int | None = None
    """Threads of torch; none: its own choice."""


def read_messages(corpus: Path, target_tokenizer: Any) -> list[list[str]]:
    """Return the texts of each row, a message each: the target's BOS stands before it, its EOS after."""
    rows = [json.loads(line) for line in (corpus / "rows.jsonl").read_text().splitlines()]
    texts = []
    for row in rows:
        ids = [*row["prompt_ids"], *row["response_ids"]]
        text = target_tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        texts.append(text.split(target_tokenizer.bos_token)[1:])
    return texts


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a BPE tokenizer of SentencePiece's kind: ▁ is a space, what it has no piece for is bytes."""
    spaces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="first"),
        ]
    )
    learned = Tokenizer(models.BPE(unk_token="<unk>"))
    learned.pre_tokenizer = spaces
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL, *BYTES], show_progress=False
    )
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = spaces
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def token_stream(messages: Sequence[Sequence[str]], tokenizer: Any, end: str) -> torch.Tensor:
    """Return all rows as one line of tokens [N]; `end` is the text of the target's EOS."""
    ids: list[int] = []
    for row in messages:
        for message in row:
            ids.append(tokenizer.bos_token_id)
            parts = message.split(end)
            for place, part in enumerate(parts):
                ids += tokenizer.encode(part, add_special_tokens=False)
                if place + 1 < len(parts):
                    ids.append(tokenizer.eos_token_id)
    return torch.tensor(ids)


def batches(stream: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """Yield windows [8, 256] from random places, for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(stream) - 256, (8,), generator=generator)
        yield torch.stack([stream[start : start + 256] for start in starts])


def train_model(config: TinyModel, stream: torch.Tensor, tokenizer: Any) -> Any:
    """Return a Llama trained for `config.seconds`; prints its loss."""
    torch.manual_seed(config.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=config.width, intermediate_size=3 * config.width,
            num_hidden_layers=config.layers, num_attention_heads=4, num_key_value_heads=4,
            max_position_embeddings=4096, tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    begun, step, mean = time.process_time(), 0, 0.0
    for batch in batches(stream, config.seed):
        done = (time.process_time() - begun) / config.seconds
        if done >= 1.0:
            break
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, (step + 1) / 50, 2.0 * (1.0 - done))
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = float(loss) if step == 0 else 0.98 * mean + 0.02 * float(loss)
        if step % 100 == 0:
            print(f"step {step}: loss {mean:.3f}, {done:.0%} of the time", flush=True)
        step += 1
    print(f"{step} steps, loss {mean:.3f} nats a token")
    return model.eval()


def main() -> None:
    """Run from the command line."""
    config: TinyModel = jsonargparse.auto_cli(TinyModel, as_positional=False)
    settle_cpu(config.threads)
    target_tokenizer = load_tokenizer(resolve_target(config.target))
    messages = read_messages(Path(config.corpus), target_tokenizer)
    texts = [message for row in messages for message in row]
    tokenizer = train_tokenizer(texts, config.vocabulary)
    stream = token_stream(messages, tokenizer, target_tokenizer.eos_token)
    print(f"{len(messages)} rows, {len(stream)} tokens of {len(tokenizer)} kinds")
    model = train_model(config, stream, tokenizer)
    model.save_pretrained(config.out)
    tokenizer.save_pretrained(config.out)


if __name__ == "__main__":
    main()
