"""Fits trees and a small network to trace rows with scikit-learn, and takes their numbers out of it."""

from __future__ import annotations

import numpy as np

from .curved import LEAF, NetLogit, TreeLogit
from .features import DEPTH
from .trace_rows import Array, Bools, TraceRows

FAMILIES = ("linear", "trees", "net")
TREES, TREE_DEPTH, LEARNING_RATE, LEAF_WEIGHT = 60, 3, 0.1, 20
HIDDEN, DECAY = 16, 1e-2


def fit_family(family: str, rows: TraceRows, chosen: Bools) -> TreeLogit | NetLogit:
    """Return trees or a net fitted on the chosen rows, which must have outcomes of both kinds.

    Raises:
        ValueError: if the family is neither "trees" nor "net".
    """
    if family == "trees":
        return fit_trees(rows, chosen)
    if family == "net":
        return fit_net(rows, chosen)
    raise ValueError(f"family must be one of {FAMILIES[1:]}, got {family!r}")


def fit_trees(rows: TraceRows, chosen: Bools) -> TreeLogit:
    """Return gradient boosted trees (Friedman 2001)."""
    from sklearn.ensemble import GradientBoostingClassifier

    row, label, weight = rows.labels(chosen)
    mean = scaling(rows, chosen)[0]
    filled = np.where(np.isnan(rows.features), mean, rows.features)
    model = GradientBoostingClassifier(
        n_estimators=TREES,
        max_depth=TREE_DEPTH,
        learning_rate=LEARNING_RATE,
        min_samples_leaf=LEAF_WEIGHT,
        subsample=0.8,
        random_state=0,
    )
    model.fit(filled[row], label, sample_weight=weight)
    return export_trees(model, mean)


def export_trees(model: object, mean: Array) -> TreeLogit:
    """Return the numbers of a GradientBoostingClassifier of two classes."""
    refused, accepted = model.init_.class_prior_  # type: ignore[attr-defined]
    trees = []
    for estimator in model.estimators_[:, 0]:  # type: ignore[attr-defined]
        tree = estimator.tree_
        inner = tree.children_left >= 0
        values = model.learning_rate * tree.value[:, 0, 0]  # type: ignore[attr-defined]
        trees.append(
            tuple(
                zip(
                    np.where(inner, tree.feature, LEAF).tolist(),
                    np.where(inner, tree.threshold, 0.0).tolist(),
                    np.where(inner, tree.children_left, LEAF).tolist(),
                    np.where(inner, tree.children_right, LEAF).tolist(),
                    values.tolist(),
                    strict=True,
                )
            )
        )
    return TreeLogit(
        mean=tuple(mean.tolist()), start=float(np.log(accepted / refused)), trees=tuple(trees)
    )


def fit_net(rows: TraceRows, chosen: Bools) -> NetLogit:
    """Return a network of one hidden layer."""
    from sklearn.neural_network import MLPClassifier

    row, label, weight = rows.labels(chosen)
    mean, scale, low, high = scaling(rows, chosen)
    filled = np.where(np.isnan(rows.features), mean, rows.features.clip(low, high))
    model = MLPClassifier(
        (HIDDEN,), activation="tanh", solver="lbfgs", alpha=DECAY, max_iter=300, random_state=0
    )
    _quietly(model, ((filled - mean) / scale)[row], label, weight)
    return export_net(model, (mean, scale, low, high))


def export_net(model: object, scales: tuple[Array, Array, Array, Array]) -> NetLogit:
    """Return the numbers of an MLPClassifier of two classes and one hidden layer of tanh.

    Args:
        scales: what `scaling` gave.
    """
    mean, scale, low, high = scales
    coefs, biases = model.coefs_, model.intercepts_  # type: ignore[attr-defined]
    return NetLogit(
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        weights=tuple(map(tuple, coefs[0].tolist())),
        biases=tuple(biases[0].tolist()),
        output=tuple(coefs[1][:, 0].tolist()),
        start=float(biases[1][0]),
    )


def scaling(rows: TraceRows, chosen: Bools) -> tuple[Array, Array, Array, Array]:
    """Return mean, scale, lowest and highest of each feature over the chosen rows, [F] each."""
    features = rows.features[chosen]
    features = np.where(np.isnan(features).all(0), 0.0, features)
    mean, scale = np.nanmean(features, axis=0), np.nanstd(features, axis=0)
    mean[DEPTH], scale[DEPTH] = 0.0, 1.0
    scale[scale == 0.0] = 1.0
    low, high = np.nanmin(features, axis=0), np.nanmax(features, axis=0)
    low[DEPTH], high[DEPTH] = 0.0, 1.0
    return mean, scale, low, high


def _quietly(model: object, features: Array, label: Bools, weight: Array) -> None:
    """Fit; that the last digits of a small net have not converged is no news."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, label, sample_weight=weight)  # type: ignore[attr-defined]
