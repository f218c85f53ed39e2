"""The decode loop: exact speculative decoding for CUDA and CPU. Imports no sibling."""

from .bad_words import with_token_ids
from .batch import BatchDecoder
from .batch_draws import RowByRow, RowsDraws, Together
from .batch_padding import strip_padding
from .cached import CachedModel, rope_switch, try_rollback
from .chain import ChainDrafter
from .cpu import settle_cpu
from .cross_tokenizer import CrossTokenizerDrafter
from .decoder import SpeculativeDecoder
from .draft_folder import (
    DraftInfo,
    cut_head,
    load_kept_tokens,
    save_kept_tokens,
)
from .drafter import Drafter, ModelDrafter, Proposal
from .draws import Draws, GeneratorDraws
from .drop_in import ForedraftGenerate, foredraft_generate
from .eagle import EagleHead
from .fingerprint import model_fingerprint, text_hash, tokenizer_hash
from .generation_config import default_params
from .head_drafter import HeadDrafter, with_heads
from .law import TokenLaw
from .load import load_causal_lm, load_tokenizer
from .load_parts import load_drafter, load_lookahead
from .looks import Look
from .lookup import PromptLookupDrafter
from .medusa import MedusaHeads
from .ngrams import Match
from .one_hot import Laws, OneHot, dense
from .output import RequestOutput, TokenLogprob
from .packed import PackedLinear, layer_kernels, pack_linears, shared_copy, unpacked
from .params import SamplingParams
from .policy import (
    FixedLookahead,
    LookaheadPolicy,
    ReadsTokens,
    RoundOutcome,
    RoundStart,
    Said,
    show_tokens,
)
from .processors import Processor
from .prompts import encode_text, render_chat
from .round import decode_round
from .rows import RowOutput, decode_rows, full_attention
from .sampling import token_probs
from .self_draft import SelfDrafter
from .shared_tokens import SharedTokensDrafter
from .stats import DecodeStats
from .stopping import eos_token_ids
from .streaming import AsyncTextStream, TextStream
from .ties import Difference, first_difference
from .verify import acceptance_prob, residual, verify
from .vocabulary import check_same_vocabulary, target_width, vocabulary_size

__all__ = [
    "AsyncTextStream",
    "BatchDecoder",
    "CachedModel",
    "ChainDrafter",
    "CrossTokenizerDrafter",
    "DecodeStats",
    "Difference",
    "DraftInfo",
    "Drafter",
    "Draws",
    "EagleHead",
    "FixedLookahead",
    "ForedraftGenerate",
    "GeneratorDraws",
    "HeadDrafter",
    "Laws",
    "Look",
    "LookaheadPolicy",
    "Match",
    "MedusaHeads",
    "ModelDrafter",
    "OneHot",
    "PackedLinear",
    "Processor",
    "PromptLookupDrafter",
    "Proposal",
    "ReadsTokens",
    "RequestOutput",
    "RoundOutcome",
    "RoundStart",
    "RowByRow",
    "RowOutput",
    "RowsDraws",
    "Said",
    "SamplingParams",
    "SelfDrafter",
    "SharedTokensDrafter",
    "SpeculativeDecoder",
    "TextStream",
    "Together",
    "TokenLaw",
    "TokenLogprob",
    "acceptance_prob",
    "check_same_vocabulary",
    "cut_head",
    "decode_round",
    "decode_rows",
    "default_params",
    "dense",
    "encode_text",
    "eos_token_ids",
    "first_difference",
    "foredraft_generate",
    "full_attention",
    "layer_kernels",
    "load_causal_lm",
    "load_drafter",
    "load_kept_tokens",
    "load_lookahead",
    "load_tokenizer",
    "model_fingerprint",
    "pack_linears",
    "render_chat",
    "residual",
    "rope_switch",
    "save_kept_tokens",
    "settle_cpu",
    "shared_copy",
    "show_tokens",
    "strip_padding",
    "target_width",
    "text_hash",
    "token_probs",
    "tokenizer_hash",
    "try_rollback",
    "unpacked",
    "verify",
    "vocabulary_size",
    "with_heads",
    "with_token_ids",
]
