"""What a `generate` call cannot have is refused by name; what it says is really passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, T5Config, T5ForConditionalGeneration

from foredraft.spec import FixedLookahead, foredraft_generate
from toys import byte_tokenizer, tiny_llama

IDS = torch.tensor([[1, 2, 3]])

REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 3},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "force_words_ids": {"force_words_ids": [[1]]},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "guidance_scale": {"guidance_scale": 1.5},
    "assistant_model": {"assistant_model": tiny_llama()},
    "num_assistant_tokens": {"num_assistant_tokens": 3},
    "assistant_confidence_threshold": {"assistant_confidence_threshold": 0.0},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "past_key_values|cache": {"cache": DynamicCache()},
    "inputs_embeds": {"inputs_embeds": torch.zeros(1, 3, 32)},
    "attention_mask: row 0": {"attention_mask": torch.tensor([[1, 0, 1]])},
    "position_ids": {"position_ids": torch.tensor([[4, 5, 6]])},
}


@pytest.mark.parametrize("name", REFUSED)
def test_b13_what_is_not_supported_raises_and_says_what(name: str) -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match=name):
        model.generate(
            IDS, max_new_tokens=4, custom_generate=foredraft_generate(model, 2), **REFUSED[name]
        )


def test_encoder_decoders_are_refused() -> None:
    config = T5Config(
        vocab_size=40, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    with pytest.raises(ValueError, match=r"encoder-decoder|encoder_outputs"):
        model.generate(IDS, max_new_tokens=4, custom_generate=foredraft_generate())


def test_rows_that_cannot_be_filled_are_refused() -> None:
    model = tiny_llama()

    def never(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)

    with pytest.raises(ValueError, match="pad_token_id must be set"):
        model.generate(
            IDS.repeat(2, 1), max_new_tokens=4, stopping_criteria=[never],
            custom_generate=foredraft_generate(),
        )  # fmt: skip


@pytest.mark.parametrize("gamma", [-1, 2.5, True])
def test_b43_a_wrong_gamma_raises(gamma: Any) -> None:
    with pytest.raises(ValueError, match="gamma must be an integer >= 0"):
        foredraft_generate(tiny_llama(), gamma)


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_b43_the_gamma_asked_for_is_the_gamma_drafted(gamma: int) -> None:
    model = tiny_llama()
    for lookahead in (gamma, FixedLookahead(gamma)):
        ours = foredraft_generate(model, lookahead)
        model.generate(IDS, max_new_tokens=24, do_sample=False, custom_generate=ours)
        assert max(ours.stats[0].gammas) == gamma
        assert ours.stats[0].gammas[gamma] >= 3


def test_b44_zero_is_not_taken_for_unset() -> None:
    model = tiny_llama()
    plain, default = foredraft_generate(model, 0), foredraft_generate(model, None)
    for ours in (plain, default):
        model.generate(IDS, max_new_tokens=24, do_sample=False, custom_generate=ours)
    assert plain.stats[0].drafted == 0
    assert max(default.stats[0].gammas) == 4


def test_b44_the_models_own_assistant_settings_are_not_the_calls() -> None:
    model = tiny_llama()
    model.generation_config.num_assistant_tokens = 7  # transformers' heuristic writes it there
    ours = foredraft_generate(model, 2)
    model.generate(IDS, max_new_tokens=8, do_sample=False, custom_generate=ours)
    assert max(ours.stats[0].gammas) == 2
    with pytest.raises(ValueError, match="num_assistant_tokens = 5 would be ignored"):
        model.generate(IDS, max_new_tokens=8, num_assistant_tokens=5, custom_generate=ours)


def test_b91_unknown_arguments_raise() -> None:
    model = tiny_llama()
    for unknown in ({"gamma": 3}, {"lookahead": 3}, {"draft": model}):
        with pytest.raises(ValueError, match=next(iter(unknown))):
            model.generate(IDS, max_new_tokens=4, custom_generate=foredraft_generate(), **unknown)
    with pytest.raises(TypeError, match="gama"):
        foredraft_generate(gama=3)  # type: ignore[call-arg]


def test_b91_every_option_reaches_what_it_is_for(tmp_path: Path) -> None:
    model, tokenizer = tiny_llama(), byte_tokenizer()
    tiny_llama(layers=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tokenizer: pass the target's"):
        model.generate(IDS, max_new_tokens=4, custom_generate=foredraft_generate(str(tmp_path)))
    ours = foredraft_generate(tmp_path, 2, tokenizer=tokenizer)
    expected = model.generate(IDS, max_new_tokens=12, do_sample=False)
    got = model.generate(IDS, max_new_tokens=12, do_sample=False, custom_generate=ours)
    assert torch.equal(got, expected)
    assert ours.stats[0].drafted > 0
    with pytest.raises(ValueError, match=r"lookahead: .* has no lookahead"):
        model.generate(
            IDS, max_new_tokens=4, custom_generate=foredraft_generate(model, tmp_path / "none")
        )


def test_another_model_gets_its_own_parts_and_none_is_changed() -> None:
    first, second = tiny_llama(), tiny_llama(seed=4)
    before = [model.config.to_json_string() for model in (first, second)]
    ours = foredraft_generate(tiny_llama(layers=1), 3)
    for model in (first, second, first):
        expected = model.generate(IDS, max_new_tokens=12, do_sample=False)
        got = model.generate(IDS, max_new_tokens=12, do_sample=False, custom_generate=ours)
        assert torch.equal(got, expected)
    assert before == [model.config.to_json_string() for model in (first, second)]
