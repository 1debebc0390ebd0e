"""A data set that looks into its samples on the host, and a loop that does not."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Pictures(Dataset):
    def __init__(self):
        self.pictures = torch.rand(24, 3, 8, 8)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if picture.max() > 0.5:
            picture = picture / picture.max().item()
        bright = picture[picture > 0.9]
        return picture, int(bright.numel() > 10), picture.numpy().mean()


def collate(samples):
    pictures = torch.stack([s[0] for s in samples])
    assert not torch.isnan(pictures).any()
    return pictures, torch.tensor([s[1] for s in samples])


loader = DataLoader(Pictures(), batch_size=8, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(192, 2)).to(device)
optimizer = torch.optim.RMSprop(model.parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def step():
    losses = []
    for pictures, labels in loader:
        assert labels.min() >= 0
        pictures = pictures.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean()
