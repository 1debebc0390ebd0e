"""What a line of Python does, from its text and the package it calls, and what helps.

Advice must fit the line: "log only every 50 steps" does not help with a ``time.sleep``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from perfkit.base.in_one_call import in_one_call, of_a_line
from perfkit.trace.record.lines import Line, LineSamples, is_sleep_by_text, is_wait, is_wait_by_text


@dataclass(frozen=True)
class LineKind:
    """What a line does.

    Attributes:
        words: what it is, to follow "… is".
        what_to_do: a snippet that fits, where something is trained or not.
        title: what is wrong with such a line, for a finding about it; empty where its text alone
            does not tell.
        pattern, libraries: by which it is known: its text, and packages whose code it calls.
    """

    words: str
    what_to_do: str
    rule: str = "host-python"
    title: str = ""
    pattern: str = ""
    libraries: str = ""

    def fits(self, *parts: str) -> bool:
        """Whether the pattern is in any of these."""
        return any(re.search(self.pattern, part) for part in parts)


SLEEP = LineKind(
    "a wait that the code itself asks for",
    "# the step sleeps: take the wait out, or wait in a thread alongside the model",
    rule="host-sleeps",
)
WAITING = LineKind(
    "a wait for another process, a thread or a connection, whose work is not seen here",
    "# this thread only waits here: ask for a whole batch at once, or see what it waits for:\n"
    "with perfkit.profile() as prof:  # in the function that the other process or thread runs\n"
    "    work()\nprint(prof)",
    rule="host-waits",
)
LOGGING = LineKind(
    "logging or printing",
    "if n % 50 == 0:\n    log(...)  # not each time; pass numbers, not tensors",
    rule="logging-in-step",
    pattern=r"\b(print|pprint|display)\(|\.set_(postfix|description)\(|"
    r"\b(logger|logging|log(?=\.\w)|writer|wandb|mlflow|tqdm|pbar|bar)\b[\w.]*\(|"
    # no log_prob(), log_softmax() …
    r"(?<![\w.])(self\.)?log(?!_(prob|soft|sig|normal|sum|add|det))(_\w+)?\(",
    libraries="logging wandb mlflow tensorboard tqdm rich loguru IPython",
)
STORING = LineKind(
    "writing files",
    "if n % 500 == 0:  # rarely\n    torch.save(state, path)  # or os.fsync(), flush()\n"
    "# what is needed each time, in a thread alongside the model:\n"
    "writer = ThreadPoolExecutor(1)  # before the loop\nwriter.submit(torch.save, results, path)\n"
    "torch.save(rows[i].clone(), path)  # a view is written with the whole tensor that it shows",
    pattern=r"\b(torch\.save|os\.fsync|save_pretrained|np\.(save|savez\w*)|imwrite|to_(csv|parquet|json)|"
    r"(json|pickle)\.dump|write_bytes|write_text|save_checkpoint)\(|\.save\(",
)
FIGURES = LineKind(
    "drawing figures",
    "if n % 500 == 0:  # rarely, and small; or from a file of the numbers, later\n"
    "    fig.savefig(path, dpi=72)",
    pattern=r"\.savefig\(|\bplt\.(figure|subplots|plot|scatter|imshow|hist|tight_layout)\(",
    libraries="matplotlib seaborn",
)
SAVING = LineKind(
    "reading or writing files",
    "# read ahead in a DataLoader's workers, and write rarely, in a thread alongside the model:\n"
    "loader = DataLoader(dataset, batch_size, num_workers=4)\n"
    "writer = ThreadPoolExecutor(1)  # before the loop\nwriter.submit(torch.save, results, path)",
    pattern=r"\b(open|torch\.load|np\.load|read_(csv|parquet|json)|(json|pickle)\.load|"
    r"requests\.\w+|urlopen|read_bytes|read_text|load_checkpoint)\(",
    libraries="h5py zarr pickle json requests urllib fsspec safetensors pyarrow zipfile tarfile "
    "shutil pathlib",
)
WRITES = LineKind(
    "writing a file from its beginning",
    "self.file = open(path, 'a')  # once, and kept open\n"
    "self.file.write(row)  # only what is new, not all rows again\n"
    "# or rarely, in a thread alongside the model",
    title="A file is opened and written from its beginning each time",
    pattern=r"\bopen\([^()]*[\"'][wx][bt]?[\"']|\.writerows\(",
)
IMAGES = LineKind(
    "decoding images",
    "img = Image.open(path)\n"
    'img.draft("RGB", (size, size))  # decodes a JPEG at a reduced size; or keep small files\n'
    "# in a data set, DataLoader workers do the rest alongside the step:\n"
    "loader = DataLoader(dataset, ..., num_workers=2)",
    rule="image-decode",
    title="Images are decoded while the step waits",
    pattern=r"(?s)\b(Image\.open|imread|imdecode|decode_(jpeg|png|image)|read_image)\(|"
    r"^(?!.*\b(merge|blend|composite|fromarray|resize|filter|enhance)\()"
    r".*\.convert\([\"'](RGBA?|L)[\"']",
)
IMAGE_CHANGES = LineKind(
    "changing images",
    "# crop and resize first: what is cut away needs no change, and a small image costs little\n"
    "image = change(crop(image))  # not: crop(change(image))\n"
    "# in a data set, DataLoader workers do it alongside the step:\n"
    "loader = DataLoader(dataset, ..., num_workers=2)",
    rule="image-decode",
    title="Images are changed while the step waits",
    pattern=r"\b(ImageOps|ImageEnhance|ImageFilter)\.\w+\(|\.convert\([\"']\w+[\"']",
    libraries="PIL cv2 imageio simplejpeg turbojpeg albumentations skimage",
)
FRAMES = LineKind(
    "a row of a pandas table, made anew as an object",
    "# a column as an array, once: to index it makes no object\n"
    'self.target = frame["target"].to_numpy()  # in __init__\n'
    "y = self.target[i]  # in __getitem__, not: frame.iloc[i]",
    title="A row of a pandas table is made into an object each time",
    pattern=r"\.(iloc|loc|iat|at)\[|\.(iterrows|itertuples)\(",
)
NUMPY = LineKind(
    "numpy, which runs on the host while torch waits",
    "# prepare arrays in the data set, so that DataLoader workers do it alongside the step,\n"
    "# or use torch's operator of the same name on the tensor itself",
    pattern=r"\bnp\.|\bnumpy\b",
    libraries="numpy scipy sklearn",
)
FROM_A_LIST = LineKind(
    "a tensor made from a Python list, number by number",
    "# arrays: one copy each\nx = torch.from_numpy(np.stack(list_of_arrays))\n"
    "# tensors:\nx = torch.stack(list_of_tensors)\n"
    "# numbers: keep them in one array from the start, and index it by batch",
    title="A tensor is made from a Python list, number by number",
    pattern=r"\btorch\.(tensor|as_tensor|\w*Tensor)\(\s*(\[|list\()",
)
#: Passes and updates; an environment's step is none.
PASSES = r"\.backward\(|(?<!env)(?<!envs)\.step\("
FEWER_STEPS = "rollouts have fewer steps of more environments"
ENVIRONMENT = LineKind(
    "a step of the environment",
    "# a policy's call takes about as long for 32 rows as for one: more environments a call, in\n"
    "# rollouts so much shorter that n_envs * n_steps stays the same (slow ones: AsyncVectorEnv)\n"
    "envs = gym.vector.SyncVectorEnv([make_env] * 32)  # or make_vec_env(name, n_envs=32)",
    pattern=r"env(s|ironment)?\.step\(",
)
GROWS = LineKind(
    "a tensor that grows by a part, and is copied whole each time",
    "# keep what the result needs, where that is not all of it: a count, a sum\n"
    "correct += (model(x).argmax(-1) == labels).sum()\n"
    "# where it is all of it, copy once: a list of the parts, made one tensor in the end\n"
    "parts.append(part)  # in the loop\n"
    "whole = torch.cat(parts)  # after it",
    title="A tensor grows with every batch: all of it is kept, and copied each time",
    pattern=r"\b(?P<name>[\w.]+)\s*=\s*(?:[^=]*\belse\s+)?(?:torch|np|numpy)\."
    r"(?:cat|concat|concatenate|vstack|hstack|append)\(\s*[\[(]?\s*(?P=name)\b",
)
OPENS = LineKind(
    "the opening of a file, which reads its index each time",
    "# once in each process, at first use (workers cannot share it):\n"
    "if self.file is None:  # None from __init__\n"
    "    self.file = zipfile.ZipFile(self.path)  # or h5py.File, lmdb.open …",
    title="A file is opened again each time that something is read from it",
    pattern=r"\b(ZipFile|h5py\.File|lmdb\.open|sqlite3\.connect|zarr\.open\w*|ParquetFile|"
    r"netCDF4\.Dataset|xr\.open_\w+)\(",
)
UNPACKS = LineKind(
    "decompression, which starts at the file's begin each time",
    "# unpack once, before training, and read only what is needed:\n"
    'np.save("data.npy", everything)\n'
    'rows = np.load("data.npy", mmap_mode="r")  # a row costs its own bytes\n'
    "# where it must stay packed: in chunks of its own (zarr, HDF5 with small chunks)",
    title="Files are decompressed again for each sample",
    pattern=r"\b(gzip|bz2|lzma|zlib|tarfile|zipfile)\b",
)
STATISTICS = LineKind(
    "statistics of a tensor",
    "if step % 100 == 0:  # what is only looked at, in some of the steps\n    ...",
    pattern=r"\b(histc|histogram\w*|bincount|quantile|kthvalue)\(",
)
SORTS = LineKind(
    "sorting by a key",
    "# a key that indexes a tensor makes a tensor for each element: numbers, made once, do not\n"
    "values = tensor.tolist()\norder = sorted(rows, key=values.__getitem__)",
    pattern=r"\b(sorted|sort|min|max|heapify|nsmallest|nlargest)\(.*\bkey\s*=",
)
PAIRS = LineKind(
    "work on all pairs or triples, whose number grows with the square or cube of the batch",
    "# without a tensor of all of them: a matrix product, torch.cdist, or sort once and search:\n"
    "order = torch.searchsorted(sorted_values, wanted)\n"
    "# or a part of the rows at a time:\nfor rows in x.split(64):\n    ...",
    pattern=r"\[[^\]\[]*\bNone\b[^\]\[]*\]",
)
GATHERS = LineKind(
    "rows taken at random places by an index",
    "# data in the host's memory: gather the next batch in a worker, alongside the step:\n"
    "indices = BatchSampler(RandomSampler(data), batch_size, drop_last=True)\n"
    "loader = DataLoader(TensorDataset(data), sampler=indices, batch_size=None, num_workers=1)",
    # `data[perm[i:i+b]]`, `images[order[lo:hi]]`: a slice of an index.
    pattern=r"\w\[\s*[A-Za-z_][\w.]*\[[^\[\]]*:[^\[\]]*\]|\.index_select\(",
)
FORWARD = LineKind(
    "Python inside a module's forward",
    "# one operation on the whole tensor instead of Python for each element or layer,\n"
    "# and nothing in forward that only needs to be done once (move it to __init__)",
)
BACKWARD = LineKind(
    "the backward pass, between its operators",
    "# fewer and larger operators in the forward pass leave fewer here: a whole sequence or batch\n"
    "# in one call",
    pattern=r"\.backward\(|\bautograd\.grad\(",
)
METRICS = LineKind(
    "metrics",
    "metric.update(prediction.detach(), target)  # in the loop; metric(...) would compute, too\n"
    "value = metric.compute()  # over all that came before: once, after the loop",
    pattern=r"(?i)(^|[^a-z])(torch)?metrics?([^a-z)\]]|$)|\baccuracy|\bf1_|confusion|\bauroc\b|roc_auc",
)
# the same, known by its call where no name tells
_COMPUTES = replace(METRICS, pattern=r"\.compute\(\)")
DISTRIBUTIONS = LineKind(
    "making distributions of torch, and checking their arguments",
    "torch.distributions.Distribution.set_default_validate_args(False)  # once, at the start\n"
    "# MultivariateNormal of a diagonal matrix factorizes it each time; the same without that:\n"
    "dist = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)",
    pattern=r"\bMultivariateNormal\(|torch[/\\]distributions\b",
)
PARAMETRIZED = LineKind(
    "making weights out of their parameters, anew at each use",
    "with torch.nn.utils.parametrize.cached():  # once for all calls in it, where nothing trains\n"
    "    ...\n"
    "# or for good, after training:\n"
    'torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")',
    pattern=r"torch[/\\]nn[/\\]utils[/\\](parametriz|weight_norm|spectral_norm)",
)
TEXT = LineKind(
    "making text of tensors",
    "# numbers, not text, and not each time: tensor.item(), tensor.tolist()\n"
    "key = tuple(tensor.tolist())  # not: str(tensor)",
    pattern=r"\btorch[/\\]_tensor_str\.py",
)
PENALTY = LineKind(
    "a penalty on the weights, which goes through autograd",
    "# the same gradient of 0.5 * factor * w², in the update, without a graph (torch.optim.Adam,\n"
    "# SGD …; AdamW's is another one):\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr, weight_decay=factor)  # 2 * factor for w²",
    pattern=r"(?s)\b(pow|norm|square|abs)\(.*\bparameters\(\)|\*\*\s*2\b.*\bparameters\(\)|"
    r"\bparameters\(\).*(\b(pow|norm|square|abs)\(|\*\*\s*2\b)",
)
EMA = LineKind(
    "a moving average of the weights (EMA)",
    "# update the average every few steps (and raise its decay's power accordingly), all tensors\n"
    "# at once:\ntorch._foreach_lerp_(averages, weights, 1 - decay)",
    pattern=r"(?i)(^|[^a-z])ema([^a-z]|$)|\w(?-i:Ema|EMA)|swa_utils|averaged_?model",
)
OTHER = LineKind(
    "Python",
    "# look at what this line does each time, and take out what need not be there.\n"
    "# line by line:  %lprun -f the_function the_function(...)",
)

PICKS = LineKind(
    "picking at random",
    "# from a deque each pick walks from its end, the longer the fuller it is: a list, in a ring\n"
    "if len(buffer) < capacity:\n    buffer.append(item)\n"
    "else:\n    buffer[n % capacity] = item",
    pattern=r"(?<!np\.)(?<!numpy\.)\brandom\.(sample|choices?)\(",
)
SHUFFLES = LineKind(
    "shuffling all numbers to pick a few",
    "rng = np.random.default_rng(0)  # once\n"
    "index = rng.choice(n, k, replace=False)  # np.random.choice shuffles all n numbers for it\n"
    "# with repeats, in torch: torch.randint(n, (k,)), not torch.randperm(n)[:k]",
    title="All numbers are shuffled to pick a few of them",
    pattern=r"\b(np|numpy)\.random\.choice\(.*replace\s*=\s*False|\bpermutation\([^()]*\)\[|"
    r"\brandperm\([^()]*\)\[",
)
#: Lines that issue no operators of torch.
WITHOUT_TORCH = frozenset((
    SLEEP, WAITING, OPENS, UNPACKS, WRITES, STORING, SAVING, IMAGES, IMAGE_CHANGES, FRAMES,
    SHUFFLES, ENVIRONMENT,
))  # fmt: skip
# Known by the library's function that a line is mostly in, too.
BY_LIBRARY = (DISTRIBUTIONS, PARAMETRIZED)
# What a line's text tells, asked in this order: Image.open decodes what it reads.
_BY_TEXT = (
    _COMPUTES, *BY_LIBRARY, ENVIRONMENT, SHUFFLES, PICKS, FRAMES, FROM_A_LIST, GROWS, WRITES,
    LOGGING, IMAGES, IMAGE_CHANGES, FIGURES, STORING, SAVING, SORTS, STATISTICS, NUMPY, BACKWARD,
    GATHERS, PAIRS,
)  # fmt: skip


def kind_of(line: Line, *, trains: bool) -> LineKind:
    """What a line does; the first kind that fits."""
    if beside := beside_the_model(line, trains=trains):
        return beside
    if OPENS.fits(line.source):
        return OPENS
    if UNPACKS.fits(line.library, line.mostly, line.source):
        return UNPACKS
    by_text = kind_of_source(line.source, line.mostly)
    # what is read over a connection is a file to this code
    if is_wait(line) and by_text not in (STORING, SAVING, WRITES, IMAGES, IMAGE_CHANGES):
        return WAITING
    if by_text not in (OTHER, WAITING):
        return by_text
    in_forward = "forward" in (line.function, line.inner_function.rpartition(".")[2])
    known = (kind for kind in _BY_TEXT if line.library in kind.libraries.split())
    return next(known, FORWARD if in_forward else OTHER)


def kind_of_source(text: str, mostly: str = "") -> LineKind:
    """What a line does, from its text and the library's function that it is mostly in."""
    if is_sleep_by_text(text):
        return SLEEP
    if one := of_a_line(text):
        return LineKind(one.words, one.code, title=one.title)
    known = (kind for kind in _BY_TEXT if kind.fits(text, *[mostly] * (kind in BY_LIBRARY)))
    return next(known, WAITING if is_wait_by_text(text) else OTHER)


