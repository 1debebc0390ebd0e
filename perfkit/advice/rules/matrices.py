"""Functions of whole matrices, such as an inverse, that a step computes many times."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_count, fmt_share
from perfkit.trace.read.columns import Category

# So many times a step is more than a loss or a preconditioner needs.
_OFTEN, _LEAST_SHARE = 8, 0.1
# Work of the third power of a matrix's size, by the operator that is called.
_CUBIC = (
    "cholesky", "eig", "eigh", "householder", "inv", "lstsq", "lu", "matrix_exp", "matrix_power",
    "pinv", "qr", "solve", "svd",
)  # fmt: skip


@rule
def matrix_functions(case: Case) -> Iterator[Finding]:
    """The same matrix function or decomposition, again and again in one step."""
    found = [o for o in case.operators if _is_cubic(o.name)]
    for one in sorted(found, key=lambda o: -o.total_us):
        n = one.count / case.n_steps
        share = case.lost_in(case.span(case.rows(Category.OP, named=one.name.__eq__)))
        if n < _OFTEN or share < _LEAST_SHARE:
            continue
        gain, formula = amdahl(share)
        yield Finding(
            rule="matrix-functions",
            cures=("compute", "launch"),
            title=f"{one.name} runs {fmt_count(round(n))} times a step",
            evidence=(f"with what it calls, it takes {fmt_share(share)} of each step",),
            what_to_do=(
                "# of a weight (orthogonal, spectral_norm …): once a step, not at each use\n"
                "with torch.nn.utils.parametrize.cached():\n"
                "    loss = loss_fn(model(x), y)\n"
                "# of many matrices: one call for all\n"
                "result = torch.linalg.inv(torch.stack(matrices))"
            ),
            gain_at_most=gain,
            formula=formula,
        )
        return


def _is_cubic(name: str) -> bool:
    name = name.removeprefix("aten::").removeprefix("_").removeprefix("linalg_").rstrip("_")
    return name.removesuffix("_ex") in _CUBIC
