"""Work of a step that its loss does not need, by the graphs of the first step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, fact
from perfkit.advice.state import alive, state
from perfkit.base.mostly_zeros import AS_SPARSE, OneHotFactor, SparseFactor
from perfkit.base.single_rows import SingleRows
from perfkit.base.source import only_line_with, shown_line
from perfkit.base.words import fmt_count, fmt_share
from perfkit.measure.graph_looks import LOSSES, PRODUCTS, IgnoredTargets
from perfkit.measure.live import Live

# Less of it is padding, which is not worth a change.
_LEAST_IGNORED = 0.25
# So many classes are words or persons; their scores are told where they are most of the step.
_MANY_CLASSES, _MOST_OF_IT = 20_000, 0.5
# How one-hot rows are made, the surest first; and nodes between them and the product, at most.
_MAKES, _NEAR = (("aten::one_hot",), ("aten::scatter_", "aten::scatter"), ("aten::index",)), 3
_BESIDE = ("aten::zeros", "aten::to")
_BACK = [f"autograd::engine::evaluate_function: {one}" for one in PRODUCTS]
# A few passes are a loss of pairs or triples.
_MANY_ROWS = 8
_MULTIPLY = ("aten::mm", "aten::addmm", "aten::matmul", "aten::linear", *PRODUCTS, *_BACK)


@state
def ignored_targets(live: Live) -> Iterator[Finding]:
    """Scores of many classes are made for targets that the loss ignores."""
    seen = [one for one in live.graphs if isinstance(one, IgnoredTargets)]
    most = max(seen, key=lambda one: one.n_ignored * one.n_classes, default=None)
    if most is None or most.n_ignored < _LEAST_IGNORED * most.n:
        return
    share = most.n_ignored / most.n
    yield fact(
        "ignored-targets",
        f"Scores of {fmt_count(most.n_classes)} classes are made for all positions, and the loss "
        f"ignores {fmt_share(share)} of them",
        (
            f"{fmt_count(most.n_ignored)} of {fmt_count(most.n)} targets of the first batch are "
            f"{most.value} (ignore_index): output layer, softmax and their backward pass run for "
            "them, too",
        ),
        f"chosen = labels != {most.value}  # before the output layer\n"
        "scores = output_layer(hidden[chosen])  # one row for each target that counts\n"
        "loss = F.cross_entropy(scores, labels[chosen])  # the same loss",
        line=only_line_with(r"\b(cross_entropy|nll_loss|CrossEntropyLoss|NLLLoss)\("),
        acts_on=("forward", "backward"),
        leaves=(1 - share) ** 2,  # what is small fits the cache
        where=partial(_from_product_to_loss, back=most.back),
    )


@state
def output_layer(live: Live) -> Iterator[Finding]:
    """Most of a step goes to the scores of very many classes."""
    seen = [one for one in live.graphs if isinstance(one, IgnoredTargets)]
    most = max(seen, key=lambda one: one.n_classes, default=None)
    if most is None or (n := most.n_classes) < _MANY_CLASSES or 4 * most.n_ignored > most.n:
        return
    yield fact(
        "output-layer",
        f"Most of a step goes to scores of all {fmt_count(n)} classes",
        (f"{fmt_count(most.n)} targets a batch, each with its output layer, softmax and backward",),
        "# classes sorted by how often they come: rare ones are scored only where they are needed\n"
        f"head = nn.AdaptiveLogSoftmaxWithLoss(features, {n}, cutoffs=[{n // 50}, {n // 5}])\n"
        "loss = head(hidden, labels).loss  # in place of output layer and cross_entropy\n"
        "# or fewer classes: subwords in place of words",
        acts_on=("forward", "backward"),
        where=partial(_from_product_to_loss, back=most.back, least=_MOST_OF_IT),
        changes="rare classes get fewer weights",
    )


def _from_product_to_loss(
    case: Case, back: tuple[int, ...], least: float = 0.0
) -> tuple[float, str | None]:
    numbers = case.trace.sequence[case.nesting.rows]
    last = np.unique(numbers[case.is_named(*LOSSES)])
    found = (numbers >= 0) & np.isin(numbers, last[:, None] - np.array(back))
    share = case.share_at(found)
    return share * (share >= least), case.line_at(found)


@state
def one_hot_products(live: Live) -> Iterator[Finding]:
    """One-hot rows are multiplied by a matrix, which picks rows of it."""
    seen = [one for one in live.graphs if isinstance(one, OneHotFactor)]
    most = max(seen, key=lambda one: one.n_classes, default=None)
    table = None if most is None else most.table()
    if most is None or table is None:
        return
    n, one_hot = most.n_classes, f"F.one_hot(index, {most.n_classes}).float()"
    parameters = [each for _, model in alive(live.modules) for each in model.named_parameters()]
    name = next((name for name, parameter in parameters if parameter is table), "")
    if "weight_ih" in name:  # an RNN takes no indices
        return
    what_to_do = f"y = weight[index]  # not {one_hot} @ weight"
    if name.endswith("weight") and table.shape[1:] == (n,):
        own = "".join(name.split(".")[-2:-1])  # that of a Sequential is a number
        layer = f"self.{own}" if own.isidentifier() else "embedding"
        what_to_do = (
            f"{layer} = nn.Embedding({n}, {len(table)})  # in place of nn.Linear\n"
            f"y = {layer}(index)  # not of {one_hot}; a bias is to be added\n"
            "# trained weights: embedding.weight.data = linear.weight.data.t().contiguous()"
        )
    yield fact(
        "one-hot-product",
        f"One-hot rows of {fmt_count(n)} numbers are multiplied by a matrix, to pick rows of it",
        (f"each row has a single 1, in the first batch, and {fmt_count(n - 1)} zeros",),
        what_to_do,
        line=only_line_with(r"\bone_hot\(|\.scatter_?\(|\btorch\.eye\("),
        acts_on=("forward", "backward"),
        where=_of_one_hot,
    )


def _of_one_hot(case: Case) -> tuple[float, str | None]:
    numbers = case.trace.sequence[case.nesting.rows]
    made = next((at for one in _MAKES if (at := case.is_named(*one)).any()), case.is_named())
    products = np.unique(numbers[case.is_named(*PRODUCTS)])
    near = products[:, None] - np.arange(_NEAR + 1)
    is_one = np.isin(near, numbers[made]).any(axis=1)
    multiplied = case.is_named(*_MULTIPLY) & np.isin(numbers, products[is_one])
    found = multiplied | ((made | case.is_named(*_BESIDE)) & np.isin(numbers, near[is_one]))
    return case.share_at(found), case.line_at(found)


@state
def sparse_products(live: Live) -> Iterator[Finding]:
    """A matrix that is nearly all zeros, a graph's adjacency for one, is multiplied as if dense."""
    seen = [one for one in live.graphs if isinstance(one, SparseFactor)]
    for most in sorted(seen, key=lambda one: one.n_rows * one.n_columns)[-1:]:
        yield fact(
            "sparse-product",
            f"A matrix that is multiplied is all zeros but for {fmt_share(most.share)}",
            (f"{fmt_count(most.n_rows)} × {fmt_count(most.n_columns)} numbers, in the first step",),
            AS_SPARSE,
            acts_on=("forward", "backward"),
            where=partial(_of_product, back=most.back),
        )