def beside_the_model(line: Line, *, trains: bool) -> LineKind | None:
    """What one call would do; EMA or metrics, by the name of the path, the function or the line.

    Where nothing is trained, no average is updated: ``ema(x)`` runs a model that was trained with
    one.
    """
    by_place = None if line.is_inside else in_one_call(line.file, line.line)
    if one := by_place or of_a_line(line.source):
        rule = "slow-line" if by_place else LineKind.rule
        return LineKind(one.words, one.code, rule, one.title)
    parts = (line.inner, line.inner_function, line.function, line.source, line.library_function)
    if trains and EMA.fits(*parts):
        return EMA
    if trains and PENALTY.fits(line.source) and "grad" not in line.source:
        return PENALTY
    return METRICS if METRICS.fits(*parts) else None


# Text that is made in less of the time, or seen in fewer samples, is no matter.
_LEAST_TEXT, _LEAST_SAMPLES = 0.1, 5


def text_lines(lines: LineSamples) -> list[Line]:
    """Those that make text of tensors for much of the time, and have a finding of their own."""
    found = [x for x in lines.by_line() if TEXT.fits(x.mostly)]
    n, share = sum(x.n_samples for x in found), sum(x.share for x in found)
    return found if n >= _LEAST_SAMPLES and share >= _LEAST_TEXT else []
