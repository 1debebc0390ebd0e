"""A recurrent tagger whose lengths stay on the host, from the file to the packing."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
words, lstm, tags = nn.Embedding(30, 8), nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)
for part in (words, lstm, tags):
    part.to(device)
everything = [p for part in (words, lstm, tags) for p in part.parameters()]
optimizer = torch.optim.Adam(everything)


def step():
    sentences = [torch.randint(1, 30, (n,)) for n in (7, 5, 2)]
    lengths = torch.tensor([len(s) for s in sentences])
    if lengths.max() > 100:
        raise ValueError(f"{lengths.max().item()} words are too many")
    ids = pad_sequence(sentences, batch_first=True).to(device)  # copy
    wanted = torch.randint(0, 4, tuple(ids.shape)).to(device)  # copy
    packed = pack_padded_sequence(words(ids), lengths, batch_first=True)
    hidden, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    positions = torch.arange(ids.shape[1], device=device)[None]
    beyond = positions >= lengths.to(device)[:, None]  # copy
    wanted = wanted.masked_fill(beyond, -100)
    loss = nn.functional.cross_entropy(tags(hidden).flatten(0, 1), wanted.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
