"""An image classifier that keeps its figures on every step, as many example scripts do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4))
model = model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()


def step():
    running, correct, seen = 0.0, 0, 0
    for number, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)  # copy
        output = model(images)
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * images.size(0)  # sync
        correct += (output.argmax(1) == labels).sum().item()  # sync
        seen += labels.size(0)
        if number % 10 == 0:
            print(f"batch {number}: loss {loss:.4f}")  # sync
    return running / seen, correct / seen