def _of_product(case: Case, back: int) -> tuple[float, str | None]:
    rows = case.nesting.rows
    numbers, step = case.trace.sequence[rows], case.steps.containing(case.trace.start_ns[rows])
    last = np.full(len(case.steps) + 1, -1)  # the loss; what is in no step is the last one
    np.maximum.at(last, step, numbers)
    found = case.is_named(*_MULTIPLY) & (numbers == last[step] - back) & (step >= 0)
    line = case.line_at(found)
    # the same line may make products that no gradient goes through
    of_line = sum(x.share for x in case.lines.by_line() if x.shown == line)
    return max(case.share_at(found), of_line), line


@state
def single_rows(live: Live) -> Iterator[Finding]:
    """A model gets one row after the other, and each has a graph of its own until the loss."""
    n = max((one.n for one in live.graphs if isinstance(one, SingleRows)), default=0)
    if n < _MANY_ROWS:
        return
    at = max(live.modules.values(), key=lambda use: use.n_calls).called_at if live.modules else None
    yield fact(
        "single-rows",
        f"One row at a time goes through the model, {fmt_count(n)} times for one backward pass",
        ("none of these passes needs another one: one for all rows has the same gradients",),
        "outputs = model(torch.stack(rows))  # before the loss, one pass for all\n"
        "# where an output decides which row comes next, as a policy's: there without a graph\n"
        "with torch.no_grad():\n"
        "    output = model(row)  # keep the row, and what was chosen, for that one pass",
        line=None if at is None else shown_line(*at),
        acts_on=("forward", "backward"),
        leaves=1 / n,
    )
