"""Texts of different lengths: lists of words in a DataFrame, then padded by a collate function of torch's own."""

import pandas as pd
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from orca import Estimator
from orca.metrics import Accuracy

words = "the film was a good bad great awful long short".split()
texts, labels = [], []
generator = torch.Generator().manual_seed(0)
for i in range(200):
    length = int(torch.randint(2, 9, (1,), generator=generator))
    text = torch.randint(0, 4, (length,), generator=generator).tolist()
    text[0] = 4 + 2 * int(torch.randint(0, 2, (1,), generator=generator)) + i % 2
    texts.append(text)
    labels.append(i % 2)
df = pd.DataFrame({"words": texts, "label": labels})


class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(len(words) + 1, 8, padding_idx=len(words))
        self.output = torch.nn.Linear(8, 2)

    def forward(self, tokens):
        return self.output(self.embedding(tokens.long()).sum(dim=1))


def optimizer_creator(model, config):
    return torch.optim.Adam(model.parameters(), lr=0.05)


torch.manual_seed(0)
model = Bag()
est = Estimator.from_torch(
    model=model,
    optimizer=optimizer_creator,
    loss=torch.nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    backend="local",
    workers_per_node=2,
)
try:
    est.fit(df, epochs=1, batch_size=20, feature_cols=["words"], label_cols=["label"])
except Exception as error:
    print(type(error).__name__, error, sep=": ")


class Texts(Dataset):
    def __len__(self):
        return len(texts)

    def __getitem__(self, index):
        return torch.tensor(texts[index]), labels[index]


def collate(rows):
    tokens = pad_sequence([text for text, _ in rows], batch_first=True, padding_value=len(words))
    return tokens, torch.tensor([label for _, label in rows])


loader = DataLoader(Texts(), batch_size=20, shuffle=True, collate_fn=collate)
est.fit(loader, epochs=4)
print(est.evaluate(loader))
print(est.predict(loader).shape)
