"""The decode loop: exact speculative decoding for CUDA and CPU. Imports no sibling."""

from .cached import CachedModel
from .cpu import settle_cpu
from .decoder import (
    RequestOutput,
    SpeculativeDecoder,
    load_drafter,
    load_lookahead,
    target_width,
)
from .draft_folder import (
    DraftInfo,
    cut_head,
    load_kept_tokens,
    save_kept_tokens,
)
from .drafter import Drafter, ModelDrafter, Proposal
from .draws import Draws, GeneratorDraws
from .drop_in import ForedraftGenerate, foredraft_generate
from .fingerprint import model_fingerprint, text_hash, tokenizer_hash
from .load import load_causal_lm, load_tokenizer
from .params import SamplingParams
from .policy import FixedLookahead, LookaheadPolicy, RoundOutcome, RoundStart
from .prompts import encode_text, render_chat
from .round import decode_round
from .rows import decode_rows, full_attention
from .sampling import penalize_repetition, token_probs
from .stats import DecodeStats
from .stopping import eos_token_ids
from .verify import acceptance_prob, residual, verify
from .vocabulary import check_same_vocabulary, vocabulary_size

__all__ = [
    "CachedModel",
    "DecodeStats",
    "DraftInfo",
    "Drafter",
    "Draws",
    "FixedLookahead",
    "ForedraftGenerate",
    "GeneratorDraws",
    "LookaheadPolicy",
    "ModelDrafter",
    "Proposal",
    "RequestOutput",
    "RoundOutcome",
    "RoundStart",
    "SamplingParams",
    "SpeculativeDecoder",
    "acceptance_prob",
    "check_same_vocabulary",
    "cut_head",
    "decode_round",
    "decode_rows",
    "encode_text",
    "eos_token_ids",
    "foredraft_generate",
    "full_attention",
    "load_causal_lm",
    "load_drafter",
    "load_kept_tokens",
    "load_lookahead",
    "load_tokenizer",
    "model_fingerprint",
    "penalize_repetition",
    "render_chat",
    "residual",
    "save_kept_tokens",
    "settle_cpu",
    "target_width",
    "text_hash",
    "token_probs",
    "tokenizer_hash",
    "verify",
    "vocabulary_size",
]
