"""Dense traces as trace columns: every token that was drafted from every position, to fit a predictor on.

What a round knows of the rounds before it is as if each of those had drafted a γ of its own, all from 1 to
8 being equally likely. Rows weigh as often as such a decoding starts a round at their position, so all
rows together weigh as much as one decoding of the texts; positions where none starts are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data import DenseText
from ..data.echoes import NO_ECHO, Echo, EchoIndex
from ..data.signals import RECENT_START, RECENT_WEIGHT
from .config import FitConfig
from .depth_scores import DepthScore, score_rows
from .features import ECHO_COLUMNS, column_or_unknown
from .fitting import FitReport, fit_predictor
from .predictor import AcceptancePredictor
from .trace_rows import TraceRows

Columns = Mapping[str, npt.NDArray[Any]]
TYPICAL_GAMMA_MAX = 8  # the γ of earlier rounds: 1 … this, evenly


def fit_predictor_from_dense(
    texts: Sequence[DenseText],
    *,
    sampled: Columns | None = None,
    target: str = "",
    draft: str = "",
    config: FitConfig | None = None,
) -> FitReport:
    """Fit, calibrate and judge a predictor on dense traces; see `fit_predictor`.

    Args:
        sampled: decode traces, as `read_traces` gives them, for what texts written greedily cannot teach;
            only their rows at temperatures above 0 are taken.
        target, draft: fingerprints of the models that the traces came from; kept in the file.

    Raises:
        ValueError: if there is no text, or nothing was drafted.
    """
    columns = dense_columns(texts)
    if sampled is not None:
        columns = with_sampled(columns, sampled)
    return fit_predictor(columns, target=target, draft=draft, config=config)


def dense_columns(texts: Sequence[DenseText]) -> dict[str, npt.NDArray[Any]]:
    """Return what `read_traces` gives, and `weight`: a row for each token drafted from each position.

    A text is a request and a prompt, a position is a round.

    Raises:
        ValueError: if there is no text.
    """
    if not texts:
        raise ValueError("texts must not be empty")
    each = [_columns(text, request) for request, text in enumerate(texts)]
    return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


def with_sampled(
    columns: Mapping[str, npt.NDArray[Any]], traces: Columns
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns, and after them the sampled rows of decode traces, as requests of their own.

    Echoes that the traces lack are not known.
    """
    chosen = np.asarray(traces["temperature"]) > 0.0
    echoes = {name: column_or_unknown(traces, name, len(chosen)) for name in ECHO_COLUMNS}
    found = {**traces, **echoes}
    more = {name: np.asarray(found[name])[chosen] for name in columns if name != "weight"}
    more["request"] = more["request"] + int(columns["request"].max()) + 1
    more["weight"] = np.ones(int(chosen.sum()))
    return {name: np.concatenate([column, more[name]]) for name, column in columns.items()}


def starts(text: DenseText) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return for each position, [N] each: how likely a round starts there, and the recent acceptance then.

    Under the γ of TYPICAL_GAMMA_MAX; the recent acceptance (see History) is the mean over the ways to get
    there, NaN where there is none.
    """
    count = len(text.tokens)
    chance, recent = np.zeros(count + 1), np.zeros(count + 1)  # recent: Σ chance · acceptance
    chance[0], recent[0] = 1.0, RECENT_START
    lengths, limits = text.accepted_length.tolist(), text.gamma_limit.tolist()
    most = min(TYPICAL_GAMMA_MAX, text.gamma_max)
    kept = 1.0 - RECENT_WEIGHT
    for position in range(count):
        if chance[position] == 0.0:
            continue
        share = chance[position] / most
        for gamma in range(1, most + 1):
            drafted = min(gamma, limits[position])
            accepted = min(drafted, lengths[position])
            after = kept**accepted * (recent[position] / chance[position] - 1.0) + 1.0
            if accepted < drafted:
                after *= kept
            following = min(count, position + accepted + 1)
            chance[following] += share
            recent[following] += share * after
    with np.errstate(invalid="ignore"):
        return chance[:count], recent[:count] / chance[:count]


def _columns(text: DenseText, request: int) -> dict[str, npt.NDArray[Any]]:
    chance, recent = starts(text)
    drafted = (text.drafts >= 0) & (chance > 0.0)[:, None]  # [N, Γ]
    position, index = np.nonzero(drafted)
    depth = index + 1
    before = np.concatenate([np.full((1, 3), np.nan), text.target_looks[:-1]])  # [N, 3]
    looks = text.looks[position, index]  # [rows, 3]
    tested = depth <= text.accepted_length[position] + 1
    accepted = depth <= text.accepted_length[position]
    echoes = np.array(_echoes(text, position, index)).reshape(-1, len(NO_ECHO))  # [rows, 2]
    return {
        "request": np.full(len(depth), request),
        "prompt_id": np.full(len(depth), text.id),
        "domain": np.full(len(depth), text.domain),
        "round": position,
        "depth": depth,
        "context_length": text.prompt_length + position,
        "temperature": np.zeros(len(depth)),
        "top1_logprob": looks[:, 0],
        "margin": looks[:, 1],
        "entropy": looks[:, 2],
        "prev_target_top1_logprob": before[position, 0],
        "prev_target_entropy": before[position, 2],
        "recent_acceptance": recent[position],
        "tested": tested,
        "accepted": accepted,
        "acceptance_prob": np.where(tested, accepted.astype(np.float64), np.nan),
        "weight": chance[position],
        "echo_agrees": echoes[:, 0],
        "echo_differs": echoes[:, 1],
    }


def _echoes(
    text: DenseText, position: npt.NDArray[np.intp], index: npt.NDArray[np.intp]
) -> list[Echo]:
    """Return the echo of each drafted token; not known where the prompt is not."""
    if not text.prompt:
        return [NO_ECHO] * len(position)
    found = EchoIndex()
    committed = [*text.prompt, *text.tokens.tolist()]
    drafts = text.drafts.tolist()
    return [
        found.echo(committed[: text.prompt_length + at], drafts[at][:drawn], drafts[at][drawn])
        for at, drawn in zip(position.tolist(), index.tolist(), strict=True)
    ]


def score_depths(predictor: AcceptancePredictor, texts: Sequence[DenseText]) -> list[DepthScore]:
    """Judge a predictor on dense texts that it was not fitted on, as it is: nothing learned online.

    Raises:
        ValueError: if there is no text.
    """
    rows = TraceRows.read(dense_columns(texts))
    return score_rows(rows, predictor.predict(rows.features))
