"""Code of the user's that goes through things one by one, and the code that does it in one call.

As :func:`~perfkit.base.source.handed_over` does for a log, it is written with the user's own names.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import textwrap
from typing import NamedTuple

from perfkit.base.by_hand import by_hand
from perfkit.base.source import (
    Loop,
    lines_with,
    loops_around,
    names_of,
    statement,
    whole_statement,
)

#: What a loop over gradients does: it is beside the model, and has no backward pass.
ON_GRADIENTS = "work on one gradient after another"


class OneCall(NamedTuple):
    """What is wrong with a loop or a line, and code in place of it."""

    title: str
    code: str
    words: str = "work on one thing after another"


class _Form(NamedTuple):
    """Such code from its begin, as ``ast.unparse`` writes it, and what the program has to have."""

    title: str
    pattern: str
    code: str
    beside: str = ""
    words: str = OneCall._field_defaults["words"]


_SEARCH = _Form(
    "A list is searched from its beginning each time",
    r"(?P<list>\b[\w.]+)\.index\(",
    "self.index = {{word: i for i, word in enumerate({list})}}  # once, in __init__\n"
    "i = self.index.get(word, 0)  # not: {list}.index(word), nor: word in {list}",
)
_OF_A_CLASS = _Form(
    "All labels are searched for those of one class each time",
    r"\b(?:nonzero|flatnonzero|argwhere|where)\("
    r"(?:(?:np|numpy|torch)\.(?:as)?(?:array|tensor)\()?(?P<labels>(?:self|\w*dataset|data_source)"
    r"(?:\.\w+)+)\)? == [A-Za-z_]\w*(?:\[\w+\])?\)",  # those of a batch are other ones each time
    "# once, in __init__: where each class is, and then no search\n"
    'order = np.argsort({labels}, kind="stable")\n'
    "classes, first = np.unique(np.asarray({labels})[order], return_index=True)\n"
    "self.rows = dict(zip(classes.tolist(), np.split(order, first[1:])))\n"
    "rows = self.rows[int(c)]  # of a class c, in place of this line",
)
_LINES = (
    _OF_A_CLASS,
    _Form(
        "All pairs are subtracted number by number, in a tensor of n × m × d",
        r"(\.unsqueeze\(-?\d\)|\[[^\]\[]*\bNone\b[^\]\[]*\])\s*-\s*[\w.]+(\.unsqueeze\(|"
        r"\[[^\]\[]*\bNone\b)",
        "# distances by a matrix product, |a|² + |b|² - 2ab, without a tensor of all differences:\n"
        "squared = torch.cdist(a, b).pow(2)",
    ),
    _Form(
        "Each class goes through the whole tensor anew",
        r"^(?!if\b|elif\b|while\b|assert\b).*[=!]= ?(?P<one>[A-Za-z_]\w*)(?![\w.(\[])",
        "# all classes in one pass: how often each label goes with each prediction\n"
        "pairs = (labels * n_classes + predictions).flatten()\n"
        "table = torch.bincount(pairs, minlength=n_classes**2).view(n_classes, n_classes)\n"
        "both = table.diag()  # of each class; either: table.sum(0) + table.sum(1) - both",
        beside=r"\bfor {one}\b.* in\b",
    ),
)
_OF_GRADIENTS = r"for .*\b(?P<p>\w+)\b.* in .*\s(?=(?s:.*)\b(?P=p)\.grad\b(?! = ))(?s:.*?)"
_IN_PLACE = r"\b(?P=p)(?:\.data)?(?: [-+]= |\.(?:sub|add|addcdiv|copy)_\(|(?<=\.data) = )"
_UPDATES = "Weights are updated one tensor after the other, by an optimizer of the program's own"
_UPDATE = (
    "# torch.optim's, where it is the same update: all tensors in one call\n"
    "optimizer = torch.optim.{}, fused=True)\n"
    "# else torch._foreach_mul_(averages, beta), torch._foreach_add_(averages, grads, alpha=…)"
)
_MEANS = "Rows of each class are picked, and summed, class by class"
_CLASS_MEANS = (
    "# in place of the loop:\n"
    "counts = torch.bincount({labels}, minlength={n}).clamp(min=1)\n"
    "sums = {x}.new_zeros({n}, {x}.shape[1]).index_add(0, {labels}, {x})\n"
    "means = sums / counts[:, None]  # of each class; of each row's class: means[{labels}]"
)
_BY_CLASS = r"for (?P<c>\w+) in (?:range\((?P<n>[\w.]+)\):|.*)\s(?s:.*?)"
_OVER_ROWS = r"(?s:.*)\.(?:mean|sum)\((?:dim=|axis=)?0\b"
_LOOPS = (
    _Form(
        "Labels and predictions are counted pair by pair",
        r"for .* in zip\([\w.()]+, [\w.()]+(?:, strict=\w+)?\):\s+(?:.*\n)?"
        r".*\[[\w.()]+(?:, |\]\[)[\w.()]+\] \+= 1|"
        r"for .*:\s+(?:.*\n)?.*\[\w+\[(\w+)\](?:, |\]\[)\w+\[\1\]\] \+= 1",
        "# in place of the loop:\n"
        "pairs = (labels * n_classes + predictions).flatten()\n"
        "table += torch.bincount(pairs, minlength=n_classes**2).view(n_classes, n_classes)",
    ),
    _Form(  # `a[i] - b[j]` or `distance(a[i], b[j])` for each j
        "A loop goes over all pairs, one by one",
        r"for (?P<j>\w+)\b.* in .*\s(?s:.*)\b(?P<of>(?:\w*dist|norm)\w*\()?"
        r"\b(?P<a>\w+)\[(?!(?P=j)\b)\w+\](?(of),| -) (?P<b>\w+)\[(?P=j)\]",
        "# distances by a matrix product, |a|² + |b|² - 2ab, in place of the loops:\n"
        "squared = torch.cdist({a}, {b}).pow(2)",
    ),
    _Form(
        "A loop goes over all pairs, one by one",
        r"for (?P<j>\w+) in range\((?P<i>\w+) \+ 1, (?P<n>(?:[^()]|\([^()]*\))+)\):\s"
        r"(?=(?s:.*)\[[^\]\n]*\b(?P=i)\b)(?=(?s:.*)\[[^\]\n]*\b(?P=j)\b)"
        r"(?!(?s:.*)\[[^\]\n]*\] [-+*/]?= )",
        "# in place of both loops: the lines in them once, with vectors of all pairs as indices\n"
        "{i}, {j} = torch.triu_indices({n}, {n}, 1)  # beside them, arange(batch)[:, None]\n"
        "total = of_each_pair.sum(-1)  # what was added up, over the pairs",
    ),
    _Form(  # what goes into the cell needs no round before
        "A recurrent cell is called for one position after the other",
        r"for (?P<t>\w+) in .*\s(?:.*\n)*?\s*\(?(?P<h>\w+)(?:, \w+)*\)? = [\w.\[\]]*\((?P<x>[\w.]+)"
        r"\[(?::, )?(?P=t)\b[^()]*\], \(?(?P=h)\b",
        "self.rnn = nn.LSTM(features, hidden, batch_first=True)  # in __init__; GRUCell: nn.GRU\n"
        "outputs, _ = self.rnn({x})  # in place of the loop: all positions in one call",
        beside=r"\b(LSTM|GRU|RNN)Cell\(",
    ),
    _Form(  # but where a number needs those beside it
        "An array is changed number by number, in a loop",
        r"for (?P<j>\w+) in (?s:.*?)\b(?P<a>[\w.]+)\[(?:\w+(?:, |\]\[))+(?P=j)(?:, \w+)*\] "
        r"[-+*/]?= (?!(?s:.*)(?P=a)\[[^\]]* [-+] )",
        "# all numbers in one operation: by a mask, and random ones with a shape\n"
        "rows, columns = np.indices({a}.shape)\n"
        "{a}[columns > rows] = 0\n"
        "{a} += np.random.normal(0, 0.05, {a}.shape)",
    ),
    _Form(
        _UPDATES,
        rf"(?=(?s:.*)sqrt\b){_OF_GRADIENTS}{_IN_PLACE}",
        _UPDATE.format("Adam(model.parameters(), lr, betas, eps"),
        words=ON_GRADIENTS,
    ),
    _Form(
        _UPDATES,
        rf"{_OF_GRADIENTS}{_IN_PLACE}",
        _UPDATE.format("SGD(model.parameters(), lr, momentum"),
        words=ON_GRADIENTS,
    ),
    _Form(
        "The norm of each gradient is taken by itself",
        r"for (?:\w+, )?(?P<p>\w+) in (?P<all>[\w.]+)\.(?:named_)?parameters\(\):\s(?s:.*?)"
        r"(?P=p)\.grad\b(?s:.*?)\bnorm\(",
        "if step % 50 == 0:  # what is only looked at; to clip: torch.nn.utils.clip_grad_norm_\n"
        "    grads = [p.grad for p in {all}.parameters() if p.grad is not None]\n"
        "    total = torch.nn.utils.get_total_norm(grads).item()  # in place of the loop\n"
        "    norms = torch.stack(torch._foreach_norm(grads)).tolist()  # where each is wanted",
        words=ON_GRADIENTS,
    ),
    _Form(
        _MEANS,
        rf"{_BY_CLASS}\b(?P<m>\w+) = .*?(?P<labels>[\w.]+) == (?P=c)\b.*\s(?s:.*?)"
        rf"(?P<x>\w+)\[(?P=m)\]{_OVER_ROWS}",
        _CLASS_MEANS,
    ),
    _Form(
        _MEANS, rf"{_BY_CLASS}(?P<x>\w+)\[(?P<labels>[\w.]+) == (?P=c)\]{_OVER_ROWS}", _CLASS_MEANS
    ),
)
_ROWS = _Form(
    "Rows go through a layer one by one",
    r"for (?P<row>\w+) in (?P<all>[\w.]+):\s(?s:.*?)(?P<layer>self\.\w+)\((?P=row)\)",
    "# all rows in one call; then dimension 1 is what dimension 0 of a row was\n"
    "y = {layer}({all})  # not, of each: {layer}({row})",
)
# `torch.stack([data[i:i + n] for i in ix])`, and the like
_PICKS = re.compile(
    r"(?P<lib>torch|np|numpy)\.stack\(\[(?P<made>torch\.from_numpy\()?(?P<data>[\w.]+)"
    r"\[(?P<i>\w+)(?: \+ (?P<first>[\w.]+))?(?::(?P=i) \+ (?P<end>[\w.]+(?: [-+] [\w.]+)*))?\]"
    r"(?P<type>\.astype\([\w.]+\))?(?(made)\)) for (?P=i) in (?P<index>[\w.]+?)(?:\.tolist\(\))?\]"
    r"(?:, (?:dim=|axis=)?0)?\)"
)
_PICKED = "Rows of a tensor are taken one by one, and stacked"
_OF_A_LIST = "  # of a list of tensors, once before: {0} = torch.stack({0})"
# `y = self.fc(h)`, and then it is only kept: `outputs.append(y)`, `outputs[:, t] = self.fc(h)`
_LAYER = r"(?P<layer>self\.\w+)\((?P<x>\w+)\)"
_KEPT = re.compile(
    rf"(?P<y>\w+) = {_LAYER}$|(?P<all>\w+)(?:\.append\({_LAYER.replace('?P<', '?P<a')}\)|"
    rf"\[(?P<rows>:, )?\w+\] = {_LAYER.replace('?P<', '?P<b')})$"
)
_PROJECTED = "A layer is called for one position after the other, and no round needs its result"
_AFTER_THE_LOOP = (
    "parts.append({x})  # in the loop, in place of {layer}({x})\n"
    "{all} = {layer}(torch.stack(parts{dim}))  # after it: one large product"
)
_BY_HAND = "A formula takes many operators, and torch has it as one"
_OF_OPERATORS = "# one call for all rounds of this loop, over a dimension of the tensor"
_BEST = (
    ":\nbest = (scores + table).logsumexp(1)  # not, of each i: (scores + table[i]).logsumexp(0)"
)
_REDUCES = re.compile(r"for (\w+)\b.* in .*(?s:.*)\[\1\](?s:.*)(log_?sum_?exp|max|min)\(")
_WHILE = (
    "# its rounds need each other, so no one call does all of them: fewer rounds, or fewer and\n"
    "# larger operators in each (torch.compile of the function that a round calls)"
)
_IN_PLACE_OF_IF = (
    "\nloss = torch.where(error < 0, 3 * error**2, error**2).mean()  # both sides of an if"
)
_CHOOSES = re.compile(r"\n +if .*[<>].*:\n[^\n]*[^=!<>]=[^=]")
_OF_LAYERS = (
    "# one call for all rounds of this loop; where each needs the one before, nn.LSTM or nn.GRU\n"
    "y = layer(torch.stack(parts))  # not, of each part: layer(part)"
)
_SUM_OF_PYTHON = re.compile(r"(?<![.\w])sum\(")
_SUM = (
    "# one operation: Python's sum() takes the elements of a tensor one at a time\n"
    "n = (predicted == labels).sum()  # not: sum(predicted == labels)\n"
    "total = torch.stack(list_of_tensors).sum()  # not: sum(list_of_tensors)"
)


def in_one_call(file: str, line: int) -> OneCall | None:
    """Of a line, or of the innermost loop that it is in; None where no form is known."""
    if one := _as(_SEARCH, re.search(_SEARCH.pattern, statement(file, line))):
        return one
    if picked := _picked(file, line):
        return OneCall(_PICKED, picked)
    functional = getattr(names_of(file).get("F"), "__name__", "") == "torch.nn.functional"
    if one_operator := by_hand(whole_statement(file, line), *["F"] * functional):
        return OneCall(_BY_HAND, one_operator)
    code = next(map(code_of, loops_around(file, line)), "")
    if kept := _kept(_unparsed(whole_statement(file, line)), code):
        return OneCall(_PROJECTED, kept)
    found = (_as(form, re.match(form.pattern, code)) for form in _LOOPS)
    return next(filter(None, found), None)


def of_a_line(text: str) -> OneCall | None:
    """Of a line by its text alone: a loop around it may tell more."""
    found = (_as(form, re.search(form.pattern, text)) for form in _LINES)
    return next(filter(None, found), None)


def rounds_in_one_call(loop: Loop | None, line: str, *, of_layers: bool) -> str:
    """Code in place of a loop of small operators, or of Python's sum(); empty where it is none.

    Args:
        line: what runs most of the time.
        of_layers: whether that calls a layer.
    """
    if _SUM_OF_PYTHON.search(line):
        return _SUM
    if loop is None:
        return ""
    code = code_of(loop)
    if of_layers:
        rows = _as(_ROWS, re.match(_ROWS.pattern, code))
        return rows.code if rows else _OF_LAYERS
    if code.startswith("while "):
        return _WHILE
    fits = _BEST * bool(_REDUCES.match(code)) + _IN_PLACE_OF_IF * bool(_CHOOSES.search(code))
    return _OF_OPERATORS + fits


def _picked(file: str, line: int) -> str:
    """The statement with one index in place of each list of rows, and those beside it that have
    such lists; empty where it has none.
    """
    if not _PICKS.search(_unparsed(whole_statement(file, line))):
        return ""
    around = (whole_statement(file, at) for at in range(max(line - 2, 1), line + 3))
    code = [one for text in dict.fromkeys(around) if _PICKS.search(one := _unparsed(text))]
    picks = [match for one in code for match in _PICKS.finditer(one)]
    lists = [one["data"] for one in picks if not one["end"] and one["lib"] == "torch"]
    hint = _OF_A_LIST.format(lists[0]) if lists else ""
    return "\n".join(_PICKS.sub(_index, one) for one in code) + hint


def _index(match: re.Match[str]) -> str:
    lib, made, data, _, first, end, of_type, index = match.groups()
    made_by = [statement(*place) for place in lines_with(rf"\b{re.escape(index)}\s*=\s*torch\.")]
    at, device = index, ""
    if made or lib != "torch":
        lib, at = "np", f"np.asarray({index})"
    elif not made_by:
        at = f"torch.as_tensor({index})"
    elif any("device" in one for one in made_by):
        device = f", device={index}.device"
    if end:
        at = f"{at}[:, None] + {lib}.arange({first + ', ' if first else ''}{end}{device})"
    elif first:
        at = f"{at} + {first}"
    else:
        at = index
    return f"{made or ''}{data}[{at}]{of_type or ''}{')' * bool(made)}"


def _kept(text: str, loop: str) -> str:
    """Code in place of a linear layer's call in a loop that only keeps what it gives."""
    match = _KEPT.match(text) if loop.startswith("for ") else None
    if match is None:
        return ""
    named = match.groupdict("")
    layer, x = (named[one] or named[f"a{one}"] or named[f"b{one}"] for one in ("layer", "x"))
    y, kept, dim = named["y"], named["all"], ", 1" * bool(named["rows"])
    if y:
        keeps = re.search(rf"(\w+)(?:\.append\({y}\)|\[(:, )?\w+\] = {y})$", loop, re.M)
        if keeps is None or len(re.findall(rf"\b{y}\b", loop)) != 2:
            return ""
        kept, dim = keeps[1], ", 1" * bool(keeps[2])
    if len(re.findall(rf"\b{kept}\b", loop)) != 1:
        return ""
    is_linear = any(lines_with(rf"{re.escape(layer)}\s*=\s*(torch\.)?nn\.Linear\("))
    return _AFTER_THE_LOOP.format(x=x, layer=layer, all=kept, dim=dim) * is_linear


def _as(form: _Form, match: re.Match[str] | None) -> OneCall | None:
    if match is None:
        return None
    if form.beside and not any(lines_with(form.beside.format(**match.groupdict()))):
        return None
    names = {"n": "n_classes"} | {name: one for name, one in match.groupdict().items() if one}
    return OneCall(form.title, form.code.format(**names), form.words)


def code_of(loop: Loop) -> str:
    """A loop as ``ast.unparse`` writes it: a statement a line, without comments."""
    file, first, last = loop
    return _unparsed("".join(linecache.getlines(file)[first - 1 : last]))


@functools.lru_cache(maxsize=64)
def _unparsed(code: str) -> str:
    try:
        return ast.unparse(ast.parse(textwrap.dedent(code)))
    except SyntaxError:  # part of a statement
        return code
